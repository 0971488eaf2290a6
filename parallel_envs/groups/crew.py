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
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from parallel_envs.engine import HOST, Call, PoolSettings, Reply, Ticket, WorkerPool, dump_request, open_pool
from parallel_envs.errors import EnvError, RemoteTraceback, WorkerStartError
from parallel_envs.groups.clock import Clock, Limits
from parallel_envs.groups.failures import EnvFailure, of_lateness
from parallel_envs.groups.jobs import Answers, Job, Orders
from parallel_envs.groups.losses import Loss, Record, doing_of, is_reset
from parallel_envs.groups.player import Recipe
from parallel_envs.groups.shelf import Shelf
from parallel_envs.vector.registry import Registrations


@dataclass(slots=True)
class Asked:
    """A request on its way."""

    orders: Orders
    ticket: Ticket | None
    sent_at: float


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
        self._block = Clock.room(self._num_envs)
        self._clock = Clock(self._block, self._num_envs)
        weakref.finalize(self, self._block.close)  # the pool has one of its own
        self.restarts = 0
        try:
            settings = PoolSettings(context=context, preload=("parallel_envs.groups.shelf",), name="group worker")
            self.pool: WorkerPool = open_pool(len(self._held), settings)
        except BaseException:
            self._block.close()
            raise
        try:
            self._key = self.pool.new_key()
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
        what = (self._key, Shelf.in_worker, tags, recipes, self._limits, self._block, self._num_envs, registrations)
        return Call(HOST, "build", what)

    # ---- asking -----------------------------------------------------------------------------------------------------

    def begin(self, orders: Orders) -> Asked:
        """Ask. Nobody is waited for."""
        by_worker: dict[int, dict[int, tuple[Job, ...]]] = {}
        for env, jobs in orders.items():
            by_worker.setdefault(self.homes[env], {})[env] = jobs
        self._clock.request += 1
        number = self._clock.request
        calls = {worker: Call(self._key, "work", (_as_bytes(own), number)) for worker, own in by_worker.items()}
        ticket = self.pool.send(calls) if calls else None
        return Asked(orders, ticket, time.monotonic())

    def end(self, asked: Asked) -> tuple[Answers, list[Loss]]:
        """Wait for the answers. Workers that were lost have been replaced; their environments have not answered."""
        if asked.ticket is None:
            return {}, []
        late = self._wait(asked)
        answers: Answers = {}
        losses = []
        for worker, reply in sorted(asked.ticket.replies.items()):
            if reply.death is not None:
                losses.append(Loss(worker, reply.death, self._at_work(worker), late.get(worker, {})))
            else:
                _check(reply)
                answers |= pickle.loads(reply.value)
        self._found(answers)
        for loss in losses:
            self._replace(loss.worker)
        return answers, losses

    def forget(self, asked: Asked) -> None:
        """Nobody wants the answers any more."""
        if asked.ticket is not None and not self.pool.closed:
            self.pool.forget(asked.ticket)

    def _wait(self, asked: Asked) -> dict[int, dict[int, EnvFailure]]:
        """Wait until each worker has answered or is dead. Returns who was late, by the workers that were ended."""
        late: dict[int, dict[int, EnvFailure]] = {}
        ticket = asked.ticket
        assert ticket is not None
        while ticket.waiting and not self.pool.wait(ticket, self._patience(asked, ticket)):
            now = time.monotonic()
            for worker in sorted(ticket.waiting):
                blamed = self._clock.late(self._held[worker], now)
                if blamed or now >= self._lost_at(worker, asked):
                    late[worker] = self._failures_of_late(worker, blamed, asked.orders)
                    self.pool.kill(worker)
        return late

    def _patience(self, asked: Asked, ticket: Ticket) -> float | None:
        """Seconds until somebody can be late at the earliest."""
        first = min(self._lost_at(worker, asked) for worker in ticket.waiting)
        return None if first == math.inf else max(first - time.monotonic(), 0.0)

    def _lost_at(self, worker: int, asked: Asked) -> float:
        """When a worker is to be given up: its environment is late, or it works for none and must be stuck."""
        held, limit = self._held[worker], self._limits.step
        if self._clock.is_any_at_work(held):
            return self._clock.next_due(held)
        return math.inf if limit is None else max(asked.sent_at, self._clock.last_end(held)) + limit

    def _failures_of_late(self, worker: int, envs: Sequence[int], orders: Orders) -> dict[int, EnvFailure]:
        stack = self.pool.stack(worker)
        return {
            env: of_lateness(env, self._tags[env], doing_of(orders, env), self._seconds(orders, env), worker, stack)
            for env in envs
        }

    def _seconds(self, orders: Orders, env: int) -> float | None:
        return self._limits.reset if is_reset(orders, env) else self._limits.step

    # ---- losses -----------------------------------------------------------------------------------------------------

    def _at_work(self, worker: int) -> list[int]:
        return self._clock.at_work(self._held[worker])

    def _replace(self, worker: int) -> None:
        held = self._held[worker]
        self._clock.clear(held)
        self._lost(held)
        self.restarts += 1
        self.pool.restart(worker)
        self._settle_in((worker,))

    def do(self, first: Asked, again: Callable[[Collection[int]], Orders]) -> dict[int, list[Any] | EnvFailure]:
        """Bring a request to an end, whatever becomes of the workers.

        `again` gives the orders for environments that are to be asked once more.
        """
        told: dict[int, list[Any] | EnvFailure] = {}
        record = Record(first.orders, self._tags)
        asked: Asked | None = first
        queues: dict[int, list[list[int]]] = {}
        while asked is not None:
            try:
                answers, losses = self.end(asked)
            except BaseException:
                self.forget(asked)
                raise
            told |= answers
            for loss in losses:
                unanswered = [env for env in asked.orders if self.homes[env] == loss.worker]
                failed, batches = record.judge(loss, unanswered)
                told |= failed
                queues[loss.worker] = [batch for batch in batches if batch] + queues.get(loss.worker, [])
            envs = [env for batches in queues.values() if batches for env in batches.pop(0)]
            asked = self.begin(again(envs)) if envs else None
        return told

    def num_bytes(self) -> int:
        """What has travelled to the workers and back so far."""
        return sum(self.pool.meters(worker).num_bytes for worker in self._held)

    def close(self) -> None:
        self.pool.close()
        self._block.close()


def _as_bytes(orders: Orders) -> bytes:
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
