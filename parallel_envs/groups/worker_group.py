"""The worker processes of a manager: all are sent a request at once, and lost ones are replaced.

If an environment raises, its worker reports that. If a worker dies or hangs, the clock in shared memory tells which of
its environments were at work. A fresh worker takes its place, its environments are brought to the state of their
episodes by replay (`EnvPlacement` adds replays to requests), and are asked again as `LossPolicy` decides.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from parallel_envs.choices import StartMethod
from parallel_envs.engine import HOST, Call, PoolSettings, Reply, SharedBlock, WorkerPool, cores_here, open_pool
from parallel_envs.engine.interrupts import delay_ctrl_c
from parallel_envs.engine.pool import current_core
from parallel_envs.errors import ClosedError, WorkerStartError
from parallel_envs.groups.env_host import EnvHost
from parallel_envs.groups.failures import EnvFailure
from parallel_envs.groups.hosted_env import TagSpec
from parallel_envs.groups.recovery import Deadlines, LossPolicy, LostWorker, UnreadableAnswers
from parallel_envs.groups.transport import (
    Answers,
    Convert,
    InFlightRequest,
    Job,
    Request,
    SharedChannel,
    TimeLimits,
    Transport,
    Unreadable,
    WorkerClock,
    pickled_request,
    raise_worker_failure,
)
from parallel_envs.vector.registry import Registrations

_LEAST_START_SECONDS = 5.0  # for the start of a process, even if its environments have less time


class WorkerGroup:
    """Workers, each of which holds its environments for good.

    Args:
        worker_of: The worker of each environment.
        tags: The tag of each environment.
        specs: How the environments of each tag are made.
        limits: How long environments may take.
        context: The start method.
        caller_works: Whether the caller steps environments of its own at the same time.
        on_answers: Called with all answers to a request, as soon as they have been read.
        on_lost: Called with the environments of a worker that is being replaced.
    """

    def __init__(
        self,
        worker_of: Mapping[int, int],
        tags: Mapping[int, str],
        specs: Mapping[str, TagSpec],
        limits: TimeLimits,
        context: StartMethod | None,
        *,
        caller_works: bool,
        on_answers: Callable[[Job, Answers], None],
        on_lost: Callable[[Collection[int]], None],
    ) -> None:
        self.worker_of, self._tags, self._specs, self._limits = dict(worker_of), tags, specs, limits
        self._on_answers, self._on_lost = on_answers, on_lost
        workers = sorted(set(worker_of.values()))
        self._envs_of = {worker: [env for env in worker_of if worker_of[env] == worker] for worker in workers}
        self._num_envs = max(worker_of) + 1
        self._without_envs: set[int] = set()  # workers whose environments are missing since a Ctrl-C came in between
        self._blocks = list[SharedBlock]()  # that of the clocks, and one for the channel of each worker
        weakref.finalize(self, _close_blocks, self._blocks)  # the pool has one of its own
        self.restarts, self._numbers = 0, itertools.count(1)
        with contextlib.ExitStack() as undo:
            self._start(context, caller_works, undo)
            self._host_envs(tuple(self._envs_of))
            undo.pop_all()

    def _start(self, context: StartMethod | None, caller_works: bool, undo: contextlib.ExitStack) -> None:
        """Start the workers, each with its channel. `undo` receives the steps that undo this."""
        seconds = None if self._limits.start is None else max(self._limits.start, _LEAST_START_SECONDS)
        modules = ("parallel_envs.groups.env_host",)
        settings = PoolSettings(context=context, preload=modules, name="group worker", start_timeout=seconds)
        undo.callback(_close_blocks, self._blocks)
        with delay_ctrl_c():  # short beside what follows; else a Ctrl-C might leave a worker without an owner
            self._blocks.append(WorkerClock.allocate(self._num_envs, len(self._envs_of)))
            for _ in self._envs_of:
                self._blocks.append(SharedChannel.allocate())
            self.pool: WorkerPool = open_pool(len(self._envs_of), settings)
            undo.callback(_close_pool, self.pool)
        self._clocks = [WorkerClock(self._blocks[0], self._num_envs, worker) for worker in self._envs_of]
        channels = map(SharedChannel, self._blocks[1:])
        self._key, self._cores = self.pool.new_key(), WorkerCores(self.pool, caller_works=caller_works)
        self._transport = Transport(self.pool, self._key, dict(zip(self._envs_of, channels, strict=True)))
        self._deadlines = Deadlines(self.pool, self._clocks, self._limits, self._envs_of, self._tags)

    def _host_envs(self, workers: Sequence[int]) -> None:
        """Give workers their environments, which are constructed by their first request.

        A worker that dies of it is replaced at its next request.
        """
        registrations, calls = Registrations.here(), dict[int, Call]()
        for worker in workers:
            tags = {env: self._tags[env] for env in self._envs_of[worker]}
            specs = {tag: self._specs[tag] for tag in set(tags.values())}
            clocks, channel = self._blocks[0], self._blocks[1 + worker]
            arguments = (tags, specs, self._limits, clocks, self._num_envs, worker, channel, registrations)
            calls[worker] = Call(HOST, "build", (self._key, EnvHost.in_worker, *arguments))
        pending = self.pool.send(calls)
        if not self.pool.wait(pending, self._limits.start):
            raise WorkerStartError(f"{pending}: no word from these workers within {self._limits.start} seconds.")
        for reply in pending.replies.values():
            raise_worker_failure(reply)

    # ---- one request ------------------------------------------------------------------------------------------------

    def do(
        self,
        first: InFlightRequest,
        again: Callable[[Collection[int]], Request],
        convert: Convert | None = None,
    ) -> tuple[Answers, dict[int, EnvFailure]]:
        """Bring a request to its end, whatever happens to the workers: return the answers, and the failures.

        `again` returns the request for environments that are to be asked once more.
        """
        received, failed = Answers(), dict[int, EnvFailure]()
        policy = LossPolicy(first.request, self._tags)
        sent: InFlightRequest | None = first
        batches_of: dict[int, list[list[int]]] = {}  # by worker, what is still to be asked again
        while sent is not None:
            try:
                answers, losses = self.end(sent, convert)
            except BaseException:
                self.abandon(sent)
                raise
            received = received.merged(answers)
            for loss in losses:
                unanswered = [env for env in sent.request.arguments if self.worker_of.get(env) == loss.worker]
                self._on_lost(unanswered)  # unreadable answers, too: these environments have done the job
                failures, batches = policy.decide(loss, unanswered)
                failed |= failures
                batches_of[loss.worker] = [batch for batch in batches if batch] + batches_of.get(loss.worker, [])
            envs = [env for batches in batches_of.values() if batches for env in batches.pop(0)]
            sent = self.begin(again(envs)) if envs and not policy.is_hopeless(failed) else None
        return received, failed

    def begin(self, request: Request) -> InFlightRequest:
        """Send a request to the workers without waiting. Environments of the caller are left out."""
        if (owner := self.pool.forked_from) is not None:  # its channels are those of the process it was forked from
            raise ClosedError(
                f"These environments live in workers of process {owner}, and process {os.getpid()} was forked "
                "from it. Copy the manager there, by copy.deepcopy: the copy has workers of its own."
            )
        self.pool.check_open("Environments were asked for something")
        arguments, parts = request.arguments, dict[int, Request]()
        for worker, envs in self._envs_of.items():
            if part := {env: arguments[env] for env in envs if env in arguments}:
                parts[worker] = request.with_arguments(part)
        for worker in self._without_envs.intersection(parts):
            self._replace(worker)
        number = next(self._numbers)
        for clock in self._clocks:
            clock.request = number
        now = first_due = time.monotonic()
        if not self._transport.is_any_busy:  # a worker that is busy with an interrupted request is late sooner
            first_due += self._limits.shortest()
        sent = InFlightRequest(request, number, now, first_due)
        with delay_ctrl_c():  # a message that a Ctrl-C cuts in two would spoil all messages after it
            for worker in self._cores.wake_order(parts):
                data = pickled_request((number, *parts[worker].to_plain()), has_replays=bool(parts[worker].replays))
                sent.expected[worker] = len(parts[worker].arguments)
                sent.requests[worker] = self._transport.send(worker, sent, data)
        return sent

    def end(
        self, sent: InFlightRequest, convert: Convert | None = None
    ) -> tuple[Answers, list[LostWorker | UnreadableAnswers]]:
        """Wait for the answers. Lost workers have been replaced; their environments are not among the answers."""
        answers, lost, unreadable = Answers(), list[LostWorker](), list[UnreadableAnswers]()
        late: dict[int, dict[int, EnvFailure]] = {}
        for worker, reply in self._replies(sent, late, convert):
            if reply is not None and reply.death is not None:
                at_work = self._deadlines.at_work(worker, sent)
                lost.append(LostWorker(worker, reply.death, at_work, late.get(worker, {})))
                continue
            try:
                rest = self._transport.read(worker, sent, reply)
            except Unreadable as error:
                unreadable.append(UnreadableAnswers(worker, error.failure))
                continue
            answers = answers.merged(sent.early.pop(worker, Answers())).merged(rest.converted(convert))
        self._on_answers(sent.request.job, answers)
        if sent.request.job is Job.PLAY:
            self._cores.note_turn(time.monotonic() - sent.sent_at)
        for loss in lost:
            self._replace(loss.worker)
        return answers, [*lost, *unreadable]

    def abandon(self, sent: InFlightRequest) -> None:
        """Give up the answers of a request."""
        sent.abandoned = True
        if not self.pool.closed:
            for pending in sent.requests.values():
                self.pool.forget(pending)

    def _replies(
        self, sent: InFlightRequest, late: dict[int, dict[int, EnvFailure]], convert: Convert | None
    ) -> Iterator[tuple[int, Reply | None]]:
        """Yield each worker with its reply, or its death. Late workers are ended, with their failures in `late`.

        A caller with a core of its own polls for answers for a moment before it goes to sleep.
        """
        while sent.requests:
            self._read_early(sent, convert)
            worker, pending = next(iter(sent.requests.items()))
            until = time.monotonic() + self._cores.seconds_awake
            while pending.waiting and time.monotonic() < until:
                if sent.has_all_early(worker):  # so it is about to report that it is done
                    self.pool.pump(0.0)
                else:
                    self._read_early(sent, convert)
            while pending.waiting and not self.pool.wait(pending, self._deadlines.seconds_left(sent)):
                self._deadlines.end_late_workers(sent, late)
            yield worker, pending.replies.get(worker)
            del sent.requests[worker]

    def _read_early(self, sent: InFlightRequest, convert: Convert | None) -> None:
        """Read the parts of answers that have arrived, instead of waiting, while workers do the other parts."""
        has_more = list(sent.requests)
        while has_more:
            for worker in has_more.copy():
                part = self._transport.read_early(worker, sent)
                if part is None:
                    has_more.remove(worker)
                else:
                    sent.early[worker] = part.converted(convert).merged(sent.early.get(worker, Answers()))

    def _replace(self, worker: int) -> None:
        self._clocks[worker].clear()
        self._on_lost(self._envs_of[worker])
        self._without_envs.add(worker)
        self._transport.forget(worker)
        self.restarts += 1
        self.pool.restart(worker)
        self._host_envs((worker,))
        self._without_envs.discard(worker)

    # ---- the group --------------------------------------------------------------------------------------------------

    def num_bytes(self) -> int:
        return self._transport.num_bytes + sum(self.pool.meters(worker).num_bytes for worker in self._envs_of)

    def end_workers(self) -> None:
        """End the worker processes, also while another thread waits for them. `close` frees the rest."""
        _close_pool(self.pool)

    def close(self) -> None:
        _close_pool(self.pool)
        _close_blocks(self._blocks)
        # The callbacks belong to the placement, which holds this object: memory would stay until the collector runs.
        self._on_answers, self._on_lost = _ignore, _ignore


def _ignore(*arguments: object) -> None:
    """Do nothing."""


def _close_pool(pool: WorkerPool) -> None:
    with delay_ctrl_c():  # a pool whose closing was interrupted cannot be closed again
        pool.close()


def _close_blocks(blocks: Sequence[SharedBlock]) -> None:
    with delay_ctrl_c():  # a descriptor that is closed twice may belong to another file by then
        for block in blocks:
            block.close()


# ---- cores ----------------------------------------------------------------------------------------------------------

_SHORT_SECONDS = 0.01
_SHORT_TURNS = 3
_AWAKE_SECONDS = 1.5e-4
_WORKER_AWAKE_SECONDS = 5e-4
"""Longer than a program that does little takes between turns. A program that asks a language model takes longer, and
the worker then sleeps as usual."""


class WorkerCores:
    """The core of each worker, on which it is kept once its turns are known to be short.

    The system needs some milliseconds to see that one of its cores is idle while two workers, which were woken by the
    same caller, share the other. Till then they run one after the other, and a short turn is over. The same holds for a
    worker and a caller that works as well: `caller_works`, which then needs a core of its own.
    """

    def __init__(self, pool: WorkerPool, *, caller_works: bool = False) -> None:
        self._pool, self._caller_works = pool, caller_works
        self._num_short = 0
        self._cores: Sequence[int] = ()
        self._caller_core = -1

    @property
    def seconds_awake(self) -> float:
        """Return how long the caller polls for answers before it goes to sleep; waking up takes long.

        It polls only if it works as well, because all are then about to be done, and has a core that no worker needs.
        """
        return _AWAKE_SECONDS if self._caller_works and self._cores else 0.0

    def note_turn(self, seconds: float) -> None:
        """Record the duration of a turn. After a few short turns, keep each worker on one core."""
        if self._num_short == _SHORT_TURNS or seconds >= _SHORT_SECONDS:
            return
        self._num_short += 1
        if self._num_short == _SHORT_TURNS:
            self._caller_core = current_core() if self._caller_works else -1
            cores = cores_here()
            if len(cores) > 1:
                self._cores = assign_cores(self._pool.num_workers, [one for one in cores if one != self._caller_core])
            for worker, core in enumerate(self._cores):
                self._pool.keep_on(worker, (core,))
            if self._caller_works and len(set(self._cores)) == self._pool.num_workers:  # each has a core of its own
                for worker in self._pool.all_workers:
                    self._pool.keep_awake(worker, _WORKER_AWAKE_SECONDS)

    def wake_order(self, workers: Collection[int]) -> Collection[int]:
        """Return the order in which to wake workers that have a core each, seen from the caller's present core.

        Workers on other cores come first: they begin at once, the others when the caller waits. A caller that works
        does not wait, so no worker may be on its core: a worker there moves to the core that the caller has left.
        """
        if not self._cores:
            return workers
        here = current_core()
        if not self._caller_works:
            return sorted(workers, key=lambda worker: self._cores[worker] == here)
        if here in self._cores:
            before, self._caller_core = self._caller_core, here
            moved = [worker for worker, core in enumerate(self._cores) if core == here]
            self._cores = [before if core == here else core for core in self._cores]
            for worker in moved:
                self._pool.keep_on(worker, (before,))
        return workers


def assign_cores(num_workers: int, cores: Sequence[int]) -> list[int]:
    """Return a core for each worker if the workers fill these cores evenly, else an empty list."""
    if not cores or num_workers % len(cores):
        return []
    return [cores[worker % len(cores)] for worker in range(num_workers)]
