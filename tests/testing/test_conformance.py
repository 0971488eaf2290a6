"""The check finds what departs from Gymnasium's in-process env, and names it."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv

from parallel_envs.testing import InfoKind, RewardKind, ScriptedEnv, check_vector_env

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


def test_both_are_closed_after_a_failure() -> None:
    closed = []

    class ClosingEnv(ScriptedEnv):
        def close(self) -> None:
            closed.append(self)

    with pytest.raises(AssertionError):
        check_vector_env(ClosingEnv, 0, 8, make_vector=partial(SpoiltVector, spoil=added(0, (2, 1))))
    assert len(closed) == 6


@pytest.mark.parametrize("make", ["CartPole-v1", [], 3, [3]])
def test_what_makes_no_env_is_refused(make: Any) -> None:
    with pytest.raises(TypeError, match=r"makes no env\. Give a function"):
        check_vector_env(make)
