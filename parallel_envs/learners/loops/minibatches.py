"""Minibatches that grow while learning is behind, and shrink while it waits.

An update from larger minibatches takes fewer steps of Adam for the same data, so it is over sooner; one from smaller
ones makes more of it. What is best depends on how long each side takes, so this is for "free" only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Agent


class Minibatches:
    """Sizes for all agents, between two bounds. `restore` puts back what the configs said.

    Args:
        agents: Whose they are.
        bounds: The smallest and the largest.
    """

    def __init__(self, agents: Mapping[Agent, AgentLearner], bounds: tuple[int, int]) -> None:
        self._agents, self._bounds = agents, bounds
        self._configs = {agent: one.algorithm.config for agent, one in agents.items()}
        low, high = bounds
        self.sizes = {agent: min(max(getattr(own, _field(own)), low), high) for agent, own in self._configs.items()}
        self._waits = 0.0, 0.0
        for agent in agents:
            self._put(agent)

    def adapt(self, agent: Agent, collect_waited: float, learn_waited: float) -> None:
        """Choose the size of an agent's next minibatches. The arguments are all seconds that each side has waited."""
        behind = collect_waited - self._waits[0] - (learn_waited - self._waits[1])
        self._waits = collect_waited, learn_waited
        if behind:
            size = self.sizes[agent]
            self.sizes[agent] = min(size * 2, self._bounds[1]) if behind > 0 else max(size // 2, self._bounds[0])
            self._put(agent)

    def _put(self, agent: Agent) -> None:
        config = self._configs[agent]
        self._agents[agent].algorithm.config = dataclasses.replace(config, **{_field(config): self.sizes[agent]})

    def restore(self) -> None:
        for agent, config in self._configs.items():
            self._agents[agent].algorithm.config = config


def _field(config: object) -> str:
    return "minibatch_size" if hasattr(config, "minibatch_size") else "batch_size"
