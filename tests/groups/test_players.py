"""Environments of every make, in their place."""

from __future__ import annotations

import random
import threading
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest

from parallel_envs.groups import EnvStateManager, register
from parallel_envs.groups.guarded import Guarded
from parallel_envs.groups.gymnasium_env import GymnasiumConfig, make
from parallel_envs.groups.player import Player, Recipe
from parallel_envs.testing.equality import assert_same_batch
from tests.groups.walks import Dice, configured, inputs


def player(factory: Any, config: Any = None) -> Player:
    one = Player(Recipe("Tag", factory, config))
    one.make()
    return one


class Steps:
    """Returns what it is made with."""

    def __init__(self, config: Any) -> None:
        self.told = config

    def reset(self, seed: int, mode: str) -> Any:
        return "start"

    def step(self, action: str) -> Any:
        return self.told


@pytest.mark.parametrize(
    ("told", "reward", "ends"),
    [
        (("s", 1, True, False, {}), 1.0, (True, False)),
        (("s", np.float32(0.5), False, np.True_, {}), 0.5, (False, True)),
        (["s", np.array([2.0]), True, {}], 2.0, (True, False)),
    ],
)
def test_what_a_step_may_return(told: Any, reward: float, ends: tuple[bool, bool]) -> None:
    one = player(Steps, told)
    one.reset(0, "train")
    _, given, terminated, truncated, *_ = one.play(["go"], 3)
    assert (given, type(given), (terminated, truncated)) == (reward, float, ends)


def test_names_are_found_however_they_are_spelt() -> None:
    class Spelt(Steps):
        action_lookup: ClassVar[dict[int, str]] = {0: "Up", 1: " Go Left ", 2: "UP"}

        def step(self, action: Any) -> Any:
            return "s", float(action), False, False, {}

    one = player(Spelt)
    one.reset(0, "train")
    for spelt, executed in {"Up": (2,), "up ": (2,), " Go Left ": (1,), "go left": (1,), "left": ()}.items():
        assert one.play([spelt], 3)[5] == executed
    _, reward, *_, executed, all_valid, own = one.play(["up", "nowhere", "UP", "go left", "Up"], 3)
    assert (reward, executed, all_valid, own) == (5.0, (2, 2, 1), False, {})


@pytest.mark.parametrize("lookup", [["up", "down"], {"Up": 1}, "up"])
def test_what_is_no_lookup(lookup: Any) -> None:
    class Misnamed(Steps):
        action_lookup = lookup

    one = player(Misnamed)
    with pytest.raises(TypeError, match=r"action_lookup is .*Give a mapping from the actions that step\(\) takes"):
        one.reset(0, "train")


def test_what_is_no_reward() -> None:
    one = player(Steps, ("s", None, False, False, {}))
    one.reset(0, "train")
    with pytest.raises(TypeError, match="the reward None"):
        one.play(["go"], 3)


@pytest.mark.parametrize("told", [None, ("s", 1.0, True), ("s", 1.0, True, None), ("s", 1.0, True, False, {}, 3)])
def test_what_a_step_may_not_return(told: Any) -> None:
    one = player(Steps, told)
    one.reset(0, "train")
    with pytest.raises(TypeError, match=r"Return \(state, reward, terminated, truncated, info\)"):
        one.play(["go"], 3)


def test_what_is_no_environment() -> None:
    with pytest.raises(TypeError, match=r"builtins.dict has no reset\(\)"):
        player(lambda config: {})


def test_without_render_there_is_the_state_as_text_only() -> None:
    one = player(Steps)
    one.reset(0, "train")
    assert one.render("text") == "start"
    with pytest.raises(AttributeError, match="Give it one"):
        one.render("rgb_array")


def test_in_the_caller_states_are_copies() -> None:
    class Reusing(Steps):
        def reset(self, seed: int, mode: str) -> Any:
            self.buffer = np.zeros(2)
            return self.buffer

        def step(self, action: str) -> Any:
            self.buffer += 1
            return self.buffer, 0.0, False, False, {"seen": self.buffer}

    register("reusing", Reusing)
    config = configured({"Walk": 1}, use_multiprocessing=False)
    config["custom_envs"]["Walk"] = {"env_type": "reusing"}
    with EnvStateManager(config) as manager:
        manager.reset()
        for _ in range(2):
            [entry] = manager.step(inputs({0: ["a"]}))
        assert [float(item["state"][0]) for item in entry["history"]] == [0.0, 1.0, 2.0]
        assert [float(item["info"]["seen"][0]) for item in entry["history"][:2]] == [1.0, 2.0]


def test_users_of_global_generators_neither_disturb_nor_are_disturbed() -> None:
    alone, beside = Guarded(Dice(None)), Guarded(Dice(None))
    beside._env.offset = alone._env.offset
    expected = [alone.reset(3, "train"), *(alone.step("throw") for _ in range(3))]
    random.seed(8)
    outside = [random.random() for _ in range(5)]
    random.seed(8)
    seen = [random.random()]
    told = [beside.reset(3, "train")]
    for _ in range(3):
        alone.step("throw")
        seen.append(random.random())
        told.append(beside.step("throw"))
    assert [*seen, random.random()] == outside
    assert told == expected


def test_they_take_turns_in_threads() -> None:
    envs = [Guarded(Dice(None)) for _ in range(4)]
    for env in envs:
        env._env.offset = 0.0
        env.reset(1, "train")
    told: list[Any] = [None] * 4
    threads = [
        threading.Thread(target=lambda i=i: told.__setitem__(i, [envs[i].step("throw") for _ in range(50)]))
        for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told[1:] == [told[0]] * 3


def lake(config: Any) -> gymnasium.Env[Any, Any]:
    return gymnasium.make("FrozenLake-v1", **config)


@pytest.mark.parametrize(
    "block",
    [
        {"env_type": "gymnasium", "env_config": {"id": "FrozenLake-v1", "kwargs": {"is_slippery": False}}},
        {"env_type": "lake", "env_config": {"is_slippery": False}},
    ],
)
def test_gymnasium_environments(block: dict[str, Any]) -> None:
    register("lake", lake)
    config = configured({"Walk": 1}, max_workers=1)
    config["custom_envs"]["Walk"] = block
    with EnvStateManager(config) as manager:
        manager.reset(seed=0)
        manager.step(inputs({0: ["2", "2", "1", "1", "1", "2"], 1: ["1", "east"]}))
        first, second = manager.get_rollout_states()
    assert (first["history"][-1]["state"], first["history"][0]["reward"]) == (15, 1.0)
    assert (second["history"][-1]["state"], second["penalty"]) == (4, -0.1)


@pytest.mark.parametrize(("env", "actions"), [("FrozenLake-v1", {0: "left", 4: "fly"}), ("Pendulum-v1", {0: "push"})])
def test_names_of_actions_that_there_are_not(env: str, actions: dict[int, str]) -> None:
    with pytest.raises(ValueError, match=r"which (Discrete|Box)\(.*\) does not have. Leave it out."):
        make(GymnasiumConfig(id=env, actions=actions))


def test_actions_of_other_spaces_are_json() -> None:
    config = configured({"Walk": 1}, use_multiprocessing=False)
    config["custom_envs"]["Walk"] = {"env_type": "gymnasium", "env_config": {"id": "Pendulum-v1"}}
    with EnvStateManager(config) as manager:
        [before, _] = manager.reset(seed=0)
        [bad] = manager.step(inputs({0: ["push"]}))
        assert bad["history"][0]["info"] == {"action_is_valid": False, "action_is_effective": False}
        assert_same_batch(bad["history"][1]["state"], before["history"][0]["state"])
        [good] = manager.step(inputs({0: ["[0.5]"]}))
        assert not np.array_equal(good["history"][2]["state"], bad["history"][1]["state"])
