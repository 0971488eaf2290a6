"""The environments of a process: a worker, or the caller.

`EnvHost` holds the environments and does requests for them. `ThreadedEnvs` does requests for environments that wait for
something outside, in threads.
"""

from __future__ import annotations

import contextlib
import pickle
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parallel_envs.engine import Failure, SharedBlock, dump_reply, reraise_ctrl_c
from parallel_envs.engine.interrupts import forked, leave_if_forked
from parallel_envs.groups.hosted_env import WORK, HostedEnv, TagSpec
from parallel_envs.groups.transport import (
    MAKING,
    READ_ONLY_JOBS,
    REPLAYING,
    SENDING,
    Answers,
    Job,
    Pairs,
    Raised,
    Replay,
    Request,
    SharedChannel,
    TimeLimits,
    WorkerClock,
)
from parallel_envs.vector.registry import OwnedEnvs

if TYPE_CHECKING:
    from parallel_envs.vector.registry import Registrations


class EnvHost:
    """The environments of one process, by number, each made as the spec of its tag says.

    In a worker, requests and answers are bytes: plain pickle of small values. If an answer cannot be pickled, that is
    the failure of the one environment that gave it.
    """

    def __init__(self, tags: Mapping[int, str], specs: Mapping[str, TagSpec], *, copies: bool) -> None:
        self._specs = {env: specs[tag] for env, tag in tags.items()}
        owned = OwnedEnvs()
        self._envs = {env: HostedEnv(spec, copies=copies, number=env, owned=owned) for env, spec in self._specs.items()}
        self._limits = TimeLimits()
        self._clock: WorkerClock | None = None
        self._channel: SharedChannel | None = None
        self._threaded: ThreadedEnvs | None = None

    @classmethod
    def in_worker(
        cls,
        tags: Mapping[int, str],
        specs: Mapping[str, TagSpec],
        limits: TimeLimits,
        clocks: SharedBlock,
        num_envs: int,
        worker: int,
        channel: SharedBlock,
        registrations: Registrations | None,
    ) -> EnvHost:
        """Return the host of a worker. `clocks` is the memory of all clocks, `channel` that of the worker's channel."""
        host = cls(tags, specs, copies=False)
        host._limits, host._clock = limits, WorkerClock(clocks, num_envs, worker)
        host._channel = SharedChannel(channel)
        if any(spec.threads > 1 for spec in specs.values()):  # in the caller there are no threads
            host._threaded = ThreadedEnvs(host._specs, host._do_each, lambda env: host._envs[env].uses_global_random)
        if registrations is not None:
            registrations.install()
        return host

    # Requests from another process.

    def ring(self, argument: int) -> list[bytes] | None:
        """Do the request in the channel, and write the answers there, part by part. Return the parts that do not fit.

        The engine calls this when the manager wakes the worker.
        """
        channel = self._channel
        assert channel is not None
        request, begin, unsent = self._read(channel.read_request()), 0, list[bytes]()
        for part in (request,) if self._threaded is not None else request.parts():
            if begin and self._clock is not None:  # not earlier: freeing the previous answers may run user code, too
                self._clock.end_sending()
            data = self._answered(part, begin)
            begin += len(part.arguments)
            if unsent or not channel.write_part(data):
                unsent.append(data)
        return unsent or None

    def work(self, message: bytes) -> list[bytes]:
        """Do the request in a message; return the answers."""
        return [self._answered(self._read(message))]

    def _read(self, data: bytes | memoryview) -> Request:
        number, *plain = pickle.loads(data)
        request = Request.from_plain(tuple(plain))
        if self._clock is not None:
            self._clock.start(number)
        return request

    def _answered(self, request: Request, begin: int = 0) -> bytes:
        """Do a request, or the part of a request that begins at this position; return the pickled answers."""
        answers = self.do(request)
        if self._clock is not None:
            self._clock.begin_sending(begin, begin + len(request.arguments))
        try:
            return pickle.dumps((answers.values, answers.errors, answers.replayed), pickle.HIGHEST_PROTOCOL)
        except BaseException:  # noqa: BLE001  # user code may raise anything when it is pickled
            for env in list(answers.values):
                try:
                    dump_reply((answers.values[env], answers.replayed.get(env)))
                except BaseException as error:  # noqa: BLE001  # the same
                    self._envs[env].drop_quietly()
                    answers.values.pop(env)
                    answers.replayed.pop(env, None)
                    answers.errors[env] = Raised(SENDING, Failure.of(error))
            return dump_reply((answers.values, answers.errors, answers.replayed))

    # The work itself.

    def do(self, request: Request) -> Answers:
        """Do a request. Environments that raise are among the errors of the answers."""
        answers = Answers()
        if self._threaded is None:
            self._do_each(request, iter(request.arguments.items()), answers)
            return answers
        # Environments are made before any thread starts: constructors take turns in any case (`seeded`), and one that
        # waited for its turn in a thread would be late because of the others.
        if not all(self._envs[env].made for env in request.arguments):
            request = request.subset([env for env in request.arguments if self._ensure_made(env, answers)])
        self._threaded.do(request, answers)
        return answers

    def _do_each(self, request: Request, pairs: Pairs, answers: Answers) -> None:
        """Do the job for one environment after the other. In a worker, the clock records which one is at work."""
        job, envs, replays, values = request.job, self._envs, request.replays, answers.values
        work, seconds, now = WORK[job], self._limits.of_job(job), time.monotonic
        due, ended = (None, None) if self._clock is None else (self._clock.due, self._clock.ended)
        for env, argument in pairs:
            hosted = envs[env]
            if (replays or not hosted.made) and not self._prepare(env, replays.get(env), answers):
                continue
            if due is not None:
                due[env] = now() + seconds
            try:
                values[env] = work(hosted, argument)
                if forked:
                    leave_if_forked()  # before the forked process writes where the worker will write
            except BaseException as error:  # noqa: BLE001  # SystemExit too: it must not end the worker
                self._note_error(env, job.value, error, answers, drops=job not in READ_ONLY_JOBS)
            if due is not None and ended is not None:
                ended[env] = now()
                due[env] = 0.0

    def _prepare(self, env: int, replay: Replay | None, answers: Answers) -> bool:
        """Make and replay an environment where needed. Return False if it broke."""
        if not self._ensure_made(env, answers):
            return False
        if replay is None:
            return True

        def work() -> None:
            answers.replayed[env] = self._envs[env].replay(replay)

        return self._tried(env, REPLAYING, self._limits.of_replay(replay), work, answers)

    def _ensure_made(self, env: int, answers: Answers) -> bool:
        hosted = self._envs[env]
        return hosted.made or self._tried(env, MAKING, self._limits.of_making(), hosted.make, answers)

    def _tried(self, env: int, doing: str, seconds: float, work: Callable[[], None], answers: Answers) -> bool:
        """Do work before a job. Return False if it raised, which is then among the errors."""
        if self._clock is not None:
            self._clock.begin(env, seconds, doing)
        try:
            work()
            leave_if_forked()
        except BaseException as error:  # noqa: BLE001  # the same
            self._note_error(env, doing, error, answers, drops=True)
            return False
        finally:
            if self._clock is not None:
                self._clock.end(env)
        return True

    def _note_error(self, env: int, doing: str, error: BaseException, answers: Answers, *, drops: bool) -> None:
        try:
            reraise_ctrl_c(error)
        except KeyboardInterrupt:
            self._envs[env].drop_quietly()  # Ctrl-C came in the middle of its own code: its state is unknown
            raise
        if drops:
            self._envs[env].drop_quietly()
        answers.errors[env] = Raised(doing, Failure.of(error))

    def close(self) -> None:
        """Close all environments, and ignore what they raise."""
        for hosted in self._envs.values():
            hosted.drop_quietly()
        if self._threaded is not None:
            self._threaded.close()


# ---- threads --------------------------------------------------------------------------------------------------------

_PATIENCE_SECONDS = 2e-3

DoEach = Callable[[Request, Pairs, Answers], None]


@dataclass(slots=True)
class _TagQueue:
    """The environments of a tag in a request. Several threads take from `pairs`: each takes the next when it is free.

    `seconds`: the time that each thread spent on it.
    """

    tag: str
    pairs: Pairs
    most_threads: int
    seconds: list[float] = field(default_factory=list)


class _HelperStart:
    """Lets a watching thread start helpers unless the work is done by then. Neither thread waits for the other."""

    def __init__(self) -> None:
        self._working, self._lock = threading.Lock(), threading.Lock()
        self._working.acquire()
        self._over = False
        self._helpers: list[Future[None]] = []

    def finish(self) -> list[Future[None]]:
        """Prevent further starts of helpers; return the helpers that were started."""
        with self._lock:
            self._over = True
        self._working.release()
        return self._helpers

    def outlasts(self, seconds: float) -> bool:
        """Return whether the work takes longer than this; return as soon as that is known."""
        return not self._working.acquire(timeout=seconds)

    def start(self, start: Callable[[], list[Future[None]]]) -> None:
        """Start helpers, unless the work is done."""
        with self._lock:
            if not self._over:
                self._helpers = start()


class ThreadedEnvs:
    """Does requests for environments that wait for something outside, as many at once as the spec of the tag allows.

    Waking a thread for each environment takes longer than many resets. So a tag that was quick the last time is done
    one after another; if it takes longer than `_PATIENCE_SECONDS` this time, threads help with the rest.

    Args:
        specs: The spec of each environment.
        do_each: Does the part of a request that concerns the environments of an iterator.
        uses_global_random: Returns whether an environment draws from the process's generators. It is then done in the
            worker's own thread, so that it does not wait in a thread for others while its time runs.
    """

    def __init__(
        self, specs: Mapping[int, TagSpec], do_each: DoEach, uses_global_random: Callable[[int], bool]
    ) -> None:
        from parallel_envs.wrappers.pool import Threads  # only workers with such environments need it

        self._specs, self._do_each, self._uses_global_random = specs, do_each, uses_global_random
        self._threads = Threads("environment")
        self._slow: set[tuple[str, Job]] = set()

    def do(self, request: Request, answers: Answers) -> None:
        by_tag: dict[str, list[int]] = {}  # "" for environments that are done one after the other
        for env in request.arguments:
            spec = self._specs[env]
            is_alone = spec.threads == 1 or self._uses_global_random(env)
            by_tag.setdefault("" if is_alone else spec.tag, []).append(env)
        alone = request.pairs(by_tag.pop("", []))
        queues = [
            _TagQueue(tag, request.pairs(envs), min(len(envs), self._specs[envs[0]].threads))
            for tag, envs in by_tag.items()
        ]
        helpers, quick = list[Future[None]](), list[_TagQueue]()
        for queue in queues:
            is_slow = (queue.tag, request.job) in self._slow
            started = self._start_helpers(queue, queue.most_threads, request, answers) if is_slow else []
            helpers += started
            if not started:
                quick.append(queue)
        self._do_each(request, alone, answers)
        for queue in quick:
            helpers += self._do_here(queue, request, answers)
        for helper in helpers:
            helper.result()
        for queue in queues:
            is_slow = sum(queue.seconds) > _PATIENCE_SECONDS
            (self._slow.add if is_slow else self._slow.discard)((queue.tag, request.job))

    def _start_helpers(self, queue: _TagQueue, count: int, request: Request, answers: Answers) -> list[Future[None]]:
        """Start as many threads as wanted, or as many as the system has room for, that take from a queue."""
        helpers: list[Future[None]] = []
        with contextlib.suppress(RuntimeError):
            for _ in range(count):
                helpers.append(self._threads.submit(self._take, queue, request, answers))  # noqa: PERF401  # keeps those started before an error
        return helpers

    def _take(self, queue: _TagQueue, request: Request, answers: Answers) -> None:
        began = time.perf_counter()
        self._do_each(request, queue.pairs, answers)
        queue.seconds.append(time.perf_counter() - began)

    def _do_here(self, queue: _TagQueue, request: Request, answers: Answers) -> list[Future[None]]:
        """Take from a queue in this thread, while another one starts helpers if this takes long. Return the helpers."""
        start = _HelperStart()

        def watch() -> None:
            if start.outlasts(_PATIENCE_SECONDS):
                start.start(lambda: self._start_helpers(queue, queue.most_threads - 1, request, answers))

        with contextlib.suppress(RuntimeError):  # the system has no room for another thread
            self._threads.submit(watch)
        try:
            self._take(queue, request, answers)
        finally:
            helpers = start.finish()
        return helpers

    def close(self) -> None:
        self._threads.close()
