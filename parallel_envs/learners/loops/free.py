"""Each side as fast as it can, within bounds that are always kept.

- `queue`: the side that collects waits while so many plans have not been begun.
- `max_lag`: it waits before a rollout of an agent whose acting weights are further behind the updates that are planned.
- `updates_per_step`: an agent that replays makes as many updates, whenever it is its time, as bring it there; the side
  that collects waits for them as `max_lag` says (`ratios.py`).

So a rollout that begins is learnt from by weights at most `max_lag` updates ahead of those that acted: no experience
has to be thrown away for being too old.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from parallel_envs.learners.algorithm import Agent, Plan
from parallel_envs.learners.loops.beside import BesideLoop, rounds_of
from parallel_envs.learners.loops.jobs import Result
from parallel_envs.learners.loops.loop import Metrics
from parallel_envs.learners.loops.minibatches import Minibatches
from parallel_envs.learners.loops.options import LoopOptions
from parallel_envs.learners.loops.ratios import Ratios

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners


class FreeLoop(BesideLoop):
    """As fast as it goes: what comes of it depends on time."""

    def __init__(self, learners: IndependentLearners, options: LoopOptions, workers: int) -> None:
        super().__init__(learners, options, workers, merge=True)
        self._replaying = [agent for agent, one in learners.agents.items() if not one.algorithm.on_policy]
        self._ratios = Ratios(learners.agents, options.updates_per_step)
        self._minibatches = Minibatches(learners.agents, options.minibatch) if options.minibatch else None

    def advance(self) -> Metrics:
        with self._accounts.collecting():
            self.learners.step()
        metrics = self._take_over(self._replaying)
        for agent, learner in self.learners.agents.items():
            for _ in range(self._ratios.num_owed(agent) if learner.ready else 0):
                metrics |= self._hand_over(agent)
        return metrics

    def _take_over(self, agents: list[Agent]) -> Metrics:
        """Note what these agents have learnt, and act with it."""
        results = self.side.take(agents)
        metrics = self._note(results)
        self._adopt_all(results)
        return metrics

    def _adopt_all(self, results: list[Result]) -> None:
        for round_ in rounds_of(results):
            self._adopt(round_)

    def _hand_over(self, agent: Agent) -> Metrics:
        """Plan an agent's update, and wait until there is room for it and its next rollout may begin."""
        if self._minibatches is not None and self.options.learn_in != "serial":  # where nobody waits for the other
            self._minibatches.adapt(agent, self._accounts.waited, self.side.waited)
        metrics = self._note(done := self.side.take([agent]))
        with self._accounts.collecting():
            self._ratios.repay(agent)
            job = self._plan(agent)
        self._adopt_all(done)
        if job is not None:
            self._wait_for_room()
            self.side.submit([job])
        self._wait_for_lag(agent)
        return metrics | self._take_over([agent])

    def _wait_for_room(self) -> None:
        limit = self.options.queue
        assert limit is not None
        self._wait(lambda side: side.num_waiting < limit)

    def _wait_for_lag(self, agent: Agent) -> None:
        most = self.options.max_lag
        self._wait(lambda side: side.num_unlearnt([agent]) <= most)

    def _kept(self, plan: Plan) -> Plan:
        """A copy: the memory that it was drawn from may be written over before it is learnt from."""
        return dataclasses.replace(plan, arrays={name: np.array(array) for name, array in plan.arrays.items()})

    def stop(self) -> None:
        super().stop()
        if self._minibatches is not None:
            self._minibatches.restore()
