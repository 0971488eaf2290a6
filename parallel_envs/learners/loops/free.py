"""The free loop: collecting and learning each run as fast as they can, within bounds that always hold.

- `queue`: collecting waits while so many plans have not been started.
- `max_lag`: collecting waits before a rollout of an agent whose acting weights are further behind its planned updates.
- `updates_per_step`: an agent with a replay buffer makes, whenever its updates are due, as many as keep this ratio.
  Collecting waits for them as `max_lag` says.

So weights that learn from a rollout are at most `max_lag` updates newer than the weights that acted in it, and no
experience has to be dropped as too old.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Agent
from parallel_envs.learners.loops.loop import AsyncLoop, LoopOptions, Metrics

if TYPE_CHECKING:
    from parallel_envs.learners.independent import IndependentLearners

_REPAID = "repaid"  # an agent's counter, which checkpoints hold
_ROUNDING = 1e-9  # three times a third is to be a whole update


class FreeLoop(AsyncLoop):
    """Collects and learns as fast as possible. The result depends on timing.

    `updates_per_step` holds from `learning_starts` on: steps make updates due, and each update repays some steps. The
    repaid steps are one of the agent's counters, so a resumed run continues where it was.
    """

    merges_rounds = True
    copies_plans = True  # the memory may be overwritten before the plan is learnt from

    def __init__(self, learners: IndependentLearners, options: LoopOptions, workers: int) -> None:
        super().__init__(learners, options, workers)
        self._replaying = [agent for agent, one in learners.agents.items() if not one.algorithm.on_policy]
        self._ratios = dict.fromkeys(self._replaying, options.updates_per_step) if options.updates_per_step else {}
        self._minibatches = MinibatchSizes(learners.agents, options.minibatch) if options.minibatch else None

    def advance(self) -> Metrics:
        with self._accounts.timed("collect"):
            self.learners.step()
        metrics = self._take_results(self._replaying)
        for agent, learner in self.learners.agents.items():
            if not learner.ready:
                continue
            num_due = 1
            if agent in self._ratios:
                missing = learner.counters["steps"] - self._repaid(agent)
                num_due = math.floor(missing * self._ratios[agent] + _ROUNDING)
            for _ in range(num_due):
                metrics |= self._plan_update(agent)
        return metrics

    def _take_results(self, agents: list[Agent]) -> Metrics:
        """Record what these agents have learnt, and act with it."""
        results = self.updates.take(agents)
        metrics = self._record(results)
        self._adopt(results)
        return metrics

    def _plan_update(self, agent: Agent) -> Metrics:
        """Submit an agent's next update, and wait until there is room for it and the agent's next rollout may begin."""
        if self._minibatches is not None and self.options.learn_in != "serial":  # in series, nothing ever waits
            self._minibatches.adapt(agent, self._accounts.seconds["wait"], self.updates.waited)
        metrics = self._record(results := self.updates.take([agent]))
        with self._accounts.timed("collect"):
            if agent in self._ratios:
                repaid = self._repaid(agent) + 1 / self._ratios[agent]
                self.learners.agents[agent].counters[_REPAID] = repaid
            job = self._next_job(agent)
        self._adopt(results)
        queue, max_lag = self.options.queue, self.options.max_lag
        assert queue is not None
        if job is not None:
            self._wait(lambda updates: updates.num_waiting < queue)
            self.updates.submit([job])
        self._wait(lambda updates: updates.num_unfinished([agent]) <= max_lag)
        return metrics | self._take_results([agent])

    def _repaid(self, agent: Agent) -> float:
        """Return the steps for which updates have been made. Steps while the agent was frozen or learnt otherwise count
        as repaid.
        """
        learner = self.learners.agents[agent]
        most_since = learner.config.train_interval * learner.memory.num_rows + 1 / self._ratios[agent]
        repaid = learner.counters.get(_REPAID, learner.config.learning_starts)
        return float(max(repaid, learner.counters["steps"] - most_since))

    def stop(self) -> None:
        super().stop()
        if self._minibatches is not None:
            self._minibatches.restore()


class MinibatchSizes:
    """Minibatch sizes that grow while learning is behind and shrink while learning waits.

    With larger minibatches an update takes fewer steps of Adam for the same data and is faster. Smaller minibatches
    make more of the data. The best size depends on timing, so only the free loop adapts it.
    """

    def __init__(self, agents: Mapping[Agent, AgentLearner], bounds: tuple[int, int]) -> None:
        self._agents, self._bounds = agents, bounds
        self._configs: dict[Agent, Any] = {agent: one.algorithm.config for agent, one in agents.items()}
        self._fields: dict[Agent, str] = {}
        self.sizes: dict[Agent, int] = {}
        self._waits = 0.0, 0.0
        for agent, own in self._configs.items():
            field = self._fields[agent] = "minibatch_size" if hasattr(own, "minibatch_size") else "batch_size"
            self._set_size(agent, min(max(getattr(own, field), bounds[0]), bounds[1]))

    def adapt(self, agent: Agent, collect_waited: float, learn_waited: float) -> None:
        """Choose the size of an agent's next minibatches, from the seconds that each part of the loop has waited."""
        behind = collect_waited - self._waits[0] - (learn_waited - self._waits[1])
        self._waits = collect_waited, learn_waited
        if behind:
            size, (low, high) = self.sizes[agent], self._bounds
            self._set_size(agent, min(size * 2, high) if behind > 0 else max(size // 2, low))

    def _set_size(self, agent: Agent, size: int) -> None:
        self.sizes[agent] = size
        self._agents[agent].algorithm.config = dataclasses.replace(self._configs[agent], **{self._fields[agent]: size})

    def restore(self) -> None:
        """Restore the configs as they were."""
        for agent, config in self._configs.items():
            self._agents[agent].algorithm.config = config
