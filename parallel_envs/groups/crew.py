"""The worker processes of a manager: they are asked all at once, and the lost ones among them are replaced.

An environment that raised answers so itself. A worker that dies or hangs is another matter: the clock says which of
its environments were at work. A fresh worker takes its place, and its environments are brought to where they stood by
replay (`Homes` adds that to their orders). What was asked is then asked again, as `losses` says.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from parallel_envs.choices import StartMethod
from parallel_envs.engine import HOST, Call, PoolSettings, Reply, SharedBlock, WorkerPool, open_pool
from parallel_envs.engine.interrupts import delay_ctrl_c
from parallel_envs.errors import ClosedError, WorkerStartError
from parallel_envs.groups.clock import Clock, Limits
from parallel_envs.groups.cores import Cores
from parallel_envs.groups.deadlines import Asked, Deadlines
from parallel_envs.groups.failures import EnvFailure
from parallel_envs.groups.jobs import Answers, Job, Read, Request
from parallel_envs.groups.losses import Garbled, Loss, Record
from parallel_envs.groups.mailbox import Mailbox
from parallel_envs.groups.player import Recipe
from parallel_envs.groups.post import Post, Unreadable, as_bytes, check
from parallel_envs.groups.shelf import Shelf
from parallel_envs.vector.registry import Registrations

_LEAST_START_SECONDS = 5.0  # what a new process is given, however little time its environments have


class Crew:
    """Workers that hold environments for good.

    Args:
        homes: The worker of each environment.
        tags: The tag of each.
        recipes: How those of a tag are made.
        limits: How long they may take.
        context: The start method.
        caller_works: Whether the caller plays for some of its own while they play.
        answered: Called with all answers to what was asked, as soon as they have been read.
        lost: Called with the environments whose worker is being replaced.
    """

    def __init__(
        self,
        homes: Mapping[int, int],
        tags: Mapping[int, str],
        recipes: Mapping[str, Recipe],
        limits: Limits,
        context: StartMethod | None,
        *,
        caller_works: bool,
        answered: Callable[[Job, Answers], None],
        lost: Callable[[Collection[int]], None],
    ) -> None:
        self.homes, self._tags, self._recipes, self._limits = dict(homes), tags, recipes, limits
        self._answered, self._lost, self._caller_works = answered, lost, caller_works
        self._held = {worker: [env for env in homes if homes[env] == worker] for worker in sorted(set(homes.values()))}
        self._num_envs = max(homes) + 1
        self._empty: set[int] = set()  # who holds no environments yet, since a Ctrl-C came between
        self._blocks = list[SharedBlock]()  # that of the clocks, and a mailbox for each worker
        weakref.finalize(self, _close_all, self._blocks)  # the pool has one of its own
        self.restarts, self._numbers = 0, itertools.count(1)
        with contextlib.ExitStack() as undo:
            self._start(context, undo)
            self._settle_in(tuple(self._held))
            undo.pop_all()

    def _start(self, context: StartMethod | None, undo: contextlib.ExitStack) -> None:
        """Start the workers, each with its mailbox. `undo` is told how that is undone."""
        seconds = None if self._limits.start is None else max(self._limits.start, _LEAST_START_SECONDS)
        modules = ("parallel_envs.groups.shelf",)
        settings = PoolSettings(context=context, preload=modules, name="group worker", start_timeout=seconds)
        undo.callback(_close_all, self._blocks)
        with delay_ctrl_c():  # short beside what follows; a worker that nobody knows of yet would be left over
            self._blocks.append(Clock.room(self._num_envs, len(self._held)))
            for _ in self._held:
                self._blocks.append(Mailbox.room())
            self.pool: WorkerPool = open_pool(len(self._held), settings)
            undo.callback(_close_pool, self.pool)
        self._clocks = [Clock(self._blocks[0], self._num_envs, worker) for worker in self._held]
        boxes = map(Mailbox, self._blocks[1:])
        self._key, self._cores = self.pool.new_key(), Cores(self.pool, caller_works=self._caller_works)
        self._post = Post(self.pool, self._key, dict(zip(self._held, boxes, strict=True)))
        self._deadlines = Deadlines(self.pool, self._clocks, self._limits, self._held, self._tags)

    def _settle_in(self, workers: Sequence[int]) -> None:
        """Give workers their environments, which are made when they are first asked for something.

        A worker that dies of it is replaced when it is asked for something.
        """
        registrations = Registrations.here()
        ticket = self.pool.send({worker: self._shelf_call(worker, registrations) for worker in workers})
        if not self.pool.wait(ticket, self._limits.start):
            raise WorkerStartError(f"{ticket}: no word from these workers within {self._limits.start} seconds.")
        for reply in ticket.replies.values():
            check(reply)

    def _shelf_call(self, worker: int, registrations: Registrations) -> Call:
        tags = {env: self._tags[env] for env in self._held[worker]}
        recipes = {tag: self._recipes[tag] for tag in set(tags.values())}
        clocks, box = self._blocks[0], self._blocks[1 + worker]
        what = (tags, recipes, self._limits, clocks, self._num_envs, worker, box, registrations)
        return Call(HOST, "build", (self._key, Shelf.in_worker, *what))

    # ---- asking -----------------------------------------------------------------------------------------------------

    def begin(self, request: Request) -> Asked:
        """Ask, and nobody is waited for. Environments that live elsewhere are not asked."""
        if (owner := self.pool.forked_from) is not None:  # its mailboxes are those of the process it was forked from
            raise ClosedError(
                f"These environments live in workers of process {owner}, and process {os.getpid()} was forked "
                "from it. Copy the manager there, by copy.deepcopy: the copy has workers of its own."
            )
        self.pool.check_open("Environments were asked for something")
        parts = self._parts(request)
        for worker in self._empty.intersection(parts):
            self._replace(worker)
        number = next(self._numbers)
        for clock in self._clocks:
            clock.request = number
        now = first_due = time.monotonic()
        if not self._post.is_any_busy:  # who is busy with an earlier request, which was interrupted, is late sooner
            first_due += self._limits.shortest()
        asked = Asked(request, number, now, first_due)
        with delay_ctrl_c():  # a message that a Ctrl-C cuts in two would spoil all that follow it
            for worker in self._cores.in_order(parts):
                data = as_bytes((asked.number, *parts[worker].plain()), has_values=bool(parts[worker].restores))
                asked.owed[worker] = len(parts[worker].asked)
                asked.tickets[worker] = self._post.send(worker, asked, data)
        return asked

    def _parts(self, request: Request) -> dict[int, Request]:
        """What each worker is asked."""
        asked, parts = request.asked, dict[int, Request]()
        for worker, held in self._held.items():
            if part := {env: asked[env] for env in held if env in asked}:
                parts[worker] = request.only(part)
        return parts

    def elsewhere(self, request: Request) -> Request:
        """What concerns environments that live in no worker."""
        homes = self.homes
        return request.only({env: told for env, told in request.asked.items() if env not in homes})

    def end(self, asked: Asked, read: Read | None = None) -> tuple[Answers, list[Loss | Garbled]]:
        """Wait for the answers. Workers that were lost have been replaced; their environments have not answered."""
        answers, losses, garbled = Answers(), list[Loss](), list[Garbled]()
        late: dict[int, dict[int, EnvFailure]] = {}
        for worker, reply in self._replies(asked, late, read):
            if reply is not None and reply.death is not None:
                losses.append(Loss(worker, reply.death, self._deadlines.at_work(worker, asked), late.get(worker, {})))
                continue
            try:
                rest = self._post.read(worker, asked, reply)
            except Unreadable as error:
                garbled.append(Garbled(worker, error.failure))
                continue
            answers = answers.joined(asked.early.pop(worker, Answers())).joined(rest.read(read))
        self._answered(asked.request.job, answers)
        if asked.request.job is Job.PLAY:
            self._cores.note_turn(time.monotonic() - asked.sent_at)
        for loss in losses:
            self._replace(loss.worker)
        return answers, [*losses, *garbled]

    def forget(self, asked: Asked) -> None:
        """Nobody wants the answers any more."""
        asked.given_up = True
        if not self.pool.closed:
            for ticket in asked.tickets.values():
                self.pool.forget(ticket)

    def _replies(
        self, asked: Asked, late: dict[int, dict[int, EnvFailure]], read: Read | None
    ) -> Iterator[tuple[int, Reply | None]]:
        """What each worker has answered, or its death. Who is late goes into `late`, and its worker is ended.

        A caller with a core of its own looks for answers for a moment before it goes to sleep.
        """
        while asked.tickets:
            self._read_early(asked, read)
            worker, ticket = next(iter(asked.tickets.items()))
            until = time.monotonic() + self._cores.seconds_awake
            while ticket.waiting and time.monotonic() < until:
                if asked.has_all_early(worker):  # so it is about to say that it is done
                    self.pool.pump(0.0)
                else:
                    self._read_early(asked, read)
            while ticket.waiting and not self.pool.wait(ticket, self._deadlines.patience(asked)):
                self._deadlines.end_late(asked, late)
            yield worker, ticket.replies.get(worker)
            del asked.tickets[worker]

    def _read_early(self, asked: Asked, read: Read | None) -> None:
        """Read what is there of the answers, instead of waiting, while workers are at the others."""
        has_more = list(asked.tickets)
        while has_more:
            for worker in has_more.copy():
                part = self._post.early(worker, asked)
                if part is None:
                    has_more.remove(worker)
                else:
                    asked.early[worker] = part.read(read).joined(asked.early.get(worker, Answers()))

    # ---- losses -----------------------------------------------------------------------------------------------------

    def _replace(self, worker: int) -> None:
        self._clocks[worker].clear()
        self._lost(self._held[worker])
        self._empty.add(worker)
        self._post.forget(worker)
        self.restarts += 1
        self.pool.restart(worker)
        self._settle_in((worker,))
        self._empty.discard(worker)

    def do(
        self, first: Asked, again: Callable[[Collection[int]], Request], read: Read | None = None
    ) -> tuple[Answers, dict[int, EnvFailure]]:
        """Bring a request to an end, whatever becomes of the workers: the answers, and who has failed with its worker.

        `again` gives the request for environments that are to be asked once more.
        """
        told, failed = Answers(), dict[int, EnvFailure]()
        record = Record(first.request, self._tags)
        asked: Asked | None = first
        queues: dict[int, list[list[int]]] = {}
        while asked is not None:
            try:
                answers, losses = self.end(asked, read)
            except BaseException:
                self.forget(asked)
                raise
            told = told.joined(answers)
            for loss in losses:
                unanswered = [env for env in asked.request.asked if self.homes.get(env) == loss.worker]
                self._lost(unanswered)  # also those whose answers nobody could read: they have done what was asked
                guilty, batches = record.judge(loss, unanswered)
                failed |= guilty
                queues[loss.worker] = [batch for batch in batches if batch] + queues.get(loss.worker, [])
            envs = [env for batches in queues.values() if batches for env in batches.pop(0)]
            asked = self.begin(again(envs)) if envs and not record.is_in_vain(failed) else None
        return told, failed

    def num_bytes(self) -> int:
        """What has travelled to the workers and back so far."""
        return self._post.num_bytes + sum(self.pool.meters(worker).num_bytes for worker in self._held)

    def end_workers(self) -> None:
        """End the worker processes, also while another thread waits for them. `close` gives up the rest."""
        _close_pool(self.pool)

    def close(self) -> None:
        _close_pool(self.pool)
        _close_all(self._blocks)
        self._answered, self._lost = _unheard, _unheard  # else memory stays until the collector finds the circle


def _unheard(*what: object) -> None:
    """Who is told is gone."""


def _close_pool(pool: WorkerPool) -> None:
    with delay_ctrl_c():  # a pool whose closing was cut short is not closed by closing it again
        pool.close()


def _close_all(blocks: Sequence[SharedBlock]) -> None:
    with delay_ctrl_c():  # a descriptor that is closed once more may be somebody else's by then
        for block in blocks:
            block.close()
