"""Messages between the manager and its workers, and how they travel.

- `Job`, `Request`, `Answers`: a request asks some environments for the same job. It holds one turn's actions, and an
  answer holds their results; histories stay in the manager, so messages do not grow with the episode.
- `WorkerClock`: shared memory in which a worker writes when each of its environments is due, so that the manager can
  tell which environment is late or killed its worker.
- `SharedChannel`: shared memory for one request and its answers. A turn then costs one wake-up each way, and nothing
  is copied through a socket.
- `Transport`: sends requests and reads answers, through the shared channels, or as messages if they do not fit.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import struct
import time
import weakref
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np

from parallel_envs.engine import Failure, PendingRequest, Reply, SharedBlock, WorkerPool, dump_request
from parallel_envs.errors import EnvError, RemoteTraceback

# ---- requests and answers -------------------------------------------------------------------------------------------


class Job(Enum):
    """Jobs of an environment, by the name that errors use. The comments name the argument.

    Answers: RESET returns the first state, PLAY a `Played`, RENDER the picture or text, MEASURE the env's own metrics.
    """

    RESET = "its reset"  # (seed, mode)
    PLAY = "its turn"  # actions: the environment does as many of them as it has left
    RENDER = "render"  # mode: `text` or `rgb_array`
    MEASURE = "metrics"  # None


MAKING, REPLAYING, SENDING = "its construction", "its replay", "sending its answer"
"""Activities of an environment before and after its job: construction, replay of its episode, sending its answer."""

READ_ONLY_JOBS = (Job.RENDER, Job.MEASURE)
"""Jobs that leave an environment unchanged if it raises."""

_SMALLEST_PART = 8

Pairs = Iterator[tuple[int, Any]]
"""Environments and the argument of each."""
Convert = Callable[[dict[int, Any]], dict[int, Any]]
"""Function of the manager that converts the values of answers, while other environments still work. It may be called
again for the same environment, and the last call counts: one by one if it raised, and after the loss of a worker."""

# Plain tuples: there is one for each environment, and they are made, pickled and read in a fraction of a class's time.
Played = tuple[Any, float, bool, bool, dict[str, Any], list[Any], bool, dict[str, float] | None]
"""Result of a turn: `(state, reward, terminated, truncated, info, executed, all_valid, metrics)`.

`executed`: the actions that were done, as values, in a list that belongs to the receiver; `all_valid`: there were
actions and each was valid; `metrics`: the environment's own, if the turn ended its episode, else None.
"""


class Replay(NamedTuple):
    """Recipe for bringing an environment to the present state of its episode: reset it, then repeat its actions."""

    seed: int
    mode: str
    actions: tuple[Any, ...]
    num_turns: int


@dataclass(frozen=True, slots=True)
class ReplayTarget:
    """A replay, and the state in which it must end."""

    replay: Replay
    state: Any


@dataclass(frozen=True, slots=True)
class Request:
    """A job, and its argument for each environment. Environments in `replays` are replayed before the job."""

    job: Job
    arguments: Mapping[int, Any]
    replays: Mapping[int, Replay] = field(default_factory=dict)

    def subset(self, envs: Collection[int]) -> Request:
        return self.with_arguments({env: self.arguments[env] for env in envs})

    def with_arguments(self, arguments: Mapping[int, Any]) -> Request:
        replays = {env: one for env, one in self.replays.items() if env in arguments} if self.replays else {}
        return Request(self.job, arguments, replays)

    def parts(self) -> Iterator[Request]:
        """Yield the request in parts that shrink.

        The manager reads the answers of one part while the worker does the next one, so little is left to read at the
        end. The first part is large, because the manager is busy with its own work at the beginning.
        """
        envs = list(self.arguments)
        while len(envs) > 2 * _SMALLEST_PART:
            most = 3 * len(envs) // 4
            yield self.subset(envs[:most])
            envs = envs[most:]
        yield self.subset(envs) if len(envs) < len(self.arguments) else self

    def pairs(self, envs: Collection[int]) -> Pairs:
        return iter([(env, self.arguments[env]) for env in envs])

    def to_plain(self) -> tuple[Any, ...]:
        """Return the request as plain values for `pickle`."""
        return self.job.value, self.arguments, {env: tuple(replay) for env, replay in self.replays.items()}

    @classmethod
    def from_plain(cls, values: tuple[Any, ...]) -> Request:
        job, arguments, replays = values
        return cls(Job(job), arguments, {env: Replay(*replay) for env, replay in replays.items()})


@dataclass(frozen=True, slots=True)
class Raised:
    """Answer of an environment that raised: its activity, and the exception."""

    doing: str
    failure: Failure


@dataclass(slots=True)
class Answers:
    """Results of a request: each environment is in either `values` or `errors`.

    `replayed` holds the states in which replays ended.
    """

    values: dict[int, Any] = field(default_factory=dict)
    errors: dict[int, Raised] = field(default_factory=dict)
    replayed: dict[int, Any] = field(default_factory=dict)

    def up_to_date(self, job: Job) -> Iterator[int]:
        """Yield the environments that are in the state to which `job` leads. A dropped environment has no state."""
        yield from self.values
        if job in READ_ONLY_JOBS:
            yield from [env for env, raised in self.errors.items() if raised.doing == job.value]

    def converted(self, convert: Convert | None) -> Answers:
        """Convert the values in place. A value for which `convert` raises becomes an error of its environment."""
        if convert is None:
            return self
        try:
            self.values = convert(self.values)
        except Exception:  # noqa: BLE001  # user code: a state that cannot be copied, say
            for env, value in [*self.values.items()]:
                try:
                    self.values.update(convert({env: value}))
                except Exception as error:  # noqa: BLE001  # the same
                    del self.values[env]
                    self.errors[env] = Raised(SENDING, Failure.of(error))
        return self

    def merged(self, others: Answers) -> Answers:
        """Merge the smaller of two answers into the larger one, and return the larger one."""
        whole, rest = (self, others) if len(self.values) >= len(others.values) else (others, self)
        whole.values.update(rest.values)
        whole.errors.update(rest.errors)
        whole.replayed.update(rest.replayed)
        return whole


@dataclass(slots=True, weakref_slot=True, eq=False)
class InFlightRequest:
    """A request that has been sent, and the requests of the workers whose answers have not been read.

    `number` identifies the request. No environment can be late before `first_due`. `early` holds the parts of answers
    that were read while their workers did the other parts; they count only when a worker has finished. `expected`: the
    number of answers of each worker. `abandoned`: nobody will read the answers.
    """

    request: Request
    number: int
    sent_at: float
    first_due: float
    requests: dict[int, PendingRequest] = field(default_factory=dict)
    early: dict[int, Answers] = field(default_factory=dict)
    expected: dict[int, int] = field(default_factory=dict)
    abandoned: bool = False

    def has_all_early(self, worker: int) -> bool:
        """Return whether every answer of a worker has been read, although it has not reported that it is done."""
        early = self.early.get(worker)
        return early is not None and len(early.values) + len(early.errors) == self.expected[worker]


# ---- times ----------------------------------------------------------------------------------------------------------

_SENDING_SECONDS = 60.0  # pickling and sending take as long as answers are large, however short turns are
_ACTIVITIES = ("", MAKING, REPLAYING)  # by the number that stands for each in memory; "" is the job itself
_NUM_WORKER_CELLS = 3
_REQUEST, _SENT_FROM, _SENT_TO = range(_NUM_WORKER_CELLS)
"""Cells of the worker itself: its request, and the range of environments in it whose answers are being sent."""


@dataclass(frozen=True, slots=True)
class TimeLimits:
    """Seconds that an environment may take. None: no limit."""

    step: float | None = None
    reset: float | None = None
    start: float | None = None

    def of_job(self, job: Job) -> float:
        return _or_infinite(self.reset if job is Job.RESET else self.step)

    def of_replay(self, replay: Replay) -> float:
        """Return the limit of a replay: that of a reset and of all its turns."""
        if self.step is None or self.reset is None:
            return math.inf
        return self.reset + replay.num_turns * self.step

    def of_making(self) -> float:
        return _or_infinite(self.start)

    def of_sending(self) -> float:
        return max(_SENDING_SECONDS, _or_infinite(self.step))

    def shortest(self) -> float:
        return min(_or_infinite(self.step), _or_infinite(self.reset), _or_infinite(self.start))


def _or_infinite(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


class WorkerClock:
    """Times in shared memory at which each environment of a worker is late. 0: the environment is idle.

    The worker writes; the manager reads. The worker also writes the number of its request, and `request` is the number
    of the request that the manager waits for: an environment that is still busy with an earlier request, which was
    interrupted, does not fail the present one.

    Args:
        block: The memory, in which each worker has a part.
        num_envs: The number of environments of all workers.
        worker: The worker that the clock belongs to.
    """

    def __init__(self, block: SharedBlock, num_envs: int, worker: int) -> None:
        self.request = 0
        num_cells = _NUM_WORKER_CELLS + 3 * num_envs
        # Single numbers are written into memoryviews in half the time that arrays take.
        cells: Any = memoryview(block.buffer).cast("d")[worker * num_cells : (worker + 1) * num_cells]
        self._cells, envs = cells[:_NUM_WORKER_CELLS], cells[_NUM_WORKER_CELLS:]
        self._due, self._ended, self._doing = np.frombuffer(envs, np.float64).reshape(3, num_envs)
        self.due, self.ended = envs[:num_envs], envs[num_envs : 2 * num_envs]
        """For the worker, which writes these for every job of every turn: `begin` and `end` without the calls."""

    @staticmethod
    def allocate(num_envs: int, num_workers: int) -> SharedBlock:
        return SharedBlock.create(num_workers * (_NUM_WORKER_CELLS + 3 * num_envs) * 8)

    # The worker's side.

    def start(self, request: int) -> None:
        """Record that the worker begins with the request of this number."""
        self._cells[_SENT_TO], self._cells[_REQUEST] = 0, request

    def begin(self, env: int, seconds: float, doing: str = "") -> None:
        """Record that an environment begins its job, or an activity before its job, which may take so long."""
        self._doing[env] = _ACTIVITIES.index(doing)
        self.due[env] = time.monotonic() + seconds

    def end(self, env: int) -> None:
        self.ended[env] = time.monotonic()
        self.due[env] = 0.0
        self._doing[env] = 0

    def begin_sending(self, begin: int, end: int) -> None:
        """Record that the answers of this range of the request are being pickled, sent and freed."""
        self._cells[_SENT_FROM], self._cells[_SENT_TO] = begin, end

    def end_sending(self) -> None:
        self._cells[_SENT_TO] = 0

    # The manager's side.

    def clear(self) -> None:
        """Mark all environments as idle, because the worker is gone."""
        self._due[:] = self._doing[:] = 0.0
        self.start(0)

    @property
    def _has_begun(self) -> bool:
        return int(self._cells[_REQUEST]) == self.request

    def is_any_at_work(self) -> bool:
        return bool((self._due > 0.0).any())

    def at_work(self) -> list[int]:
        """Return the environments that are busy with the present request."""
        return np.flatnonzero(self._due > 0.0).tolist() if self._has_begun else []

    def doing(self, env: int, job: Job) -> str:
        """Return the activity of an environment that is busy with a request for `job`."""
        return _ACTIVITIES[int(self._doing[env])] or job.value

    def sending(self, envs: Sequence[int]) -> list[int]:
        """Return which of `envs`, the environments of the present request in order, have answers being sent."""
        begin, end = int(self._cells[_SENT_FROM]), int(self._cells[_SENT_TO])
        return list(envs[begin:end]) if self._has_begun else []

    def next_due(self) -> float:
        """Return when the first environment is late; infinity if none can be."""
        return float(self._due[self._due > 0.0].min(initial=math.inf))

    def late(self, now: float) -> list[int]:
        """Return the environments that are late with the present request."""
        return [env for env in self.at_work() if self._due[env] <= now]

    def last_end(self) -> float:
        return float(self._ended.max(initial=0.0))


# ---- shared memory --------------------------------------------------------------------------------------------------

_REQUEST_BYTES = 1 << 18
_ANSWER_BYTES = 1 << 22
"""Far more than a turn of text needs, and enough for pictures. Memory that nobody writes to is never allocated."""

_REQUEST_HEADER = struct.Struct("=QQ")
_PART_HEADER = struct.Struct("=QQQ")
_CHECKED_BYTES = 1 << 16
"""A longer part has no checksum, which would take as much time as early reading gains. It is read when the worker is
done, and so are the parts after it."""


class SharedChannel:
    """Memory for one request and its answers, shared by the manager and a worker. Each has its own object over it.

        request   number, bytes │ data
        answers   number, bytes, checksum │ a part │ number, bytes, checksum │ the next part │ 0

    `number` is that of the request. The manager may read a part while the worker does the next one. There is no system
    call between the write and the read, so bytes may arrive late and in any order: the checksum tells whether all bytes
    of a part have arrived. After the worker has reported that it is done, everything is there.

    The channel belongs to the manager until it wakes the worker, then to the worker until it has answered: the manager
    must not write another request before that.
    """

    def __init__(self, block: SharedBlock) -> None:
        whole = memoryview(block.buffer)
        self._request, self._answers = whole[:_REQUEST_BYTES], whole[_REQUEST_BYTES:]
        self._number = self._at = 0  # of the request; where the next part begins

    @staticmethod
    def allocate() -> SharedBlock:
        return SharedBlock.create(_REQUEST_BYTES + _ANSWER_BYTES)

    # The manager's side.

    def write_request(self, number: int, data: bytes) -> bool:
        """Write a request; return False if it does not fit. Numbers begin at 1 and are never used again."""
        end = _REQUEST_HEADER.size + len(data)
        if end > len(self._request):
            return False
        _REQUEST_HEADER.pack_into(self._request, 0, number, len(data))
        self._request[_REQUEST_HEADER.size : end] = data
        self._number, self._at = number, 0
        return True

    def early_part(self) -> memoryview | None:
        """Return the next part of the answers if all of it has arrived, while the worker may still be at work."""
        part = self._part()
        if part is None:
            return None
        data, checksum = part
        complete = len(data) <= _CHECKED_BYTES and checksum == _checksum(self._number, data)
        return data if complete else None

    def next_part(self) -> memoryview | None:
        """Return the next part after the worker has reported that it is done, or None after the last part."""
        part = self._part()
        return None if part is None else part[0]

    def advance(self, data: memoryview) -> None:
        """Move past a part that has been read."""
        self._at += _PART_HEADER.size + len(data)

    def _part(self) -> tuple[memoryview, int] | None:
        begin = self._at + _PART_HEADER.size
        if begin > len(self._answers):
            return None
        number, size, checksum = _PART_HEADER.unpack_from(self._answers, self._at)
        if number != self._number or begin + size > len(self._answers):
            return None
        return self._answers[begin : begin + size], checksum

    # The worker's side.

    def read_request(self) -> memoryview:
        self._number, size = _REQUEST_HEADER.unpack_from(self._request)
        self._at = 0
        return self._request[_REQUEST_HEADER.size : _REQUEST_HEADER.size + size]

    def write_part(self, data: bytes) -> bool:
        """Write the next part of the answers; return False if it does not fit."""
        begin = self._at + _PART_HEADER.size
        end = begin + len(data)
        if end > len(self._answers):
            return False
        if end + _PART_HEADER.size <= len(self._answers):
            _PART_HEADER.pack_into(self._answers, end, 0, 0, 0)  # else the rest of earlier answers would follow
        self._answers[begin:end] = data
        _PART_HEADER.pack_into(self._answers, self._at, self._number, len(data), _checksum(self._number, data))
        self._at = end
        return True


def _checksum(number: int, data: bytes | memoryview) -> int:
    """Return the checksum of a part, its length and the number of its request."""
    size = len(data)
    return 0 if size > _CHECKED_BYTES else zlib.crc32(data, zlib.crc32(_REQUEST_HEADER.pack(number, size)))


# ---- sending and reading --------------------------------------------------------------------------------------------


class Unreadable(Exception):
    """Answers hold an object that can be pickled but not unpickled."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Transport:
    """Sends requests to the workers of a pool, each of which hosts an `EnvHost` under `key`, and reads their answers.

    A worker owns its channel from a request until its answers have been read. After a Ctrl-C nobody knows what the
    worker still writes there, so until it has answered another request it is sent messages. Requests in the meantime,
    and requests that are too long for the channel, are sent as messages as well.

    Attributes:
        num_bytes: Bytes that have passed through the channels so far, both ways.
    """

    def __init__(self, pool: WorkerPool, key: int, channels: Mapping[int, SharedChannel]) -> None:
        self._pool, self._key, self._channels = pool, key, channels
        self._busy: set[int] = set()  # workers that were sent a request and have not answered anything since
        self._in_channel: dict[int, weakref.ref[InFlightRequest]] = {}  # until the answers have been read
        self.num_bytes = 0

    @property
    def is_any_busy(self) -> bool:
        return bool(self._busy)

    def send(self, worker: int, sent: InFlightRequest, data: bytes) -> PendingRequest:
        """Send a worker its part of a request, without waiting."""
        self._busy.add(worker)
        if worker not in self._in_channel:
            self._in_channel[worker] = weakref.ref(sent)  # before the channel is used: from now on it is taken
            if self._channels[worker].write_request(sent.number, data):
                self.num_bytes += len(data)
                return self._pool.ring(self._key, 0, (worker,))
            del self._in_channel[worker]
        return self._pool.call(worker, self._key, "work", data)

    def read_early(self, worker: int, sent: InFlightRequest) -> Answers | None:
        """Return a part of a worker's answers that has arrived and has not been read; the worker may be at work."""
        if not self._is_in_channel(worker, sent) or (data := self._channels[worker].early_part()) is None:
            return None
        try:
            return self._unpickled(worker, data)
        except Exception:  # noqa: BLE001  # user code may raise anything when it is unpickled: `read` meets it again
            return None

    def read(self, worker: int, sent: InFlightRequest, reply: Reply | None) -> Answers:
        """Return the unread answers of a worker that is done. Raises `Unreadable`."""
        answers = Answers()
        try:
            if reply is not None:
                raise_worker_failure(reply)
            try:
                while self._is_in_channel(worker, sent) and (data := self._channels[worker].next_part()) is not None:
                    answers = answers.merged(self._unpickled(worker, data))
                for message in () if reply is None else reply.value:
                    answers = answers.merged(Answers(*pickle.loads(message)))
            except Exception as error:  # user code may raise anything when it is unpickled
                raise Unreadable(Failure.of(error)) from error
            return answers
        finally:
            self._busy.discard(worker)
            # Another request may own the channel: a signal handler, say, that sends a request while this one is under
            # way reads its answers first. The channel is kept while the other request waits for its answers.
            owner = self._in_channel[worker]() if worker in self._in_channel else None
            if owner is sent or owner is None or owner.abandoned:
                self.forget(worker)

    def _is_in_channel(self, worker: int, sent: InFlightRequest) -> bool:
        return worker in self._in_channel and self._in_channel[worker]() is sent

    def _unpickled(self, worker: int, data: memoryview) -> Answers:
        answers = Answers(*pickle.loads(data))
        self._channels[worker].advance(data)
        self.num_bytes += len(data)
        return answers

    def forget(self, worker: int) -> None:
        """Record that a worker is done or gone, and does not use its channel any more."""
        self._busy.discard(worker)
        self._in_channel.pop(worker, None)


def pickled_request(values: tuple[Any, ...], *, has_replays: bool = False) -> bytes:
    """Return a request as bytes.

    Plain pickle is several times as quick as the pickler that sends functions and classes by value, and is enough for
    text and numbers. Replays hold values of actions, which may be of a class of the main script: plain pickle would
    send its name, which no worker knows.
    """
    if not has_replays:
        with contextlib.suppress(Exception):
            return pickle.dumps(values, pickle.HIGHEST_PROTOCOL)
    data, _ = dump_request(values)
    return data


def raise_worker_failure(reply: Reply) -> None:
    """Raise an error that a worker reports and that concerns none of its environments in particular."""
    if reply.failure is not None:
        failure = reply.failure
        text = f"A worker could not do its part: {failure.type_name}: {failure.message}"
        kind = EnvError.named(failure.type_name)
        raise kind(text, type_name=failure.type_name, remote_message=failure.message) from RemoteTraceback(
            failure.traceback
        )
