"""Environments of every make in their place: what is taken from them and what is refused, with where it comes from."""

from __future__ import annotations

import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
import pytest

from parallel_envs.errors import EnvError
from parallel_envs.groups import EnvStateManager, register
from parallel_envs.groups.hosted_env import GlobalRandomGuard, HostedEnv, TagSpec
from parallel_envs.groups.interface import fold_name
from parallel_envs.groups.transport import Replay
from tests.groups.walks import Dice, of_block


class Steps:  # returns what it is made with
    def __init__(self, config: Any) -> None:
        self.told = config

    def reset(self, seed: int, mode: str) -> Any:
        return "start"

    def step(self, action: str) -> Any:
        return self.told


class Shows(Steps):  # shows what it is made with, and tells it of itself
    def __init__(self, config: Any) -> None:
        self.state, self.metrics = config

    def reset(self, seed: int, mode: str) -> Any:
        return self.state

    def step(self, action: str) -> Any:
        return self.state, 0.0, True, False, {}


def player(factory: Any, config: Any = None, most_actions: int = 100) -> HostedEnv:
    one = HostedEnv(TagSpec("Tag", factory, config, most_actions=most_actions))
    one.make()
    return one


def begun(factory: Any, config: Any = None, most_actions: int = 100) -> HostedEnv:
    one = player(factory, config, most_actions)
    one.reset(0, "train")
    return one


# ---- states, outcomes, metrics --------------------------------------------------------------------------------------

PICTURE = np.zeros((4, 5, 3), np.uint8)


def test_pictures_are_lists_of_arrays_of_uint8() -> None:
    for images in (None, [], [PICTURE], (PICTURE, PICTURE), np.stack([PICTURE, PICTURE])):
        one = player(Shows, ({"text": "t", "images": images}, dict))
        assert one.reset(0, "train")["text"] == one.play(["look"])[0]["text"] == "t"


def step_of(*values: Any) -> Callable[[], Any]:
    return lambda: begun(Steps, values).play(["go"])


def showing(images: Any) -> Callable[[], Any]:
    return lambda: player(Shows, ({"text": "t", "images": images}, dict)).reset(0, "train")


def metrics_of(given: Any) -> Callable[[], Any]:
    return lambda: begun(Shows, ("s", lambda: given)).play(["look"])


def lookup_of(given: Any) -> Callable[[], Any]:
    return lambda: begun(type("Env", (Steps,), {"action_lookup": given}))


NOT_FIVE = r"step\(\) of 'Tag' returned .*Return \(state, reward, terminated"
NO_NUMBER = r"returned the reward .*(2.*|None|\['1'\]).*Give a number"
NO_FLAG = "for terminated or truncated. Give True or False."
NO_METRICS = r"metrics\(\) of .*Shows returned .*Give a dict of numbers by name"
NO_LOOKUP = "action_lookup is .*Give a mapping from the actions that step"
TWICE = {0: "a", 1: "b", "two": " A\n"}


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (r"the images uint8 of \(4, 5, 3\). Give a list", [showing(PICTURE)]),
        ("the images 'a.png'. Give a list of arrays of uint8", [showing(["a.png"])]),
        (r"the images float64 of \(4, 5, 3\)", [showing([PICTURE.astype(float)])]),
        (
            r"the images uint8 of \(4, 5\)",
            [showing([PICTURE[..., 0]]), step_of({"text": "", "images": [PICTURE[..., 0]]}, 0.0, False, {})],
        ),
        (NOT_FIVE, [step_of("s", 1.0, True), step_of("s", 1.0, True, None), step_of("s", 1.0, True, False, {}, 3)]),
        (NOT_FIVE, [lambda: begun(Steps).play(["go"])]),
        (r"5 values. Return .* a dict", [step_of("s", 1.0, False, False, None)]),
        (NO_NUMBER, [step_of("s", one, False, False, {}) for one in (None, "2.5", b"2.5", np.array(["1"]))]),
        (NO_NUMBER, [step_of("s", np.datetime64("2020"), False, False, {})]),
        (NO_FLAG, [step_of("s", 1, one, {}) for one in ("False", b"no", "")] + [step_of("s", 1, False, "False", {})]),
        (
            "for success in its info. Give True",
            [step_of("s", 0.0, True, {"success": one}) for one in ("no", b"yes", "")],
        ),
        (NO_METRICS, [metrics_of({"final": "left"}), metrics_of(["final"]), metrics_of(3)]),
        (NO_LOOKUP, [lookup_of(["up"]), lookup_of({"Up": 1}), lookup_of("up")]),
        (r"one name for two actions: 0 is 'a', and 'two' is ' A\\n'. Give each a", [lookup_of(TWICE)]),
        (r"builtins.dict has no reset\(\)", [lambda: player(lambda config: {})]),
    ],
)
def test_refused_outcomes_and_members_of_an_environment(text: str, calls: list[Callable[[], Any]]) -> None:
    for call in calls:
        with pytest.raises((TypeError, ValueError), match=text):
            call()


def test_outcomes_of_a_step() -> None:
    for told, reward, ends in (
        (("s", 1, True, False, {}), 1, (True, False)),
        (("s", np.float32(0.5), False, np.True_, {}), 0.5, (False, True)),
        (("s", Fraction(1, 2), 0, 1, {}), 0.5, (False, True)),
        (["s", np.array([2.0]), None, {}], 2.0, (False, False)),
        (["s", np.array([2.0]), True, {}], 2.0, (True, False)),
    ):
        _, given, *given_ends, _, _, _, _ = begun(Steps, told).play(["go"])
        assert (given, type(given), tuple(given_ends)) == (reward, type(reward), ends)
        assert {type(end) for end in given_ends} == {bool}


def test_no_caller_can_write_into_success() -> None:
    one = begun(Steps, ("s", 1.0, False, False, {"success": np.array([True])}))
    assert one.play(["go"])[4]["success"] is True


class Five:  # what can be unpacked, and is no tuple
    def __iter__(self) -> Any:
        return iter(("s", 1.0, False, False, {}))


def test_what_can_be_played_can_be_replayed() -> None:
    one = begun(Steps, Five())
    assert one.play(["go"])[0] == one.replay(Replay(0, "train", ("go",), 1)) == "s"


def test_without_render_there_is_the_state_as_text_only() -> None:
    one = begun(Steps)
    assert one.render("text") == "start"
    with pytest.raises(AttributeError, match="render"):
        one.render("rgb_array")


# ---- actions --------------------------------------------------------------------------------------------------------


class Doubtful(Steps):  # takes numbers
    def step(self, action: Any) -> Any:
        return "s", float(action), False, False, {}


def test_names_are_found_however_they_are_spelt() -> None:
    class Spelt(Doubtful):
        action_lookup: ClassVar[dict[int, str]] = {2: "Up", 1: " Go Left "}

    one = begun(Spelt, most_actions=7)
    for spelt, executed in {"Up": [2], "up ": [2], " Go Left ": [1], "go left": [1], "left": []}.items():
        assert one.play([spelt])[5] == executed
    _, reward, *_, executed, all_valid, own = one.play(["up", "nowhere", "UP", "go left", "Up"])
    assert (reward, executed, all_valid, own) == (5.0, [2, 2, 1], False, {})
    assert fold_name(" STRASSE") == fold_name("straße ")


def test_free_text_without_a_meaning_is_dropped_where_the_env_says_which_has_one() -> None:
    class Choosy(Doubtful):
        def has_meaning(self, action: str) -> bool:
            return action.isdigit()

    for kind in (Choosy, lambda config: GlobalRandomGuard(Choosy(config))):
        _, reward, *_, executed, all_valid, own = begun(kind, most_actions=2).play(["1", "two", "3", "4"])
        assert (reward, executed, all_valid, own) == (4.0, ["1", "3"], False, {})
        assert begun(kind, most_actions=2).play(["5"])[5:7] == (["5"], True)


def test_actions_are_counted_over_all_turns_of_an_episode_and_what_is_replayed_counts() -> None:
    one = player(Steps, ("s", 1.0, False, False, {}), most_actions=5)
    replay = functools.partial(one.replay, Replay(0, "train", ("a", "b", "c"), 2))
    for begin, left in ((functools.partial(one.reset, 0, "train"), 5), (replay, 2)):
        begin()
        assert [one.play(["go"])[7] is None for _ in range(left)] == [True] * (left - 1) + [False]
        assert one.play(["go"])[5] == []
        begin()
        assert one.play(["go"] * 6)[5:] == (["go"] * left, True, {})


# ---- factories and classes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_multiprocessing", [True, False])
def test_factories_that_return_one_environment_for_all_are_refused(use_multiprocessing: bool) -> None:
    shared = Dice(None)
    register("one of all", lambda config: shared)
    config = of_block({"env_type": "one of all"}, use_multiprocessing=use_multiprocessing, max_workers=1)
    text = "The factories of envs 0 and 1 returned the same object"
    with EnvStateManager(config) as manager, pytest.raises(EnvError, match=text) as caught:
        manager.reset(0)
    assert isinstance(caught.value, ValueError)


# ---- users of the global generators ---------------------------------------------------------------------------------


def test_users_of_global_generators_take_turns_in_threads() -> None:
    envs = [GlobalRandomGuard(Dice(None)) for _ in range(4)]
    for env in envs:
        env._env.offset = 0.0
        env.reset(1, "train")
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda env: [env.step("throw") for _ in range(50)], envs))
    assert told[1:] == [told[0]] * 3
