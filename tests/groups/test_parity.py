"""The same for any number of workers, and for none: the caller is right, and workers must agree to the bit."""

from __future__ import annotations

import dataclasses
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel_envs.choices import GroupMode
from parallel_envs.groups import EnvFailure, EnvStateManager, EnvStatus
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.envs.configs import CONFIGS, turns_with
from tests.groups.walks import configured, inputs

WORDS = ["Right", "left", " JUMP ", "throw", "please", "0", "down", "nonsense", ""]

groups = st.dictionaries(
    st.sampled_from(["Walk", "Pictures", "Talk", "Dice", "Lake"]), st.integers(1, 2), min_size=1, max_size=4
)
turns = st.lists(st.lists(st.lists(st.sampled_from(WORDS), max_size=4), min_size=1, max_size=5), max_size=4)
modes = st.sampled_from(["train", "val"])
kinds = st.sampled_from(sorted(CONFIGS))


def shipped(env_type: str) -> st.SearchStrategy[dict[str, Any]]:
    """A tag of an environment that comes with groups."""
    return st.fixed_dictionaries(
        {
            "env_type": st.just(env_type),
            "env_config": CONFIGS[env_type],
            "max_actions_per_traj": st.integers(1, 9),
            "where": st.sampled_from(["process", "process", "auto"]),
            "parallel_friendly": st.booleans(),
        }
    )


def course(
    config: dict[str, Any],
    seed: int,
    turns: list[list[list[str]]],
    *,
    mode: GroupMode = "train",
    forgiving: bool = False,
) -> list[Any]:
    """All that a manager says in two episodes; every other turn is one of some environments only."""
    said: list[Any] = []
    with EnvStateManager(config, mode) as manager:
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


def examples(number: int) -> settings:
    """So many; those of the profile are the same in every run."""
    return settings(max_examples=number, suppress_health_check=[HealthCheck.function_scoped_fixture])


@examples(12)
@given(
    groups=groups,
    size=st.integers(1, 3),
    seed=st.integers(0, 9),
    turns=turns,
    mode=modes,
    num_workers=st.sampled_from([1, 2, 5]),
)
def test_workers_change_nothing(
    groups: dict[str, int], size: int, seed: int, turns: list[list[list[str]]], mode: GroupMode, num_workers: int
) -> None:
    expected = course(configured(groups, size, use_multiprocessing=False), seed, turns, mode=mode)
    told = course(configured(groups, size, max_workers=num_workers), seed, turns, mode=mode)
    assert_same_batch(told, expected)


@pytest.mark.parametrize("env_type", sorted(CONFIGS))
@examples(8)
@given(
    data=st.data(), size=st.integers(1, 3), seed=st.integers(0, 99), mode=modes, num_workers=st.sampled_from([1, 2, 5])
)
def test_workers_change_nothing_about_what_is_shipped(
    env_type: str, data: st.DataObject, size: int, seed: int, mode: GroupMode, num_workers: int
) -> None:
    tags = {"It": data.draw(shipped(env_type)), "Other": data.draw(kinds.flatmap(shipped))}
    turns = turns_with(env_type, random.Random(seed))
    expected = course(of_tags(tags, size, use_multiprocessing=False), seed, turns, mode=mode, forgiving=True)
    told = course(of_tags(tags, size, max_workers=num_workers), seed, turns, mode=mode, forgiving=True)
    assert_same_batch(untraced(told), untraced(expected))


def of_tags(tags: dict[str, Any], size: int, **said: Any) -> dict[str, Any]:
    """A configuration with a group of each tag."""
    block = {
        "env_groups": len(tags),
        "group_size": size,
        "env_configs": {"tags": list(tags), "n_groups": [1] * len(tags)},
    }
    return {"es_manager": {"train": block, "val": block, **said}, "custom_envs": tags}


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
            return {field.name: untraced(getattr(told, field.name)) for field in dataclasses.fields(told)}
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
