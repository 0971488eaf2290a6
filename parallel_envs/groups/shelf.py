"""The environments of one place: a worker, or the caller.

In a worker, orders and answers are bytes: plain pickle of small values, and whatever cannot be pickled is the failure
of the one environment that gave it.
"""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_envs.engine import Failure, SharedBlock, dump_reply, let_ctrl_c_through
from parallel_envs.groups.clock import Clock, Limits
from parallel_envs.groups.jobs import Answers, Broken, Job, Measure, Orders, Play, Render, Reset, Restore
from parallel_envs.groups.player import Player, Recipe, drop_quietly

if TYPE_CHECKING:
    from parallel_envs.vector.registry import Registrations
    from parallel_envs.wrappers.pool import Threads

_DOING = {Play: "its turn", Reset: "its reset", Restore: "its replay", Render: "render", Measure: "metrics"}
MAKING = "its construction"


class Shelf:
    """Environments by number, each of a recipe."""

    def __init__(self, tags: Mapping[int, str], recipes: Mapping[str, Recipe], *, copies: bool) -> None:
        self._recipes = {env: recipes[tag] for env, tag in tags.items()}
        self._players = {env: Player(recipe, copies=copies) for env, recipe in self._recipes.items()}
        self._any_waits = any(recipe.threads > 1 for recipe in recipes.values())
        self._limits = Limits()
        self._clock: Clock | None = None
        self._threads: Threads | None = None

    @classmethod
    def in_worker(
        cls,
        tags: Mapping[int, str],
        recipes: Mapping[str, Recipe],
        limits: Limits,
        block: SharedBlock,
        num_envs: int,
        registrations: Registrations | None,
    ) -> Shelf:
        """The environments of a worker: their times are kept in `block`."""
        shelf = cls(tags, recipes, copies=False)
        shelf._limits, shelf._clock = limits, Clock(block, num_envs)
        if registrations is not None:
            registrations.install()
        return shelf

    def work(self, orders: bytes, request: int) -> bytes:
        """`do`, for those who are asked from another process, in a request of this number."""
        if self._clock is not None:
            self._clock.request = request
        answers = self.do(pickle.loads(orders))
        try:
            return pickle.dumps(answers, pickle.HIGHEST_PROTOCOL)
        except Exception:  # noqa: BLE001  # whatever user code raises when it is pickled
            return dump_reply({env: self._sendable(env, told) for env, told in answers.items()})

    def _sendable(self, env: int, told: list[Any]) -> list[Any]:
        try:
            dump_reply(told)
        except Exception as error:  # noqa: BLE001  # the same
            drop_quietly(self._players[env])
            return [Broken("sending its answer", Failure.of(error))]
        return told

    def do(self, orders: Orders) -> Answers:
        """Have the jobs done. An environment that raises answers `Broken`; its other jobs are left out."""
        waiting: Orders = {}
        if self._any_waits and self._clock is not None:  # in the caller, one after the other
            waiting = {env: jobs for env, jobs in orders.items() if self._recipes[env].threads > 1}
        threads = self._start_waiting(waiting)
        answers = {env: self._do_all(env, jobs) for env, jobs in orders.items() if env not in waiting}
        for collect in threads:
            answers |= collect()
        return answers

    def _start_waiting(self, orders: Orders) -> list[Callable[[], Answers]]:
        """Let threads do this: whoever is free takes the next. Returns what to call for their answers."""
        queues: dict[str, deque[int]] = {}
        for env in orders:
            queues.setdefault(self._recipes[env].tag, deque()).append(env)
        futures = [
            self._own_threads().submit(self._take, queue, orders)
            for queue in queues.values()
            for _ in range(min(len(queue), self._recipes[queue[0]].threads))
        ]
        return [future.result for future in futures]

    def _take(self, queue: deque[int], orders: Orders) -> Answers:
        answers: Answers = {}
        while True:
            try:
                env = queue.popleft()
            except IndexError:
                return answers
            answers[env] = self._do_all(env, orders[env])

    def _own_threads(self) -> Threads:
        if self._threads is None:
            from parallel_envs.wrappers.pool import Threads

            self._threads = Threads("environment")
        return self._threads

    def _do_all(self, env: int, jobs: tuple[Job, ...]) -> list[Any]:
        if len(jobs) == 1:
            return [self._do(env, jobs[0])]
        answers: list[Any] = []
        for job in jobs:
            answers.append(self._do(env, job))
            if isinstance(answers[-1], Broken):
                break
        return answers

    def _do(self, env: int, job: Job) -> Any:
        player, clock, doing = self._players[env], self._clock, MAKING
        try:
            if not player.made:
                if clock is not None:
                    clock.begin(env, np.inf if self._limits.start is None else self._limits.start)
                player.make()
            doing = _DOING[type(job)]
            if clock is not None:
                clock.begin(env, self._limits.of(job))
            return player.do(job)
        except BaseException as error:  # noqa: BLE001  # SystemExit too: an environment may not end its worker by raising
            let_ctrl_c_through(error)
            if not isinstance(job, Render | Measure):  # these leave it as it was
                drop_quietly(player)
            return Broken(doing, Failure.of(error))
        finally:
            if clock is not None:
                clock.end(env)

    def close(self) -> None:
        """Close all environments. What they raise is of no interest any more."""
        for player in self._players.values():
            drop_quietly(player)
        if self._threads is not None:
            self._threads.close()
