"""The agent as it learns: its network, its random generator, its memory of what it lived, its counters."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Space
from torch import nn

from parallel_envs.learners.algorithm import AlgorithmConfig, Diverged, UpdateReport
from parallel_envs.learners.config import BadSettings
from parallel_envs.learners.meta.agent import AGENT_ARCHS, MetaPolicy, make_algorithm
from parallel_envs.learners.meta.memory import MemoryConfig
from parallel_envs.learners.meta.sequences import RolloutBuffer, RolloutToBatch
from parallel_envs.learners.networks import GruCell
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates.sequential import update_one
from parallel_envs.rollouts import Rollouts
from parallel_envs.rollouts.priorities import PrioritizedReplayBuffer
from parallel_envs.rollouts.replay import ReplayBuffer
from parallel_envs.seeding import SeedTree

_ROWS = 8
"""Rollouts that are stored side by side."""


class MetaAgent:
    """One agent that learns from whole rollouts.

    Args:
        config: `PPOConfig`, `DQNConfig` or `SACConfig`.
        arch: Whether it remembers, and where.
        form: What remembers.
        observation_space: As `MultiEpisodeWrapper` shows it.
        action_space: The same.
        lesson: How rollouts are told to it.
        memory_span: Steps that memories last at the beginning; see `outlast`.
        seed: All that is random about it is a child of this.
    """

    def __init__(
        self,
        config: AlgorithmConfig,
        arch: AGENT_ARCHS,
        form: MemoryConfig,
        observation_space: Space[Any],
        action_space: Space[Any],
        lesson: RolloutToBatch,
        memory_span: int,
        seed: SeedTree,
    ) -> None:
        self.config, self.arch, self.form, self.lesson = config, arch, form, lesson
        self.algorithm = make_algorithm(config, arch, observation_space, action_space, form)
        self.parameters = AgentParameters(self.algorithm, seed.child("network").seed())
        outlast(self.parameters.module, memory_span)
        self.generator = seed.child("draws").generator()
        self.counters: dict[str, Any] = {"steps": 0, "updates": 0, "skipped": 0, "frozen": False}
        self.memory = None if self.algorithm.on_policy else _new_memory(config, arch, observation_space, action_space)
        self._pending: list[Any] = []

    # ---- living -----------------------------------------------------------------------------------------------------

    def policy(self, *, deterministic: bool = False) -> MetaPolicy:
        """A policy that acts as this agent does, now and after it has learnt more."""
        self.algorithm.explore(self.parameters.module, self.counters["steps"])
        return MetaPolicy(self.parameters.module.actor, self.algorithm, deterministic=deterministic)

    def lived(self, rollouts: Rollouts) -> None:
        """Take in what was collected, for the next update."""
        self.counters["steps"] += rollouts.num_steps
        if self.memory is None:
            self._pending += rollouts
        else:
            self.lesson.store(rollouts, self.memory)
            if isinstance(self.memory, RolloutBuffer):
                self.memory.longest = max(self.memory.longest, *map(len, rollouts))

    # ---- learning ---------------------------------------------------------------------------------------------------

    def update(self, num_updates: int = 1, rate: float = 1.0) -> dict[str, float]:
        """Learn. Returns means of metrics.

        Args:
            num_updates: How often, for those that learn from a replay buffer.
            rate: By what the config's learning rate is multiplied.

        Raises:
            Diverged: A loss or a gradient was not finite; the numbers are as they were before.
        """
        self.algorithm.config = self.config
        reports = [self._update_once(rate) for _ in range(num_updates if self.memory is not None else 1)]
        return {name: float(np.mean([report.metrics[name] for report in reports])) for name in reports[0].metrics}

    def _update_once(self, rate: float) -> UpdateReport:
        experience: Any = self.memory
        if self.memory is None:
            experience, self._pending = self.lesson.trajectory(Rollouts(self._pending)), []
            self._fit(experience.valid.size)
        plan = self.algorithm.draw(experience, self.generator, self.counters["updates"])
        learning_rate = self.config.learning_rate_after(self.counters["updates"]) * rate
        report = update_one(self.parameters, dataclasses.replace(plan, learning_rate=learning_rate))
        if report.diverged is not None:
            self.counters["skipped"] += 1
            raise Diverged(f"The agent has learnt nothing: {report.diverged}.", [self.algorithm.agent])
        if report.taught is not None and isinstance(self.memory, PrioritizedReplayBuffer):
            self.memory.update_priorities(plan.arrays["indices"], report.taught)
        self.counters["updates"] += 1
        return report

    def _fit(self, num_rows: int) -> None:
        """Rollouts that ended early may make a batch smaller than a minibatch: then it is one."""
        config: Any = self.algorithm.config
        self.algorithm.config = dataclasses.replace(config, minibatch_size=min(config.minibatch_size, num_rows))

    # ---- keeping ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that it is, for `save_checkpoint`. Rollouts that were collected and not learnt from are not in it."""
        form = {"name": self.algorithm.name, "arch": str(self.arch), "memory": dataclasses.asdict(self.form)}
        state = {
            "config": {**form, **dataclasses.asdict(self.config)},
            "arrays": {name: array.copy() for name, array in self.parameters.arrays().items()},
            "counters": dict(self.counters),
            "generator": {"draws": copy.deepcopy(self.generator.bit_generator.state)},
        }
        if self.memory is not None:
            state["memory"] = self.memory.state()
        return state

    def load_state(self, state: dict[str, Any]) -> None:
        """Become what `state` told. ValueError if it does not fit; then nothing has changed."""
        self.parameters.load(dict(state["arrays"]))
        self.counters |= state["counters"]
        self.generator.bit_generator.state = copy.deepcopy(state["generator"]["draws"])
        self._pending = []
        if self.memory is not None and "memory" in state:
            self.memory.load_state(state["memory"])


def outlast(module: nn.Module, span: int) -> None:
    """Have what GRUs remember fade over 1 to `span` steps, each number over its own, until they have learnt better.

    A gate without a bias forgets half of everything at each step, and what is forgotten cannot be learnt from.
    """
    for part in module.modules():
        if isinstance(part, GruCell):
            size = part.remembered.in_features
            with torch.no_grad():  # what is kept is the second of three gates: sigmoid(log(n)) is 1 - 1 / (n + 1)
                part.seen.bias[size : 2 * size] = torch.linspace(1.0, float(span), size).log()


def _new_memory(config: Any, arch: AGENT_ARCHS, seen: Space[Any], done: Space[Any]) -> ReplayBuffer:
    if config.buffer_size < _ROWS:
        raise BadSettings(f"`policy.algorithm.buffer_size: {config.buffer_size}` is too small. Give at least {_ROWS}.")
    given: Any = (seen, done, config.buffer_size, _ROWS)
    returns: Any = {"num_steps": config.num_steps, "discount": config.discount}
    if arch is not AGENT_ARCHS.Markov:
        return RolloutBuffer(*given, **returns)
    if not getattr(config, "prioritized", 0.0):
        return ReplayBuffer(*given, **returns)
    return PrioritizedReplayBuffer(*given, alpha=config.prioritized, beta=config.prioritized_correction, **returns)
