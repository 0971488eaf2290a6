"""How many updates agents that replay make for each step that they live."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Agent

_REPAID = "repaid"
_ROUNDING = 1e-9  # a third, three times, is to be a whole one


class Ratios:
    """Keeps `updates_per_step`, from `learning_starts` on: an agent owes updates for steps, and each repays some.

    What has been repaid is among the agent's counters, so a run that is resumed goes on where it was.

    Args:
        agents: All of them.
        ratio: What those keep that learn from a replay buffer. None: one update whenever it is time. Others make one
            for each rollout.
    """

    def __init__(self, agents: Mapping[Agent, AgentLearner], ratio: float | None) -> None:
        self._agents, self._ratio = agents, ratio

    def num_owed(self, agent: Agent) -> int:
        """Updates that an agent is to make now, when it is time."""
        learner = self._agents[agent]
        if self._ratio is None or learner.algorithm.on_policy:
            return 1
        owed: int = math.floor((learner.counters["steps"] - self._repaid(learner)) * self._ratio + _ROUNDING)
        return owed

    def repay(self, agent: Agent) -> None:
        """One of them is being made."""
        learner = self._agents[agent]
        if self._ratio is not None and not learner.algorithm.on_policy:
            learner.counters[_REPAID] = self._repaid(learner) + 1 / self._ratio

    def _repaid(self, learner: AgentLearner) -> float:
        """Steps for which updates have been made. Nothing is owed for those of which nobody asked: it was frozen, or
        learnt in another way.
        """
        config: Any = learner.config
        assert self._ratio is not None
        most_since = config.train_interval * learner.memory.num_rows + 1 / self._ratio
        return float(max(learner.counters.get(_REPAID, config.learning_starts), learner.counters["steps"] - most_since))
