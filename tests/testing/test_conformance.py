"""The check finds what departs from Gymnasium's in-process env, and names it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import GraphInstance
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from parallel_envs.testing import (
    InfoKind,
    RewardKind,
    ScriptedEnv,
    assert_same_batch,
    check_vector_env,
    first_difference,
)

MODES = ("NextStep", "SameStep", "Disabled")

informative = partial(ScriptedEnv, infos=[InfoKind.SCALARS])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("make_vector", [SyncVectorEnv, partial(AsyncVectorEnv, context="fork")])
def test_gymnasiums_own_envs_conform(make_vector: Any, mode: str) -> None:
    make = partial(ScriptedEnv, infos=list(InfoKind))
    check_vector_env(make, 3, 30, make_vector=make_vector, autoreset_mode=mode)


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_the_manager_is_what_is_checked_by_default(backend: str) -> None:
    check_vector_env(informative, 0, 10, num_envs=4, num_workers=2, backend=backend)


class SpoiltVector(SyncVectorEnv[Any, Any]):
    """Right but for what a test spoils in the results of the fourth step."""

    def __init__(self, factories: Any, spoil: Any, **settings: Any) -> None:
        super().__init__(factories, **settings)
        self.spoil = spoil
        self.num_steps = 0

    def step(self, actions: Any) -> Any:
        results = list(super().step(actions))
        self.num_steps += 1
        return tuple(self.spoil(results)) if self.num_steps == 4 else tuple(results)


def added(part: int, place: Any, key: str | None = None) -> Any:
    """Spoils one number of a part of the results: observations, rewards, terminations, truncations or infos."""

    def spoil(results: list[Any]) -> list[Any]:
        array = results[part] if key is None else results[part][key]
        array[place] = not array[place] if array.dtype == bool else array[place] + 1
        return results

    return spoil


def wrong_reward_dtype(results: list[Any]) -> list[Any]:
    return [results[0], results[1].astype(np.float32), *results[2:]]


def missing_mask(results: list[Any]) -> list[Any]:
    del results[4]["_int"]
    return results


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (added(0, (2, 1)), r"step 3, env 2: observations\[2\]\[1\]"),
        (added(1, 1), r"step 3, env 1: rewards\[1\]"),
        (wrong_reward_dtype, "step 3, rewards: an array of float32"),
        (added(3, 0), r"step 3, env 0: truncations\[0\]"),
        (missing_mask, "step 3, infos: missing keys.*_int"),
        (added(4, 2, "uint8"), r"step 3, env 2: infos\['uint8'\]\[2\]"),
    ],
)
def test_a_departure_is_named_by_step_env_and_key(spoil: Any, text: str) -> None:
    with pytest.raises(AssertionError, match=text):
        check_vector_env(informative, 0, 8, make_vector=partial(SpoiltVector, spoil=spoil))


def test_results_that_are_overwritten_later_are_found_unless_they_may_be() -> None:
    with pytest.raises(AssertionError, match="overwritten later"):
        check_vector_env(ScriptedEnv, 0, 8, make_vector=lambda made: SyncVectorEnv(made, copy=False))
    check_vector_env(ScriptedEnv, 0, 8, make_vector=SyncVectorEnv, copy=False)
    factories = [partial(ScriptedEnv, episode_lengths=[length]) for length in (1, 2, 3)]
    check_vector_env(factories, 3, 10, make_vector=SyncVectorEnv)  # each env may have its own factory


# What Gymnasium's own envs get wrong, and the check therefore finds.
@pytest.mark.parametrize(
    ("make", "settings"),
    [
        (partial(ScriptedEnv, spaces.Text(5)), {}),
        (partial(ScriptedEnv, spaces.OneOf([spaces.Discrete(9)])), {}),
        (partial(ScriptedEnv, reuse_buffers=True), {"autoreset_mode": "SameStep"}),
        (ScriptedEnv, {"shared_memory": False}),
        (partial(ScriptedEnv, rewards=[RewardKind.ARRAY]), {}),
    ],
)
def test_known_faults_are_found(make: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(AssertionError):
        check_vector_env(make, 3, 30, make_vector=partial(AsyncVectorEnv, context="fork"), **settings)


def test_an_env_that_is_not_deterministic_does_not_pass() -> None:
    class RandomEnv(ScriptedEnv):
        def step(self, action: Any) -> Any:
            _, *rest = super().step(action)
            return np.random.default_rng().random(3, np.float32), *rest

    with pytest.raises(AssertionError, match="step 0"):
        check_vector_env(RandomEnv, 0, 3, backend="serial")


def test_what_makes_no_env_is_refused() -> None:
    for make in ("CartPole-v1", [], 3, [3]):
        with pytest.raises(TypeError, match=r"makes no env\. Give a function"):
            check_vector_env(make)  # type: ignore[arg-type]  # that it is refused is the fact


class ResetCountingEnv(ScriptedEnv):
    """Its episodes depend on how many came before."""

    def __init__(self) -> None:
        super().__init__()
        self.num_resets = 0

    def reset(self, **arguments: Any) -> Any:
        self.num_resets += 1
        observation, info = super().reset(**arguments)
        return observation + self.num_resets, info


def test_an_env_that_counts_its_resets_gets_a_warning() -> None:
    with pytest.warns(
        UserWarning, match=r"(?s)ResetCounting.*reset a second time with seed 3.*calls\]\[0\]\[0\]"
    ) as warned:
        check_vector_env(ResetCountingEnv, 3, 10, make_vector=SyncVectorEnv)
    assert [one.filename for one in warned] == [__file__]


NAN = float("nan")


def objects(*values: Any) -> Any:
    array = np.full(len(values), None, object)
    for index, value in enumerate(values):
        array[index] = value
    return array


def graph(value: float) -> GraphInstance:
    return GraphInstance(np.full((2, 1), value), None, None)


SAME = [
    1,
    -0.0,
    NAN,
    np.float32("nan"),
    "text",
    None,
    np.array([1.0, NAN]),
    np.array([1 + 2j, complex(NAN, 1)]),
    np.zeros((0, 3)),
    np.array(["a", "b"]),
    np.array(["2020-01-01", "NaT"], "datetime64[D]"),
    objects({"a": np.arange(2)}, None, (1, NAN)),
    {"a": (1, [2.0, "x"]), 3: {}},
    graph(1.0),
]

# Pairs that differ, and where.
DIFFERENT: list[tuple[Any, Any, tuple[Any, ...]]] = [
    (1, 1.0, ()),
    (1, True, ()),
    (1.0, np.float64(1.0), ()),
    (0.0, -0.0, ()),
    (NAN, 1.0, ()),
    ("a", "b", ()),
    (None, 0, ()),
    ([1], (1,), ()),
    ([1, 2], [1], ()),
    (np.zeros(2), np.zeros(2, np.float32), ()),
    (np.zeros(2), np.zeros((2, 1)), ()),
    (np.zeros(1), 0.0, ()),
    (np.array([1.0, 0.0]), np.array([1.0, -0.0]), (1,)),
    (np.array([[1, 2], [3, 4]]), np.array([[1, 2], [3, 5]]), (1, 1)),
    (np.array([NAN, 1.0]), np.array([NAN, NAN]), (1,)),
    (np.array(["a"]), np.array(["b"]), (0,)),
    (objects(None, {"a": 1}), objects(None, {"a": 2}), (1, "a")),
    ({"a": 1}, {"a": 1, "b": 2}, ()),
    ({"a": {"b": (1, 2)}}, {"a": {"b": (1, 3)}}, ("a", "b", 1)),
    (graph(1.0), graph(2.0), (0, 0, 0)),
    (graph(1.0), tuple(graph(1.0)), ()),
]


def test_a_value_is_the_same_as_itself_and_a_difference_is_found_where_it_is() -> None:
    for value in SAME:
        assert_same_batch(value, value)
    for one, other, path in DIFFERENT:
        for actual, expected in ((one, other), (other, one)):
            difference = first_difference(actual, expected)
            assert difference is not None, (actual, expected)
            assert difference.path == path


def test_the_error_shows_place_and_values() -> None:
    with pytest.raises(AssertionError, match=r"\['a'\]\[1\]: .*3.* instead of .*2"):
        assert_same_batch({"a": np.array([1, 3])}, {"a": np.array([1, 2])})
    with pytest.raises(AssertionError, match=r"missing keys \[\"'b'\"\], unexpected keys \[\"'c'\"\]"):
        assert_same_batch({"a": 1, "c": 2}, {"a": 1, "b": 2})
    assert_same_batch({"a": 1, "b": 2}, {"b": 2, "a": 1})
