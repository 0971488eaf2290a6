"""Wrong actions, options and observations: refused at once, by value, and the manager goes on."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs.errors import EnvError
from parallel_envs.testing import ScriptedEnv
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv

BOX = spaces.Box(-1, 1, (2,), np.float32)
DICT = spaces.Dict(move=BOX, say=spaces.Text(4))

# The action space of three envs, actions that do not fit it, and what the error must show.
BAD_ACTIONS: dict[str, tuple[spaces.Space[Any], Any, str]] = {
    "too few": (BOX, np.zeros((2, 2)), r"\(2, 2\).*\(3, 2\)"),
    "too many": (BOX, np.zeros((4, 2)), r"\(4, 2\).*\(3, 2\)"),
    "another shape": (BOX, np.zeros((3, 5)), r"\(3, 5\).*\(3, 2\)"),
    "transposed": (BOX, np.zeros((2, 3)), r"\(2, 3\).*\(3, 2\)"),
    "not batched": (BOX, np.zeros(2), r"\(2,\).*\(3, 2\)"),
    "one number": (spaces.Discrete(4), 1, r"\(\).*\(3,\)"),
    "none": (spaces.Discrete(4), None, "None"),
    "text": (spaces.Discrete(4), "abc", "abc|U3"),
    "objects": (spaces.Discrete(4), [object(), 1, 2], "object"),
    "ragged": (BOX, [[1, 2], [3], [4, 5]], r"\[3\]"),
    "too few texts": (spaces.Text(4), ("a", "b"), "2.*3"),
    "one text": (spaces.Text(4), "abc", "abc"),
    "a missing part": (DICT, {"move": np.zeros((3, 2))}, "say"),
    "a part of another shape": (DICT, {"move": np.zeros((3, 1)), "say": ("", "", "")}, r"move.*\(3, 1\)"),
    "too few in a part": (DICT, {"move": np.zeros((3, 2)), "say": ("", "")}, "say"),
    "an array for a dict": (DICT, np.zeros((3, 2)), "move"),
    "too few in a tuple": (spaces.Tuple([BOX, BOX]), (np.zeros((3, 2)),), "1"),
}


@pytest.mark.parametrize("name", BAD_ACTIONS)
def test_actions_that_do_not_fit_are_refused_before_any_env_moves(make: Make, name: str) -> None:
    space, actions, word = BAD_ACTIONS[name]
    envs = make([partial(ScriptedEnv, action_space=space)] * 3, num_workers=2)
    envs.reset(seed=0)
    with pytest.raises((ValueError, TypeError), match=f"(?s){word}"):
        envs.step(actions)
    envs.action_space.seed(0)
    assert envs.get_attr("elapsed") == (0, 0, 0)
    envs.step(envs.action_space.sample())
    assert envs.get_attr("elapsed") == (1, 1, 1)


@pytest.mark.parametrize("options", [3, "fast", [("a", 1)], {1, 2}], ids=repr)
def test_options_of_a_wrong_form_are_refused(make: Make, options: Any) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset(seed=0)
    with pytest.raises(TypeError, match="options"):
        envs.reset(options=options)
    assert envs.step(np.zeros(2, int))[1].tolist() == [1, 1]


@pytest.mark.parametrize("seed", ["1", 1.5, object()], ids=["text", "float", "object"])
def test_seeds_of_a_wrong_form_are_refused(make: Make, seed: Any) -> None:
    envs = make([CountingEnv] * 2)
    with pytest.raises((TypeError, ValueError), match="seed"):
        envs.reset(seed=seed)
    envs.reset(seed=0)


def test_a_negative_seed_is_the_envs_own_error(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    with pytest.raises(Exception, match="-7"):
        envs.reset(seed=-7)
    envs.reset(seed=0)


class WrongShapeEnv(CountingEnv):
    """Observes something else than it says from its second step on."""

    def observed(self) -> Any:
        return super().observed() if self.elapsed < 2 else np.zeros(self.elapsed + 1, int)


def test_an_observation_of_a_wrong_shape_is_an_error_of_its_env(make: Make) -> None:
    envs = make([CountingEnv, WrongShapeEnv])
    envs.reset(seed=0)
    envs.step(np.zeros(2, int))
    with pytest.raises(EnvError, match=r"(?s)\(3,\).*\(2,\)") as caught:
        envs.step(np.zeros(2, int))
    assert caught.value.env_ids == (1,)
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, int))[1].tolist() == [1, 1]


@pytest.mark.parametrize("shape", [(), (1,), (3,), (1, 2)], ids=repr)
@pytest.mark.parametrize("shared_memory", [None, False], ids=repr)
def test_an_observation_is_never_broadcast(make: Make, shape: Any, shared_memory: Any) -> None:
    envs = make([CountingEnv, partial(ShapedEnv, shape)], shared_memory=shared_memory)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match=r"(?s)of shape .*\(2,\)") as caught:
        envs.step(np.zeros(2, int))
    assert caught.value.env_ids == (1,)
    assert envs.reset(seed=0)[0].tolist() == [[1, 0], [1, 0]]


def test_an_observation_by_pipe_has_the_dtype_of_its_space(make: Make) -> None:
    envs = make([partial(ShapedEnv, (2,))] * 2, shared_memory=False)
    envs.reset(seed=0)
    observations = envs.step(np.zeros(2, int))[0]
    assert (observations.dtype, observations.tolist()) == (np.dtype(np.int64), [[0, 0], [0, 0]])


class ShapedEnv(CountingEnv):
    """Observes zeros of some shape from its first step on, in single precision."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.shape = shape

    def observed(self) -> Any:
        return super().observed() if not self.elapsed else np.zeros(self.shape, np.float32)


class FiveLinesEnv(CountingEnv):
    """Returns four values from `step`, as environments of an earlier interface do."""

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, terminated, info


def test_an_env_of_the_old_interface_is_told_so(make: Make) -> None:
    envs = make([FiveLinesEnv] * 2)
    envs.reset(seed=0)
    with pytest.raises(EnvError, match="unpack"):
        envs.step(np.zeros(2, int))


class OddRewardEnv(CountingEnv):
    """Returns the reward it was told to."""

    def __init__(self, reward: Any) -> None:
        super().__init__()
        self.reward = reward

    def step(self, action: Any) -> Any:
        observation, _, terminated, truncated, info = super().step(action)
        return observation, self.reward, terminated, truncated, info


@pytest.mark.parametrize("reward", [None, "much", np.zeros(2), [1.0, 2.0], {}], ids=repr)
def test_a_reward_that_is_no_number_is_an_error_of_its_env(make: Make, reward: Any) -> None:
    envs = make([CountingEnv, partial(OddRewardEnv, reward)])
    envs.reset(seed=0)
    with pytest.raises(EnvError, match="reward") as caught:
        envs.step(np.zeros(2, int))
    assert caught.value.env_ids == (1,)


@pytest.mark.parametrize("reward", [np.float16(0.5), np.array(0.5), np.array([[0.5]]), True, 1, np.int8(1)], ids=repr)
def test_any_single_number_is_a_reward(make: Make, reward: Any) -> None:
    envs = make([partial(OddRewardEnv, reward)] * 2)
    envs.reset(seed=0)
    assert envs.step(np.zeros(2, int))[1].tolist() == [np.asarray(reward).item()] * 2


@pytest.mark.parametrize("timeout", [-1, float("nan"), "soon"], ids=repr)
def test_timeouts_that_are_no_duration_are_refused(make: Make, timeout: Any) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset(seed=0)
    envs.step_async(np.zeros(2, int))
    with pytest.raises((ValueError, TypeError), match=str(timeout)):
        envs.step_wait(timeout=timeout)
    assert envs.step_wait()[1].tolist() == [1, 1]


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.Text(4), spaces.Tuple([spaces.Discrete(2)])], ids=str)
def test_a_single_value_for_all_envs_is_a_type_error_as_in_gymnasium(make: Make, space: spaces.Space[Any]) -> None:
    envs = make([partial(ScriptedEnv, action_space=space)] * 3)
    envs.reset(seed=0)
    with pytest.raises(TypeError if not isinstance(space, spaces.Tuple) else ValueError):
        envs.step(0)
    assert envs.get_attr("elapsed") == (0, 0, 0)
