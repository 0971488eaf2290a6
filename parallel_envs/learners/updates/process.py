"""Agents' updates in worker processes, each of which owns its agents' brains for good.

    caller                                          worker
    plan  ──▶ shared block ── request ──▶           steps, Adam, statistics
    brain ◀── shared block ◀── report, version ──   all numbers of the new version

What is random has been drawn by then (`Plan`), so nothing but arrays travels. The caller's brains are whole at any
time: they change when a version has arrived, never while one is written. So a worker that dies loses nothing: another
one starts from the caller's numbers, and makes the same update from the same plan. One that hangs is ended when its
time is up, and from there on it is one that has died.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from parallel_envs.engine import HOST, Call, PendingRequest, PoolSettings, Reply, SharedBlock, cores_here, open_pool
from parallel_envs.errors import WorkerDied, WorkerTimeout
from parallel_envs.learners.algorithm import Agent, Plan, UpdateReport
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates.failures import (
    AGAIN,
    AN_UPDATE,
    GIVEN_UP,
    ITS_START,
    NOT_STARTED,
    STARTED_AGAIN,
    host_error,
    worker_died,
    worker_late,
)
from parallel_envs.learners.updates.mode import UpdateMode
from parallel_envs.learners.updates.process import LearnerHost, Outbox, plan_arrays, write_plan
from parallel_envs.vector.shared_arrays import Field
from parallel_envs.vector.shared_arrays import plan as lay_out

_log = logging.getLogger(__name__)

UPDATE_TIMEOUT = 600.0
"""Seconds for a round of updates, unless told otherwise. Updates take milliseconds to seconds; a run that hangs over
night costs more than one that ends and says what to give."""
_START_SECONDS = 300.0  # for a worker to import torch and build networks, on a machine that has other things to do
_TRIES = 2


class ProcessUpdates(UpdateMode):
    """Workers that learn, one for each core unless told otherwise, never more than agents.

    Args:
        brains: Of all agents.
        workers: How many.
        timeout: Seconds that a worker has for a round of its agents' updates; None: as long as it takes. One that needs
            longer is replaced and the update made again, as if it had died; the second time, `WorkerTimeout` is raised
            (for a death, `WorkerDied`). Updates may be made after it.
    """

    name = "process"
    is_elsewhere = True
    host: Callable[..., LearnerHost] = LearnerHost
    """Makes what lives in a worker."""
    niceness = 0
    """How readily workers leave the cores to others."""

    def __init__(
        self,
        brains: Mapping[Agent, AgentParameters],
        workers: int | None = None,
        timeout: float | None = UPDATE_TIMEOUT,
    ) -> None:
        super().__init__(brains)
        self.timeout = timeout
        num_workers = min(workers or len(cores_here()) or 1, len(self.brains))
        self._homes = _shared_out(self.brains, num_workers)
        self._forms = {agent: Outbox.form(brain.arrays()) for agent, brain in self.brains.items()}
        self._versions = dict.fromkeys(self.brains, 0)
        self._stale = set(self.brains)  # whose numbers the worker has not got
        self._outboxes: dict[Agent, Outbox] = {}
        self._out: dict[int, SharedBlock] = {}
        self._in: dict[int, SharedBlock] = {}
        self._late: dict[int, tuple[float | None, str]] = {}  # who was ended for it: after how long, and where it was
        # Nothing is preloaded: that would be in every later worker of this program, and torch is large.
        settings = PoolSettings(name="learner", niceness=self.niceness, start_timeout=_START_SECONDS)
        self._pool = open_pool(num_workers, settings)
        try:
            self._key = self._pool.new_key()
            for worker in range(num_workers):
                self._lay_out(worker)
            self._settle_in(range(num_workers))
        except BaseException:
            self.close()
            raise

    def _agents_of(self, worker: int) -> list[Agent]:
        return [agent for agent, home in self._homes.items() if home == worker]

    def _lay_out(self, worker: int) -> None:
        """Shared memory for what comes out of a worker."""
        end = 0
        for agent in self._agents_of(worker):
            fields, num_bytes = self._forms[agent]
            self._forms[agent] = tuple(_moved(field, end) for field in fields), num_bytes
            end += -(-num_bytes // 64) * 64
        block = self._out[worker] = SharedBlock.create(end)
        self._outboxes |= {agent: Outbox(block, self._forms[agent][0]) for agent in self._agents_of(worker)}

    def _settle_in(self, workers: Collection[int]) -> None:
        """Build the hosts of fresh workers. Those that do not live to see it are replaced, once."""
        for attempt in range(1, _TRIES + 1):
            replies = self._replies(self._pool.send(self._builds(workers)), _START_SECONDS)
            if failed := {worker: reply.failure for worker, reply in replies.items() if reply.failure is not None}:
                for worker in failed:
                    self._pool.kill(worker)  # without its host it is of no use; the next update replaces it
                worker, failure = next(iter(failed.items()))
                raise host_error(failure, self._agents_of(worker))
            workers = dead = {worker: reply for worker, reply in replies.items() if reply.death is not None}
            if not dead:
                return
            if attempt == _TRIES:
                raise self._fault_of(dead, ITS_START, NOT_STARTED)
            self._restart(dead, self._fault_of(dead, ITS_START, STARTED_AGAIN))

    def _builds(self, workers: Collection[int]) -> dict[int, Call]:
        calls = {}
        for worker in workers:
            agents = self._agents_of(worker)
            algorithms = {agent: self.brains[agent].algorithm for agent in agents}
            forms = {agent: self._forms[agent][0] for agent in agents}
            calls[worker] = Call(HOST, "build", (self._key, self.host, algorithms, self._out[worker], forms))
            self._stale.update(agents)
            self._in.pop(worker, None)
        return calls

    # ---- an update --------------------------------------------------------------------------------------------------

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        self._pool.check_open("Updates were to be made")  # before plans are written into shared memory
        reports: dict[Agent, UpdateReport] = {}
        for attempt in range(1, _TRIES + 1):
            waiting = {agent: plan for agent, plan in plans.items() if agent not in reports}
            calls = self._calls(waiting)
            self._stale |= waiting.keys()  # until a version has arrived: Ctrl-C or an error may come before
            replies = self._replies(self._pool.send(calls), self.timeout)
            for worker, reply in replies.items():
                if reply.death is None:
                    reports |= self._reports_in(worker, reply, waiting)
            dead = {worker: reply for worker, reply in replies.items() if reply.death is not None}
            if not dead:
                break
            self._replace(dead, give_up=attempt == _TRIES)
        self._take_in(reports)  # all at once: whom a worker has failed is not left behind the others
        return {agent: reports[agent] for agent in plans}

    def _reports_in(self, worker: int, reply: Reply, asked: Collection[Agent]) -> Mapping[Agent, UpdateReport]:
        """Of the agents of a worker. What it raised itself, it raised for all of them."""
        if reply.failure is None:
            reports: Mapping[Agent, UpdateReport] = reply.value
            return reports
        mine = [agent for agent in self._agents_of(worker) if agent in asked]
        return dict.fromkeys(mine, UpdateReport.of_nothing(failure=reply.failure))

    def _calls(self, plans: Mapping[Agent, Plan]) -> dict[int, Call]:
        """What each worker is to do. Its plans lie in shared memory then."""
        asks: dict[int, dict[Agent, Any]] = {}
        for worker in dict.fromkeys(self._homes[agent] for agent in plans):
            mine = {agent: plans[agent] for agent in self._agents_of(worker) if agent in plans}
            asks[worker] = self._placed(worker, mine)
        return {worker: Call(self._key, "update", (ask,)) for worker, ask in asks.items()}

    def _placed(self, worker: int, plans: Mapping[Agent, Plan]) -> dict[Agent, tuple[list[Field], int]]:
        forms, end = {}, 0
        for agent, plan in plans.items():
            fields, num_bytes = lay_out([(name, one.dtype, one.shape) for name, one in plan_arrays(plan).items()])
            forms[agent] = [_moved(field, end) for field in fields]
            end += -(-num_bytes // 64) * 64
        self._prepare(worker, plans, end)
        for agent, plan in plans.items():
            write_plan(self._in[worker], forms[agent], plan)
        return {agent: (form, self._versions[agent] + 1) for agent, form in forms.items()}

    def _prepare(self, worker: int, agents: Collection[Agent], num_bytes: int) -> None:
        """Have room for the plans, and see that the worker has the numbers it is to start from."""
        if worker not in self._in or self._in[worker].num_bytes < num_bytes:
            block = self._in[worker] = SharedBlock.create(num_bytes)
            self._tell(worker, "attach", block)
            block.close()
        stale = {agent: self.brains[agent].arrays() for agent in agents if agent in self._stale}
        if stale:
            self._tell(worker, "load", stale)

    def _take_in(self, reports: Mapping[Agent, UpdateReport]) -> None:
        """Versions have arrived, whole: they are the brains' from here on. Where an update raised, there is none."""
        for agent in [agent for agent, report in reports.items() if report.failure is None]:
            self._versions[agent] += 1
            self.brains[agent].load(self._outboxes[agent].get(self._versions[agent]))
            self._stale.discard(agent)

    def _replace(self, dead: Mapping[int, Reply], *, give_up: bool) -> None:
        """Put fresh workers in the place of those that have died in an update."""
        fault = self._fault_of(dead, AN_UPDATE, GIVEN_UP if give_up else AGAIN)
        self._restart(dead, None if give_up else fault)
        self._settle_in(dead)
        if give_up:
            raise fault

    def _restart(self, workers: Collection[int], fault: WorkerDied | WorkerTimeout | None) -> None:
        """`fault`: why, for the log."""
        if fault is not None:
            _log.warning("%s", "\n".join([str(fault), *getattr(fault, "__notes__", ())]))
        for worker in workers:
            self._pool.restart(worker)

    # ---- replies ----------------------------------------------------------------------------------------------------

    def _replies(self, ticket: PendingRequest, seconds: float | None) -> dict[int, Reply]:
        """What workers answer in time. Those that do not are ended: their death is the answer."""
        if not self._is_answered(ticket, seconds):
            for worker in sorted(ticket.waiting):
                stack = self._pool.stack(worker)
                self._pool.kill(worker)
                if (reply := ticket.replies.get(worker)) is not None and reply.death is not None:
                    self._late[worker] = seconds, stack
        return ticket.replies

    def _is_answered(self, ticket: PendingRequest, seconds: float | None) -> bool:
        return self._pool.wait(ticket, seconds)

    def _tell(self, worker: int, method: str, *arguments: Any) -> None:
        """Have a worker do something small. If it cannot any more, the next request is told so."""
        for reply in self._replies(self._pool.call(worker, self._key, method, *arguments), self.timeout).values():
            if reply.failure is not None:
                raise host_error(reply.failure, self._agents_of(worker))

    def _fault_of(self, dead: Mapping[int, Reply], doing: str, advice: str) -> WorkerDied | WorkerTimeout:
        """Why workers are not there any more: the first, with the others in notes."""
        first, *others = [self._fault(worker, reply, doing, advice) for worker, reply in sorted(dead.items())]
        for other in others:
            first.add_note(str(other))
        return first

    def _fault(self, worker: int, reply: Reply, doing: str, advice: str) -> WorkerDied | WorkerTimeout:
        """Why a worker is not there any more."""
        death, agents = reply.death, self._agents_of(worker)
        assert death is not None
        if worker in self._late:
            return worker_late(death, agents, doing, *self._late.pop(worker), advice)
        return worker_died(death, agents, doing, advice)

    def changed(self, agent: Agent) -> None:
        self._stale.add(agent)

    def close(self) -> None:
        self._pool.close()
        for block in (*self._out.values(), *self._in.values()):
            block.close()


def _shared_out(brains: Mapping[Agent, AgentParameters], num_workers: int) -> dict[Agent, int]:
    """The worker of each agent: large networks first, each to the worker that has the least to do."""
    load, homes = [0] * num_workers, {}
    for agent in sorted(brains, key=lambda agent: -brains[agent].matrix.weights.numel()):
        homes[agent] = load.index(min(load))
        load[homes[agent]] += brains[agent].matrix.weights.numel()
    return {agent: homes[agent] for agent in brains}


def _moved(field: Field, offset: int) -> Field:
    return dataclasses.replace(field, offset=field.offset + offset)
