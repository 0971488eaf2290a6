"""Gymnasium environments as those of groups, and actions of their spaces as a language model writes them."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.wrappers import TimeLimit

from parallel_envs.groups import EnvStateManager, register
from parallel_envs.groups.gymnasium_env import GymnasiumConfig, GymnasiumEnv, make, read_action
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import inputs, of_block

FIRM: dict[str, Any] = {"is_slippery": False}
LAKE = {"id": "FrozenLake-v1", "kwargs": FIRM}
TO_THE_GOAL = ["2", "2", "1", "1", "1", "2"]


def manager_of(block: Mapping[str, Any], **said: Any) -> EnvStateManager:
    return EnvStateManager(of_block(block, **{"use_multiprocessing": False, "max_workers": 1, **said}))


def of_id(name: str, most: int = 6, *, in_workers: bool = False, **config: Any) -> EnvStateManager:
    block = {"env_type": "gymnasium", "env_config": {"id": name, **config}, "max_actions_per_traj": most}
    return manager_of(block, use_multiprocessing=in_workers)


def of_factory(factory: Callable[[Any], Any], **block: Any) -> EnvStateManager:
    register("made", factory)
    return manager_of({"env_type": "made", **block})


@pytest.mark.parametrize(
    "block", [{"env_type": "gymnasium", "env_config": LAKE}, {"env_type": "lake", "env_config": FIRM}]
)
def test_they_are_played_by_the_numbers_of_their_actions(block: dict[str, Any]) -> None:
    register("lake", lambda config: gymnasium.make("FrozenLake-v1", **config))
    with manager_of(block, use_multiprocessing=True) as manager:
        manager.reset(seed=0)
        manager.step(inputs({0: TO_THE_GOAL, 1: ["1", "east"]}))
        first, second = manager.get_rollout_states()
    assert (first["history"][-1]["state"], first["history"][0]["reward"]) == (15, 1.0)
    assert (second["history"][-1]["state"], second["penalty"]) == (4, -0.1)


# ---- what is taken over ---------------------------------------------------------------------------------------------


class Own(gymnasium.Env[Any, Any]):  # has all that an environment of a group may have
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
    outside = random.getstate()
    with of_factory(lambda config: made()) as manager:
        first, second = manager.reset(seed=0)
        assert first["history"] == second["history"]
        first, second = manager.step(inputs({0: ["left", "RIGHT"], 1: ["left", "RIGHT", "0"]}))
        assert first["history"][0]["actions"] == [0, 1] == second["history"][0]["actions"]
        assert first["history"][1]["state"] == second["history"][1]["state"]
        assert manager.metrics()["Walk/mine"] == 3.0
    assert random.getstate() == outside
    env = GymnasiumEnv(made(), {0: "West"})  # names that are given come before its own
    env.reset(0, "train")
    assert env.action_lookup == {0: "West"}


class Older(gymnasium.Env[Any, Any]):  # returns the state alone, and Gym's four
    action_lookup: Mapping[int, str] | None = None
    action_space: Any = spaces.Discrete(2)

    def reset(self, seed: int | None = None, **others: Any) -> Any:
        return f"began with {others}"

    def step(self, action: Any) -> Any:
        return f"did {action!r}", 1, True, {"success": True}


class Spaceless(Older):  # has no space of actions, but takes text
    action_space = None


class Mode(Spaceless):  # is an environment of a group already
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


def test_names_of_actions_that_cannot_be() -> None:
    for name, actions, text in (
        ("FrozenLake-v1", {0: "left", 4: "fly"}, r"which Discrete\(.*\) does not have. Leave it out"),
        ("Pendulum-v1", {0: "push"}, r"which Box\(.*\) does not have. Leave it out"),
        ("FrozenLake-v1", {0: "left", 2: "Left"}, "0 is 'left', and 2 is 'Left'"),
    ):
        with pytest.raises(ValueError, match=text):
            make(GymnasiumConfig(id=name, actions=actions))


def test_text_without_a_meaning_is_dropped_and_penalised() -> None:
    with of_id("Pendulum-v1", 4, in_workers=True) as manager:
        [before, _] = manager.reset(seed=0)
        bad, mixed = manager.step(inputs({0: ["push", "[" * 100_000], 1: ["[3]", "[0.5]", "", "[1]", "[1]"]}))
        nothing_done = {"raw_reward": 0.0, "manager_invalid_action": True}
        assert (bad["history"][0]["actions"], bad["history"][0]["info"], bad["penalty"]) == ([], nothing_done, -0.1)
        assert_same_batch(bad["history"][1]["state"], before["history"][0]["state"])
        assert (mixed["history"][0]["actions"], mixed["penalty"]) == (["[0.5]", "[1]", "[1]"], -0.1)
        assert [entry["history"][1]["actions_left"] for entry in (bad, mixed)] == [4, 1]
        [good] = manager.step(inputs({0: ["[0.5]"]}))
        assert not np.array_equal(good["history"][2]["state"], bad["history"][1]["state"])
        assert good["penalty"] == -0.1
        first, second = (entry["metrics"] for entry in manager.get_rollout_states())
        assert (first["Walk/action_is_valid"], first["Walk/action_is_effective"]) == (0.5, 0.5)
        assert second["Walk/action_is_valid"] == 1.0
    env = make(GymnasiumConfig(id="Pendulum-v1"))  # stepped by hand it has no effect
    state = env.reset(0, "train")
    assert env.step("push") == (state, 0.0, False, False, {"action_is_valid": False, "action_is_effective": False})


# ---- figures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "success"), [([TO_THE_GOAL], 1.0), ([TO_THE_GOAL[:3], TO_THE_GOAL[3:]], 1.0), ([["2", "1"]], 0.0)]
)
def test_enough_reward_is_success_where_the_config_says_so_and_has_no_figure_elsewhere(
    words: list[list[str]], success: float
) -> None:
    saying: dict[str, Any] = {"success_reward": 1}
    for said in (saying, {}):
        with of_id("FrozenLake-v1", kwargs=FIRM, **said) as manager:
            manager.reset(seed=0)
            for turn in words:
                manager.step(inputs({0: turn}))
            assert manager.statuses[0].success is bool(success and said)
            figures = manager.metrics()
        told = {name: figures[name] for name in ("Walk/success", "Walk/pass@2") if name in figures}
        assert told == ({"Walk/success": success / 2, "Walk/pass@2": success} if said else {})
        assert figures["Walk/num_actions"] == sum(map(len, words)) / 2


@pytest.mark.parametrize(("wanted", "most", "success"), [(3.0, 9, True), (3.5, 9, False), (1.0, 2, False)])
def test_success_is_judged_by_the_whole_sum_when_the_env_ends(wanted: float, most: int, success: bool) -> None:
    factory = lambda config: GymnasiumEnv(TimeLimit(Own(), 3), None, wanted)  # noqa: E731
    with of_factory(factory, max_actions_per_traj=most) as manager:
        for _ in range(2):  # the sum begins anew
            manager.reset(seed=0)
            manager.step(inputs({0: ["left"] * 5}))
            assert manager.statuses[0].success is success


# ---- actions of every space, as text --------------------------------------------------------------------------------

BOX = spaces.Box(-1.0, 1.0, (2,))
SPACES: dict[str, gymnasium.Space[Any]] = {
    "box": BOX,
    "free box": spaces.Box(-np.inf, np.inf, (2,)),
    "bytes": spaces.Box(0, 255, (2,), np.uint8),
    "number": spaces.Box(-1.0, 1.0, ()),
    "switches": spaces.MultiBinary(3),
    "choices": spaces.MultiDiscrete([3, 4]),
    "text": spaces.Text(10),
    "both": spaces.Dict(arm=BOX, hand=spaces.Discrete(3, start=1), word=spaces.Text(5)),
    "pair": spaces.Tuple((BOX, spaces.MultiDiscrete([3, 4]))),
    "several": spaces.Sequence(spaces.Discrete(4)),
}


def plain(action: Any) -> Any:
    """An action as JSON has it."""
    match action:
        case dict():
            return {name: plain(one) for name, one in action.items()}
        case tuple():
            return [plain(one) for one in action]
        case np.ndarray() | np.generic():
            return action.tolist()
    return action


@pytest.mark.parametrize("name", list(SPACES))
def test_what_a_space_draws_is_read_as_it_was_and_nonsense_is_no_action(name: str) -> None:
    space = SPACES[name]
    space.seed(3)
    for _ in range(20):
        action = space.sample()
        assert_same_batch(read_action(json.dumps(plain(action)), space), action)
    long = ["[" * 100_000, '{"a":' * 100_000, "9" * 100_000]
    for text in ["", *long, *([] if name == "text" else ["left", "[[1], 2]", '["1", "1"]', "null"])]:
        assert read_action(text, space) is None


def test_actions_outside_the_space_are_none() -> None:
    for name, *texts in (
        ("box", "[0.5]", "[0.5, 1.5]", "[NaN, 0]"),
        ("free box", "[1e999, 0]", "[1e300, 0]"),
        ("bytes", "[-1, 0]", "[256, 0]", "[0.5, 0]"),
        ("choices", "[1.7, 2]", "[1, 4]", "[1e30, 1]"),
        ("switches", "[0.5, 0, 1]"),
        ("both", '{"arm": [0, 0], "hand": 1}', '{"arm": [0, 0], "hand": 1.5, "word": "hey"}', "[0, 0]"),
        ("both", '{"arm": [0, 0], "hand": 1, "word": "hey", "foot": 2}'),
        ("pair", "[[0, 0]]", "5"),
        ("several", "[4]"),
        ("text", "longer than ten", "x y"),
    ):
        assert [read_action(text, SPACES[name]) for text in texts] == [None] * len(texts)


def test_text_is_taken_as_it_is_or_in_quotes_and_without_a_space_all_of_it() -> None:
    told = [read_action(text, SPACES["text"]) for text in ("please", '"please"', "12")]
    assert (told, read_action("anything", None)) == (["please", "please", "12"], "anything")
