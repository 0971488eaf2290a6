"""Which actions are allowed and what they are: masks, and spaces of actions that begin anywhere."""

from __future__ import annotations

import textwrap
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.taxi import TaxiEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from pettingzoo import ParallelEnv

from parallel_envs.choices import UpdateModeName
from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig, networks
from parallel_envs.learners.updates import MODES
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import OneAgent

CONFIG = PPOConfig(rollout_length=8, minibatch_size=8, hidden=(4,))


class Told(gymnasium.Env[Any, Any]):
    """Four steps, in which only `mask` says what may be done."""

    def __init__(self, space: Any, mask: Any) -> None:
        self.observation_space = Dict({"observation": Box(-1.0, 1.0, (2,)), "action_mask": space})
        self.action_space, self.mask = Discrete(3), mask

    def seen(self) -> Any:
        return {"observation": np.zeros(2, np.float32), "action_mask": np.array(self.mask)}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.step_count = 0
        return self.seen(), {}

    def step(self, action: Any) -> Any:
        assert self.mask[action] == 1
        self.step_count += 1
        return self.seen(), 1.0, self.step_count == 4, False, {}


def told(space: Any, mask: Any) -> MultiAgentEnvManager:
    return MultiAgentEnvManager([lambda: OneAgent(Told(space, mask))] * 2, backend="serial")


def test_the_wrapper_that_is_recommended_has_masks_of_infos_seen() -> None:
    """As Gymnasium's Taxi tells them, where an action that does nothing is masked."""
    assert networks.__doc__ is not None
    code = textwrap.dedent(networks.__doc__.partition("observation:\n\n")[2])
    names: dict[str, Any] = {"gymnasium": gymnasium, "Dict": Dict, "MultiBinary": MultiBinary}
    exec(code, names)  # it is what readers are told to write
    masked: Any = names["Masked"]
    with (
        MultiAgentEnvManager([lambda: OneAgent(masked(TaxiEnv()))] * 2, backend="serial") as envs,
        IndependentLearners(envs, CONFIG, update_mode="sequential", seed=1) as learners,
    ):
        learners.train(100)
        (one,) = learners.agents.values()
        assert one.counters["updates"] >= 6
        learners.begin(seed=3)
        for _ in range(30):
            assert learners._observations is not None
            (seen,), (actions,) = learners._observations.values(), learners.act().values()
            assert seen["action_mask"][np.arange(2), actions].all()
            learners.step()
            learners.update()


SPACES: dict[str, Any] = {
    "from one": Discrete(3, start=1),
    "from five": Discrete(3, start=5),
    "below nothing": Discrete(3, start=-3),
    "several": MultiDiscrete([2, 3], start=[1, -9]),
    "far away": Box(5.0, 7.0, (2,)),
}
MLP = PPOConfig(rollout_length=8, minibatch_size=8, num_epochs=1, hidden=(4,))
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


@pytest.mark.parametrize(
    "mode", ["sequential", *(pytest.param(mode, marks=pytest.mark.slow) for mode in MODES if mode != "sequential")]
)
def test_agents_whose_actions_begin_elsewhere_learn_in_every_mode(mode: UpdateModeName) -> None:
    """Episodes are reset on the way: those rows hold zeros, which are none of their actions."""
    kinds = {"ppo": MLP, "gru": GRU, "dqn": DQN}
    configs = {agent: kinds[agent.split(", ")[1]] for agent in Numbered.possible_agents}
    with (
        MultiAgentEnvManager([Numbered] * 2, backend="serial") as envs,
        IndependentLearners(envs, configs, update_mode=mode, workers=1, on_divergence="raise") as learners,
    ):
        learners.train(40)
        assert all(one.counters["updates"] >= 2 for one in learners.agents.values())


@pytest.mark.parametrize(
    "config", [CONFIG, DQNConfig(batch_size=4, learning_starts=4, hidden=(4,))], ids=["ppo", "dqn"]
)
def test_masks_of_flags_are_taken_and_values_that_are_none_are_refused_before_they_are_learnt_from(config: Any) -> None:
    masks: list[Any] = [MultiBinary(3), Box(0, 1, (3,), np.int8), Box(0.0, 1.0, (3,)), MultiDiscrete([2, 2, 2])]
    for mask in masks:
        with (
            told(mask, np.array([0, 1, 1], mask.dtype)) as envs,
            IndependentLearners(envs, config, update_mode="sequential", on_divergence="raise") as learners,
        ):
            learners.train(40)  # in which no other action is taken
            assert all(one.counters["updates"] for one in learners.agents.values())
    for value in (-np.inf, 2.0, 0.5, np.nan):
        with (
            told(Box(0.0, 1.0, (3,)), np.array([1, 1, value], np.float32)) as envs,
            IndependentLearners(envs, config, update_mode="sequential") as learners,
        ):
            (agent,) = learners.agents
            with pytest.raises(ValueError, match=rf"^Agent {agent!r}: its action_mask holds {value}.*`mask == 0`"):
                learners.train(40)
            assert learners.agents[agent].counters["steps"] == 0
