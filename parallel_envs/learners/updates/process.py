"""Agents' updates in worker processes, each of which owns its agents' brains for good.

    caller                                          worker
    plan  ──▶ shared block ── request ──▶           steps, Adam, statistics
    brain ◀── shared block ◀── report, version ──   all numbers of the new version

What is random has been drawn by then (`Plan`), so nothing but arrays travels. The caller's brains are whole at any
time: they change when a version has arrived, never while one is written. So a worker that dies loses nothing: another
one starts from the caller's numbers, and makes the same update from the same plan.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from parallel_envs.engine import HOST, Call, PoolSettings, Reply, SharedBlock, Ticket, cores_here, open_pool
from parallel_envs.errors import RemoteError, RemoteTraceback, WorkerDied
from parallel_envs.learners.algorithm import Agent, Plan
from parallel_envs.learners.brain import Brain, Report
from parallel_envs.learners.updates.mode import UpdateMode
from parallel_envs.learners.updates.process_host import LearnerHost, Outbox, plan_arrays, write_plan
from parallel_envs.vector.layout import Field
from parallel_envs.vector.layout import plan as lay_out

_TRIES = 2


class ProcessUpdates(UpdateMode):
    """Workers that learn, one for each core unless told otherwise, never more than agents."""

    name = "process"
    host: Callable[..., LearnerHost] = LearnerHost
    """Makes what lives in a worker."""

    def __init__(self, brains: Mapping[Agent, Brain], workers: int | None = None) -> None:
        super().__init__(brains)
        num_workers = min(workers or len(cores_here()) or 1, len(self.brains))
        self._homes = _shared_out(self.brains, num_workers)
        self._forms = {agent: Outbox.form(brain.arrays()) for agent, brain in self.brains.items()}
        self._versions = dict.fromkeys(self.brains, 0)
        self._stale = set(self.brains)  # whose numbers the worker has not got
        self._outboxes: dict[Agent, Outbox] = {}
        self._out: dict[int, SharedBlock] = {}
        self._in: dict[int, SharedBlock] = {}
        # Nothing is preloaded: that would be in every later worker of this program, and torch is large.
        self._pool = open_pool(num_workers, PoolSettings(name="learner"))
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
        """Build the hosts of fresh workers."""
        calls = {}
        for worker in workers:
            agents = self._agents_of(worker)
            algorithms = {agent: self.brains[agent].algorithm for agent in agents}
            forms = {agent: self._forms[agent][0] for agent in agents}
            calls[worker] = Call(HOST, "build", (self._key, self.host, algorithms, self._out[worker], forms))
            self._stale.update(agents)
            self._in.pop(worker, None)
        self._answers(self._pool.send(calls))

    # ---- an update --------------------------------------------------------------------------------------------------

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, Report]:
        reports: dict[Agent, Report] = {}
        for attempt in range(1, _TRIES + 1):
            waiting = {agent: plan for agent, plan in plans.items() if agent not in reports}
            replies = self._replies(self._pool.send(self._calls(waiting)))
            for reply in replies.values():
                if reply.death is None:
                    reports |= self._taken_in(_value(reply))
            dead = {worker: reply for worker, reply in replies.items() if reply.death is not None}
            if not dead:
                break
            self._replace(dead, give_up=attempt == _TRIES)
        return {agent: reports[agent] for agent in plans}

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
            self._pool.wait(self._pool.call(worker, self._key, "attach", block))
            block.close()
        stale = {agent: self.brains[agent].arrays() for agent in agents if agent in self._stale}
        if stale:
            self._pool.wait(self._pool.call(worker, self._key, "load", stale))
            self._stale -= stale.keys()

    def _taken_in(self, reports: Mapping[Agent, Report]) -> Mapping[Agent, Report]:
        """A version has arrived, whole: it is the brain's from here on."""
        for agent in reports:
            self._versions[agent] += 1
            self.brains[agent].load(self._outboxes[agent].get(self._versions[agent]))
        return reports

    def _replace(self, dead: Mapping[int, Reply], *, give_up: bool) -> None:
        """Put fresh workers in the place of those that have died."""
        for worker in dead:
            self._pool.restart(worker)
        self._settle_in(dead)
        if give_up:
            raise _died(next(iter(dead.values())), [agent for worker in dead for agent in self._agents_of(worker)])

    # ---- replies ----------------------------------------------------------------------------------------------------

    def _replies(self, ticket: Ticket) -> dict[int, Reply]:
        self._pool.wait(ticket)
        return ticket.replies

    def _answers(self, ticket: Ticket) -> None:
        for worker, reply in self._replies(ticket).items():
            if reply.death is not None:
                raise _died(reply, self._agents_of(worker))
            _value(reply)

    def changed(self, agent: Agent) -> None:
        self._stale.add(agent)

    def close(self) -> None:
        self._pool.close()
        for block in (*self._out.values(), *self._in.values()):
            block.close()


def _shared_out(brains: Mapping[Agent, Brain], num_workers: int) -> dict[Agent, int]:
    """The worker of each agent: large networks first, each to the worker that has the least to do."""
    load, homes = [0] * num_workers, {}
    for agent in sorted(brains, key=lambda agent: -brains[agent].strip.weights.numel()):
        homes[agent] = load.index(min(load))
        load[homes[agent]] += brains[agent].strip.weights.numel()
    return {agent: homes[agent] for agent in brains}


def _moved(field: Field, offset: int) -> Field:
    return dataclasses.replace(field, offset=field.offset + offset)


def _value(reply: Reply) -> Any:
    if reply.failure is None:
        return reply.value
    failure = reply.failure
    error = RemoteError.named(failure.type_name)(
        f"An update in a learner's worker raised {failure.type_name}: {failure.message}",
        type_name=failure.type_name,
        remote_message=failure.message,
    )
    error.__cause__ = RemoteTraceback(failure.traceback)
    raise error


def _died(reply: Reply, agents: list[Agent]) -> WorkerDied:
    death = reply.death
    assert death is not None
    code = death.exitcode
    how = f"was killed by signal {-code}" if code is not None and code < 0 else f"exited with code {code}"
    last = "".join(f"\n  {line}" for line in death.last_output)
    return WorkerDied(
        f"The worker that learns for {agents} (pid {death.pid}) {how} during an update. What they had learnt before is "
        "kept, and another worker has taken its place: update again, or use another update_mode."
        + (f" Its last output:{last}" if last else ""),
        worker=death.worker,
        pid=death.pid,
        exitcode=code,
    )
