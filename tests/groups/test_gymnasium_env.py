"""Gymnasium environments as those of groups: what is taken over of them, and what is told of their steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from parallel_envs.groups import BadSettings, EnvStateManager, register
from parallel_envs.groups.gymnasium_env import GymnasiumConfig, GymnasiumEnv, make
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import configured, inputs

LAKE = {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}}
TO_THE_GOAL = ["2", "2", "1", "1", "1", "2"]


def of_kind(block: Mapping[str, Any], group_size: int = 2, **said: Any) -> EnvStateManager:
    """One group of the environments of this block."""
    config = configured({"Walk": 1}, group_size, **{"use_multiprocessing": False, **said})
    config["custom_envs"]["Walk"] = dict(block)
    return EnvStateManager(config)


def of_id(name: str, most: int = 6, **config: Any) -> EnvStateManager:
    return of_kind({"env_type": "gymnasium", "env_config": {"id": name, **config}, "max_actions_per_traj": most})


def of_factory(factory: Callable[[Any], Any]) -> EnvStateManager:
    register("made", factory)
    return of_kind({"env_type": "made"})


def lake(config: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("FrozenLake-v1", **config)


@pytest.mark.parametrize(
    "block",
    [{"env_type": "gymnasium", "env_config": LAKE}, {"env_type": "lake", "env_config": {"is_slippery": False}}],
)
def test_they_are_played_by_the_numbers_of_their_actions(block: dict[str, Any]) -> None:
    register("lake", lake)
    with of_kind(block, use_multiprocessing=True, max_workers=1) as manager:
        manager.reset(seed=0)
        manager.step(inputs({0: TO_THE_GOAL, 1: ["1", "east"]}))
        first, second = manager.get_rollout_states()
    assert (first["history"][-1]["state"], first["history"][0]["reward"]) == (15, 1.0)
    assert (second["history"][-1]["state"], second["penalty"]) == (4, -0.1)


# ---- what is taken over ---------------------------------------------------------------------------------------------


NOTHING_DONE = {"raw_reward": 0.0, "manager_invalid_action": True}
"""The info of a turn without an action that has a meaning."""


class Own(gymnasium.Env[Any, Any]):
    """Has all that an environment of a group may have."""

    uses_global_random = True
    action_space = spaces.Discrete(2)
    observation_space = spaces.Box(0.0, 9.0, ())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.action_lookup = {0: "Left", 1: "Right"}
        self.drawn = [random.random()]
        return self.drawn[0], {}

    def step(self, action: int) -> Any:
        self.drawn.append(random.random() + float(np.random.random()))
        return self.drawn[-1], 1.0, False, False, {}

    def metrics(self) -> dict[str, float]:
        return {"mine": float(len(self.drawn))}


@pytest.mark.parametrize("made", [Own, lambda: TimeLimit(Own(), 50)])
def test_what_an_env_has_for_groups_is_heeded_beneath_wrappers_too(made: Callable[[], Any]) -> None:
    random.seed(5)
    outside = random.getstate()
    with of_factory(lambda config: made()) as manager:
        first, second = manager.reset(seed=0)
        assert first["history"] == second["history"]
        first, second = manager.step(inputs({0: ["left", "RIGHT"], 1: ["left", "RIGHT", "0"]}))
        assert first["history"][0]["actions"] == [0, 1] == second["history"][0]["actions"]
        assert first["history"][1]["state"] == second["history"][1]["state"]
        assert manager.metrics()["Walk/mine"] == 3.0
    assert random.getstate() == outside


def test_names_that_are_given_come_before_its_own() -> None:
    env = GymnasiumEnv(Own(), {0: "West"})
    env.reset(0, "train")
    assert env.action_lookup == {0: "West"}


class Older(gymnasium.Env[Any, Any]):
    """Returns the state alone, and Gym's four."""

    action_lookup: Mapping[int, str] | None = None
    action_space = spaces.Discrete(2)

    def reset(self, seed: int | None = None, **others: Any) -> Any:
        return f"began with {others}"

    def step(self, action: Any) -> Any:
        return f"did {action!r}", 1, True, {"success": True}


class Spaceless(Older):
    """Has no space of actions, but takes text."""

    action_space: Any

    def __init__(self) -> None:
        self.action_space = None


class Mode(Spaceless):
    """Is an environment of a group already."""

    def reset(self, seed: int | None = None, mode: str | None = None) -> Any:  # type: ignore[override]  # that is it
        return f"{seed is not None} {mode}"


@pytest.mark.parametrize(
    ("kind", "word", "states"),
    [
        (Older, "1", ["began with {}", "did 1"]),
        (Spaceless, "go", ["began with {}", "did 'go'"]),
        (Mode, "go", ["True train", "did 'go'"]),
    ],
)
def test_classes_of_other_styles(kind: Callable[[], Any], word: str, states: list[str]) -> None:
    with of_factory(lambda config: kind()) as manager:
        manager.reset(seed=0)
        manager.step(inputs({0: [word]}))
        assert [item["state"] for item in manager.get_rollout_states()[0]["history"]] == states
        assert manager.statuses[0].success


@pytest.mark.parametrize("told", [("s", "2.5", False, False, {}), ("s", 1.0, "False", False, {})])
def test_text_in_the_place_of_numbers_is_refused(told: Any) -> None:
    class Worded(Own):
        def step(self, action: int) -> Any:
            return told

    env = GymnasiumEnv(Worded())
    env.reset(0, "train")
    with pytest.raises(TypeError, match=r"step\(\) returned"):
        env.step(0)


# ---- what has a meaning ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("env", "actions"), [("FrozenLake-v1", {0: "left", 4: "fly"}), ("Pendulum-v1", {0: "push"})])
def test_names_of_actions_that_there_are_not(env: str, actions: dict[int, str]) -> None:
    with pytest.raises(ValueError, match=r"which (Discrete|Box)\(.*\) does not have. Leave it out."):
        make(GymnasiumConfig(id=env, actions=actions))


@pytest.mark.parametrize(("name", "told"), [("Nowhere-v0", True), ("math:Nowhere-v0", False)])
def test_an_id_that_no_package_has_registered_yet(name: str, told: bool) -> None:
    with pytest.raises(gymnasium.error.UnregisteredEnv) as raised:
        make(GymnasiumConfig(id=name))
    notes = ["If importing a package registers it, name that too: id: package:Nowhere-v0."] if told else []
    assert getattr(raised.value, "__notes__", []) == notes


def test_two_names_that_are_the_same() -> None:
    with pytest.raises(ValueError, match="0 is 'left', and 2 is 'Left'"):
        make(GymnasiumConfig(id="FrozenLake-v1", actions={0: "left", 2: "Left"}))


@pytest.mark.parametrize("use_multiprocessing", [True, False])
def test_text_without_a_meaning_is_dropped_and_penalised(use_multiprocessing: bool) -> None:
    block = {"env_type": "gymnasium", "env_config": {"id": "Pendulum-v1"}, "max_actions_per_traj": 4}
    with of_kind(block, use_multiprocessing=use_multiprocessing, max_workers=1) as manager:
        [before, _] = manager.reset(seed=0)
        bad, mixed = manager.step(inputs({0: ["push", "[" * 100_000], 1: ["[3]", "[0.5]", "", "[1]", "[1]"]}))
        assert (bad["history"][0]["actions"], bad["history"][0]["info"], bad["penalty"]) == ([], NOTHING_DONE, -0.1)
        assert_same_batch(bad["history"][1]["state"], before["history"][0]["state"])
        assert (mixed["history"][0]["actions"], mixed["penalty"]) == (["[0.5]", "[1]", "[1]"], -0.1)
        assert [entry["history"][1]["actions_left"] for entry in (bad, mixed)] == [4, 1]
        [good] = manager.step(inputs({0: ["[0.5]"]}))
        assert not np.array_equal(good["history"][2]["state"], bad["history"][1]["state"])
        assert good["penalty"] == -0.1


def test_stepped_by_hand_text_without_a_meaning_has_no_effect() -> None:
    env = make(GymnasiumConfig(id="Pendulum-v1"))
    state = env.reset(0, "train")
    told = env.step("push")
    assert told[:4] == (state, 0.0, False, False)
    assert told[4] == {"action_is_valid": False, "action_is_effective": False}


# ---- figures --------------------------------------------------------------------------------------------------------


def test_valid_steps_say_so() -> None:
    with of_id("Pendulum-v1", 20) as manager:
        manager.reset(seed=0)
        for word in [*["[0.5]"] * 9, "push"]:
            manager.step(inputs({0: [word], 1: ["[0]"]}))
        first, second = (entry["metrics"] for entry in manager.get_rollout_states())
    assert (first["Walk/action_is_valid"], first["Walk/action_is_effective"]) == (0.9, 0.9)
    assert second["Walk/action_is_valid"] == 1.0


def test_of_success_that_nobody_tells_there_is_no_figure() -> None:
    with of_id("FrozenLake-v1", kwargs=LAKE["kwargs"]) as manager:
        manager.reset(seed=0)
        manager.step(inputs({0: TO_THE_GOAL}))
        figures = manager.metrics()
        assert manager.statuses[0].success is False
    assert figures["Walk/num_actions"] == 3.0
    assert not {"Walk/success", "Walk/pass@2"} & figures.keys()


@pytest.mark.parametrize(
    ("words", "success"),
    [([TO_THE_GOAL], 1.0), ([TO_THE_GOAL[:3], TO_THE_GOAL[3:]], 1.0), ([["2", "1"]], 0.0), ([["2"]], 0.0)],
)
def test_enough_reward_is_success_where_the_config_says_so(words: list[list[str]], success: float) -> None:
    with of_id("FrozenLake-v1", kwargs=LAKE["kwargs"], success_reward=1) as manager:
        manager.reset(seed=0)
        for turn in words:
            manager.step(inputs({0: turn}))
        assert manager.statuses[0].success is bool(success)
        figures = manager.metrics()
    assert (figures["Walk/success"], figures["Walk/pass@2"]) == (success / 2, success)


@pytest.mark.parametrize(("wanted", "most", "success"), [(3.0, 9, True), (3.5, 9, False), (1.0, 2, False)])
def test_success_is_judged_by_the_whole_sum_when_the_env_ends(wanted: float, most: int, success: bool) -> None:
    def paid(config: Any) -> GymnasiumEnv:
        return GymnasiumEnv(TimeLimit(Own(), 3), None, wanted)

    register("paid", paid)
    with of_kind({"env_type": "paid", "max_actions_per_traj": most}) as manager:
        for _ in range(2):  # the sum begins anew
            manager.reset(seed=0)
            manager.step(inputs({0: ["left"] * 5}))
            assert manager.statuses[0].success is success


def test_a_sum_that_is_no_number() -> None:
    with pytest.raises(BadSettings, match="success_reward"):
        of_id("FrozenLake-v1", success_reward="much")
