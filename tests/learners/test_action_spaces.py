"""Actions may be numbered from anywhere: what lies in the place of those that nobody took is no action then."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from pettingzoo import ParallelEnv

from parallel_envs.choices import UpdateModeName
from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig
from parallel_envs.learners.distributions import stochastic_head
from parallel_envs.learners.updates import MODES
from parallel_envs.multiagent import MultiAgentEnvManager

SPACES: dict[str, Any] = {
    "from one": Discrete(3, start=1),
    "from five": Discrete(3, start=5),
    "below nothing": Discrete(3, start=-3),
    "several": MultiDiscrete([2, 3], start=[1, -9]),
    "far away": Box(5.0, 7.0, (2,)),
}
PPO = PPOConfig(rollout_length=8, minibatch_size=8, num_epochs=1, hidden=(4,))
GRU = PPOConfig(rollout_length=8, minibatch_size=8, num_epochs=1, hidden=(4,), network="gru", memory_size=4)
DQN = DQNConfig(batch_size=8, learning_starts=8, hidden=(4,))


class Numbered(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """Three steps. Each agent acts in a space of its own, and nobody takes what is not in it."""

    metadata = {"name": "numbered"}  # noqa: RUF012  # PettingZoo's form
    possible_agents = [  # noqa: RUF012  # PettingZoo's form
        *(f"{space}, {config}" for space in SPACES for config in ("ppo", "gru")),
        *(f"{space}, dqn" for space in list(SPACES)[:3]),
    ]

    def observation_space(self, agent: str) -> Any:
        return Box(-1.0, 1.0, (2,))

    def action_space(self, agent: str) -> Any:
        return SPACES[agent.split(",")[0]]

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.step_count = list(self.possible_agents), 0
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self) -> Any:
        return {agent: np.full(2, self.step_count / 4, np.float32) for agent in self.agents}

    def step(self, actions: Any) -> Any:
        assert all(self.action_space(agent).contains(action) for agent, action in actions.items())
        self.step_count += 1
        there, over = self.agents, self.step_count == 3
        told = self.seen(), dict.fromkeys(there, 1.0), dict.fromkeys(there, over), dict.fromkeys(there, False)
        self.agents = [] if over else there
        return *told, {agent: {} for agent in there}


@pytest.mark.parametrize("mode", MODES)
def test_agents_whose_actions_begin_elsewhere_learn_in_every_mode(mode: UpdateModeName) -> None:
    """Episodes are reset on the way: those rows hold zeros, which are none of their actions."""
    kinds = {"ppo": PPO, "gru": GRU, "dqn": DQN}
    configs = {agent: kinds[agent.split(", ")[1]] for agent in Numbered.possible_agents}
    with (
        MultiAgentEnvManager([Numbered] * 2, backend="serial") as envs,
        IndependentLearners(envs, configs, update_mode=mode, workers=1, on_divergence="raise") as learners,
    ):
        learners.train(40)
        assert all(one.counters["updates"] >= 2 for one in learners.agents.values())


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_what_is_no_action_becomes_one_and_actions_stay_what_they_are(space: Any) -> None:
    head = stochastic_head(space)
    taken = np.stack([space.sample() for _ in range(20)])
    again = head.numbers(taken)
    inside, filler = head.numbers(np.zeros_like(taken)), np.zeros_like(taken)
    if isinstance(space, Box):
        assert (again.min(), again.max(), inside.min()) >= (-1, -1, -1)
        return
    starts, sizes = (space.start, space.n) if isinstance(space, Discrete) else (space.start, space.nvec)
    np.testing.assert_array_equal(again + starts, taken)
    assert ((inside >= 0) & (inside < sizes)).all()
    assert not np.array_equal(inside + starts, filler)
