"""The worker processes of a manager: they are asked all at once, and the lost ones among them are replaced.

An environment that raised answers so itself. A worker that dies or hangs is another matter: the clock says which of
its environments were at work. A fresh worker takes its place, and its environments are brought to where they stood by
replay (`Homes` adds that to their orders). What was asked is then asked again, as `losses` says.
"""

from __future__ import annotations

import contextlib
import math
import pickle
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from parallel_envs.engine import (
    HOST,
    Call,
    PoolSettings,
    Reply,
    SharedBlock,
    Ticket,
    WorkerPool,
    dump_request,
    open_pool,
)
from parallel_envs.engine.completions import undisturbed
from parallel_envs.errors import EnvError, RemoteTraceback, WorkerStartError
from parallel_envs.groups.clock import Clock, Limits
from parallel_envs.groups.cores import Cores
from parallel_envs.groups.failures import EnvFailure, of_lateness
from parallel_envs.groups.jobs import Answers, Job, Request, Told
from parallel_envs.groups.losses import Loss, Record, doing_of
from parallel_envs.groups.mailbox import Mailbox
from parallel_envs.groups.player import Recipe
from parallel_envs.groups.shelf import Shelf
from parallel_envs.vector.registry import Registrations


@dataclass(slots=True)
class Asked:
    """A request on its way: the tickets of the workers whose answers have not been read.

    Before `first_due` nobody can be late.
    """

    request: Request
    sent_at: float
    first_due: float
    tickets: dict[int, Ticket] = field(default_factory=dict)


class Crew:
    """Workers that hold environments for good.

    Args:
        homes: The worker of each environment.
        tags: The tag of each.
        recipes: How those of a tag are made.
        limits: How long they may take.
        context: The start method.
        found: Called with the environments that have done what they were asked to.
        lost: Called with the environments whose worker is being replaced.
    """

    def __init__(
        self,
        homes: Mapping[int, int],
        tags: Mapping[int, str],
        recipes: Mapping[str, Recipe],
        limits: Limits,
        context: str | None,
        *,
        found: Callable[[Collection[int]], None],
        lost: Callable[[Collection[int]], None],
    ) -> None:
        self.homes, self._tags, self._recipes, self._limits = dict(homes), tags, recipes, limits
        self._found, self._lost = found, lost
        self._held = {worker: [env for env in homes if homes[env] == worker] for worker in sorted(set(homes.values()))}
        self._num_envs = max(homes) + 1
        self._blocks = [Clock.room(self._num_envs), *(Mailbox.room() for _ in self._held)]
        self._clock = Clock(self._blocks[0], self._num_envs)
        self._boxes = dict(zip(self._held, map(Mailbox, self._blocks[1:]), strict=True))
        self._busy: set[int] = set()  # who may still be using its mailbox
        self._empty: set[int] = set()  # who holds no environments yet, since a Ctrl-C came between
        weakref.finalize(self, _close_all, self._blocks)  # the pool has one of its own
        self.restarts = self._num_bytes = 0
        try:
            settings = PoolSettings(context=context, preload=("parallel_envs.groups.shelf",), name="group worker")
            self.pool: WorkerPool = open_pool(len(self._held), settings)
        except BaseException:
            _close_all(self._blocks)
            raise
        try:
            self._key, self._cores = self.pool.new_key(), Cores(self.pool)
            self._settle_in(tuple(self._held))
        except BaseException:
            self.close()
            raise

    def _settle_in(self, workers: Sequence[int]) -> None:
        """Give workers their environments, which are made when they are first asked for something.

        A worker that dies of it is replaced when it is asked for something.
        """
        registrations = Registrations.here()
        ticket = self.pool.send({worker: self._shelf_call(worker, registrations) for worker in workers})
        if not self.pool.wait(ticket, self._limits.start):
            raise WorkerStartError(f"{ticket}: no word from these workers within {self._limits.start} seconds.")
        for reply in ticket.replies.values():
            _check(reply)

    def _shelf_call(self, worker: int, registrations: Registrations) -> Call:
        tags = {env: self._tags[env] for env in self._held[worker]}
        recipes = {tag: self._recipes[tag] for tag in set(tags.values())}
        clock, box = self._blocks[0], self._blocks[1 + list(self._held).index(worker)]
        what = (tags, recipes, self._limits, clock, self._num_envs, box, registrations)
        return Call(HOST, "build", (self._key, Shelf.in_worker, *what))

    # ---- asking -----------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> Asked:
        """Ask. Nobody is waited for."""
        parts = self._parts(request)
        for worker in self._empty.intersection(parts):
            self._replace(worker)
        self._clock.request += 1
        now = time.monotonic()  # who is busy with an earlier request, which was interrupted, is late sooner
        asked = Asked(request, now, now if self._busy else now + self._limits.shortest())
        with undisturbed():  # a message that a Ctrl-C cuts in two would spoil all that follow it
            for worker in self._cores.far_first(parts):
                asked.tickets[worker] = self._ask(worker, _as_bytes((self._clock.request, *parts[worker].plain())))
        return asked

    def _parts(self, request: Request) -> dict[int, Request]:
        """What each worker is asked."""
        homes, parts = self.homes, dict[int, dict[int, Told]]()
        for env, told in request.asked.items():
            worker = homes[env]
            if worker in parts:
                parts[worker][env] = told
            else:
                parts[worker] = {env: told}
        restores = request.restores.items()
        return {
            worker: Request(request.job, part, {env: one for env, one in restores if env in part})
            for worker, part in parts.items()
        }

    def _ask(self, worker: int, data: bytes) -> Ticket:
        """By its mailbox, or by a message where that is not free or too small."""
        fits = worker not in self._busy and self._boxes[worker].ask(data)
        self._busy.add(worker)
        if not fits:
            return self.pool.call(worker, self._key, "work", data)
        self._num_bytes += len(data)
        return self.pool.ring(self._key, 0, (worker,))

    def end(self, asked: Asked) -> tuple[Answers, list[Loss]]:
        """Wait for the answers. Workers that were lost have been replaced; their environments have not answered."""
        answers, losses = Answers(), list[Loss]()
        late: dict[int, dict[int, EnvFailure]] = {}
        for worker, reply in self._replies(asked, late):
            if reply is not None and reply.death is not None:
                losses.append(Loss(worker, reply.death, self._at_work(worker), late.get(worker, {})))
            else:
                answers.add(self._read(worker, reply))
        self._found(answers.told)
        self._found(answers.broken)
        if asked.request.job is Job.PLAY:
            self._cores.note_turn(time.monotonic() - asked.sent_at)
        for loss in losses:
            self._replace(loss.worker)
        return answers, losses

    def forget(self, asked: Asked) -> None:
        """Nobody wants the answers any more."""
        if not self.pool.closed:
            for ticket in asked.tickets.values():
                self.pool.forget(ticket)

    def _read(self, worker: int, reply: Reply | None) -> Answers:
        """What a worker has answered: while it is read, others are still at work."""
        if reply is None:
            data = self._boxes[worker].answered()
            self._num_bytes += len(data)
        else:
            _check(reply)
            data = reply.value
        answers = Answers(*pickle.loads(data))
        self._busy.discard(worker)
        return answers

    def _replies(self, asked: Asked, late: dict[int, dict[int, EnvFailure]]) -> Iterator[tuple[int, Reply | None]]:
        """What each worker has answered, or its death. Who is late goes into `late`, and its worker is ended."""
        while asked.tickets:
            worker, ticket = next(iter(asked.tickets.items()))
            while ticket.waiting and not self.pool.wait(ticket, self._patience(asked)):
                self._end_late(asked, late)
            yield worker, ticket.replies.get(worker)
            del asked.tickets[worker]

    def _end_late(self, asked: Asked, late: dict[int, dict[int, EnvFailure]]) -> None:
        """End the workers that are to be given up."""
        now = time.monotonic()
        for worker in [worker for worker, ticket in asked.tickets.items() if ticket.waiting]:
            blamed = self._clock.late(self._held[worker], now)
            if blamed or now >= self._lost_at(worker, asked):
                late[worker] = self._failures_of_late(worker, blamed, asked.request)
                self.pool.kill(worker)

    def _patience(self, asked: Asked) -> float | None:
        """Seconds until somebody can be late at the earliest."""
        now, first = time.monotonic(), asked.first_due
        if first <= now:
            first = min(self._lost_at(worker, asked) for worker, ticket in asked.tickets.items() if ticket.waiting)
        return None if first == math.inf else max(first - now, 0.0)

    def _lost_at(self, worker: int, asked: Asked) -> float:
        """When a worker is to be given up: its environment is late, or it works for none and must be stuck."""
        held, limit = self._held[worker], self._limits.step
        if self._clock.is_any_at_work(held):
            return self._clock.next_due(held)
        return math.inf if limit is None else max(asked.sent_at, self._clock.last_end(held)) + limit

    def _failures_of_late(self, worker: int, envs: Sequence[int], request: Request) -> dict[int, EnvFailure]:
        stack = self.pool.stack(worker)
        return {
            env: of_lateness(env, self._tags[env], doing_of(request, env), self._seconds(request, env), worker, stack)
            for env in envs
        }

    def _seconds(self, request: Request, env: int) -> float | None:
        return self._limits.reset if request.job is Job.RESET and env in request.asked else self._limits.step

    # ---- losses -----------------------------------------------------------------------------------------------------

    def _at_work(self, worker: int) -> list[int]:
        return self._clock.at_work(self._held[worker])

    def _replace(self, worker: int) -> None:
        held = self._held[worker]
        self._clock.clear(held)
        self._lost(held)
        self._empty.add(worker)
        self._busy.discard(worker)
        self.restarts += 1
        self.pool.restart(worker)
        self._settle_in((worker,))
        self._empty.discard(worker)

    def do(self, first: Asked, again: Callable[[Collection[int]], Request]) -> tuple[Answers, dict[int, EnvFailure]]:
        """Bring a request to an end, whatever becomes of the workers: the answers, and who has failed with its worker.

        `again` gives the request for environments that are to be asked once more.
        """
        told, failed = Answers(), dict[int, EnvFailure]()
        record = Record(first.request, self._tags)
        asked: Asked | None = first
        queues: dict[int, list[list[int]]] = {}
        while asked is not None:
            try:
                answers, losses = self.end(asked)
            except BaseException:
                self.forget(asked)
                raise
            told.add(answers)
            for loss in losses:
                unanswered = [env for env in asked.request.asked if self.homes[env] == loss.worker]
                guilty, batches = record.judge(loss, unanswered)
                failed |= guilty
                queues[loss.worker] = [batch for batch in batches if batch] + queues.get(loss.worker, [])
            envs = [env for batches in queues.values() if batches for env in batches.pop(0)]
            asked = self.begin(again(envs)) if envs else None
        return told, failed

    def num_bytes(self) -> int:
        """What has travelled to the workers and back so far."""
        return self._num_bytes + sum(self.pool.meters(worker).num_bytes for worker in self._held)

    def close(self) -> None:
        self.pool.close()
        _close_all(self._blocks)


def _close_all(blocks: Sequence[SharedBlock]) -> None:
    for block in blocks:
        block.close()


def _as_bytes(orders: Told) -> bytes:
    """Plain pickle is several times as quick as what sends functions by value, which orders hardly ever hold."""
    with contextlib.suppress(Exception):
        return pickle.dumps(orders, pickle.HIGHEST_PROTOCOL)
    data, _ = dump_request(orders)
    return data


def _check(reply: Reply) -> None:
    """Raise what a worker reports that concerns none of its environments in particular."""
    if reply.failure is not None:
        failure = reply.failure
        text = f"A worker could not do its part: {failure.type_name}: {failure.message}"
        kind = EnvError.named(failure.type_name)
        raise kind(text, type_name=failure.type_name, remote_message=failure.message) from RemoteTraceback(
            failure.traceback
        )
