"""The same for any number of workers, and for none: the caller is right, and workers must agree to the bit."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel_envs.groups import EnvFailure, EnvStateManager, EnvStatus
from parallel_envs.testing.equality import assert_same_batch
from tests.groups.walks import configured, inputs

WORDS = ["Right", "left", " JUMP ", "throw", "please", "0", "down", "nonsense", ""]

groups = st.dictionaries(
    st.sampled_from(["Walk", "Pictures", "Talk", "Dice", "Lake"]), st.integers(1, 2), min_size=1, max_size=4
)
turns = st.lists(st.lists(st.lists(st.sampled_from(WORDS), max_size=4), min_size=1, max_size=5), max_size=4)


def course(config: dict[str, Any], seed: int, turns: list[list[list[str]]], *, forgiving: bool = False) -> list[Any]:
    """All that a manager says in two episodes; every other turn is one of some environments only."""
    said: list[Any] = []
    with EnvStateManager(config) as manager:
        for start in (seed, None):
            entries = manager.reset(start)
            said.append(entries)
            for number, turn in enumerate(turns):
                well = [entry for entry in entries if not (forgiving and "failure" in entry)]
                asked = [entry["env_id"] for entry in well][number % 2 :][::-1]
                entries = manager.step(inputs({env: turn[env % len(turn)] for env in asked})) or entries[:0]
                said.append(entries)
            said += [manager.get_rollout_states(), manager.metrics(), manager.statuses, manager.render()]
    return said


@settings(max_examples=4, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(groups=groups, size=st.integers(1, 3), seed=st.integers(0, 9), turns=turns)
def test_workers_change_nothing(groups: dict[str, int], size: int, seed: int, turns: list[list[list[str]]]) -> None:
    expected = course(configured(groups, size, use_multiprocessing=False), seed, turns)
    for num_workers in (1, 2, 5):
        assert_same_batch(course(configured(groups, size, max_workers=num_workers), seed, turns), expected)


def test_failures_are_the_same_wherever_they_happen() -> None:
    turns = [
        [["right"], ["right", "raise"], ["bad"], ["right"]],
        [["exit"], ["right"], ["right", "right"]],
        [["right"], ["raise"], ["nonsense"]],
    ]
    groups = {"Breaking": 2, "Walk": 1}
    expected = untraced(course(configured(groups, 3, use_multiprocessing=False), 1, turns, forgiving=True))
    for num_workers in (1, 2, 5):
        told = course(configured(groups, 3, max_workers=num_workers), 1, turns, forgiving=True)
        assert_same_batch(untraced(told), expected)


def untraced(told: Any) -> Any:
    """The same, with failures as what they say: where in which process they were raised is another matter."""
    match told:
        case EnvFailure():
            return dataclasses.asdict(dataclasses.replace(told, traceback=""))
        case EnvStatus():
            return {name: untraced(getattr(told, name)) for name in ("num_actions", "rewards", "truncated", "failure")}
        case dict():
            return {key: untraced(value) for key, value in told.items()}
        case list() | tuple():
            return [untraced(one) for one in told]
    return told


def test_mixed_places_and_threads_change_nothing() -> None:
    config = configured({"Walk": 2, "Talk": 1, "Dice": 1}, 2, max_workers=2, sequential_env_types=["talk"])
    turns = [[["right", "left"], ["throw"], ["please"]], [["jump"], ["throw", "throw"]]]
    expected = course({**config, "es_manager": {**config["es_manager"], "use_multiprocessing": False}}, 3, turns)
    config["custom_envs"] = {
        "Walk": {**config["custom_envs"]["Walk"], "parallel_friendly": True},
        "Talk": config["custom_envs"]["Talk"],
        "Dice": {**config["custom_envs"]["Dice"], "parallel_friendly": True, "max_workers": 2},
    }
    assert_same_batch(course(config, 3, turns), expected)


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_other_start_methods_change_nothing(context: str) -> None:
    turns = [[["right", "jump"], ["left"]]]
    expected = course(configured({"Walk": 1}, use_multiprocessing=False), 0, turns)
    assert_same_batch(course(configured({"Walk": 1}, context=context, max_workers=1), 0, turns), expected)
