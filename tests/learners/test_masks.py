"""Which actions are allowed: where that is looked for, and what is refused rather than read as something else."""

from __future__ import annotations

import textwrap
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.toy_text.taxi import TaxiEnv
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete

from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig, masks
from parallel_envs.learners.masks import check_flags
from parallel_envs.learners.ppo import PPO
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import OneAgent

CONFIG = PPOConfig(rollout_length=8, minibatch_size=8, hidden=(4,))
SEEN = Box(-1.0, 1.0, (2,))


def beside(mask: Any) -> Dict:
    return Dict({"observation": SEEN, "action_mask": mask})


class Told(gymnasium.Env[Any, Any]):
    """Four steps, in which only `mask` says what may be done."""

    def __init__(self, space: Any, mask: Any) -> None:
        self.observation_space, self.action_space, self.mask = beside(space), Discrete(3), mask

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


@pytest.mark.parametrize(
    "mask", [MultiBinary(3), Box(0, 1, (3,), np.int8), Box(0.0, 1.0, (3,)), MultiDiscrete([2, 2, 2])]
)
def test_masks_of_flags_are_taken(mask: Any) -> None:
    with (
        told(mask, np.array([0, 1, 1], mask.dtype)) as envs,
        IndependentLearners(envs, CONFIG, update_mode="sequential", on_divergence="raise") as learners,
    ):
        learners.train(40)  # in which no other action is taken
        assert all(one.counters["updates"] for one in learners.agents.values())


@pytest.mark.parametrize(
    "mask",
    [
        Box(-np.inf, 0.0, (3,)),
        Box(-1.0, 1.0, (3,)),
        Box(0, 255, (3,), np.uint8),
        MultiDiscrete([2, 3, 2]),
        MultiDiscrete([2, 2, 2], start=[1, 0, 0]),
        MultiBinary(4),
    ],
)
def test_masks_that_would_be_read_as_something_else_are_refused_with_the_agent(mask: Any) -> None:
    with pytest.raises(TypeError, match=r"Agent 'red' .* is not a mask for Discrete\(3\)\. Give MultiBinary"):
        PPO(CONFIG, beside(mask), Discrete(3), agent="red")


@pytest.mark.parametrize("value", [-np.inf, 2.0, 0.5, np.nan])
@pytest.mark.parametrize("config", [CONFIG, DQNConfig(batch_size=4, learning_starts=4, hidden=(4,))])
def test_values_that_are_no_flags_are_refused_before_they_are_learnt_from(config: Any, value: float) -> None:
    with (
        told(Box(0.0, 1.0, (3,)), np.array([1, 1, value], np.float32)) as envs,
        IndependentLearners(envs, config, update_mode="sequential") as learners,
    ):
        (agent,) = learners.agents
        with pytest.raises(ValueError, match=rf"^Agent {agent!r}: its action_mask holds {value}.*`mask == 0`"):
            learners.train(40)
        assert learners.agents[agent].counters["steps"] == 0


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.float32])
def test_flags_may_be_of_any_type(dtype: Any) -> None:
    check_flags(np.array([[0, 1], [0, 0]], dtype))


def test_the_wrapper_that_is_recommended_has_masks_of_infos_seen() -> None:
    """As Gymnasium's Taxi tells them, where an action that does nothing is masked."""
    assert masks.__doc__ is not None
    code = textwrap.dedent(masks.__doc__.partition("observation:\n\n")[2])
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
