"""The same for any number of workers, and for none: the caller is right, and workers must agree to the bit."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel_envs.choices import GroupMode
from parallel_envs.errors import EnvError
from parallel_envs.groups import DataFileError, EnvFailure, EnvStateManager, EnvStatus
from parallel_envs.testing.conformance import assert_same_batch
from tests.groups.walks import configured, inputs

WORDS = ["Right", "left", " JUMP ", "throw", "please", "0", "down", "nonsense", ""]

groups = st.dictionaries(
    st.sampled_from(["Walk", "Pictures", "Talk", "Dice", "Lake"]), st.integers(1, 2), min_size=1, max_size=4
)
turns = st.lists(st.lists(st.lists(st.sampled_from(WORDS), max_size=4), min_size=1, max_size=5), max_size=4)


def of_tags(tags: dict[str, Any], size: int, **said: Any) -> dict[str, Any]:
    """A configuration with a group of each tag."""
    counts = {"tags": list(tags), "n_groups": [1] * len(tags)}
    block = {"env_groups": len(tags), "group_size": size, "env_configs": counts}
    return {"es_manager": {"train": block, "val": block, **said}, "custom_envs": tags}


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
    """So many with SLOW=1, and otherwise a third of them; those of the profile are the same in every run."""
    number = number if os.environ.get("SLOW") == "1" else -(-number // 3)
    return settings(max_examples=number, suppress_health_check=[HealthCheck.function_scoped_fixture])


@examples(12)
@given(
    groups=groups,
    size=st.integers(1, 3),
    seed=st.integers(0, 9),
    turns=turns,
    mode=st.sampled_from(["train", "val"]),
    num_workers=st.sampled_from([1, 2, 5]),
)
def test_workers_change_nothing(
    groups: dict[str, int], size: int, seed: int, turns: list[list[list[str]]], mode: GroupMode, num_workers: int
) -> None:
    expected = course(configured(groups, size, use_multiprocessing=False), seed, turns, mode=mode)
    told = course(configured(groups, size, max_workers=num_workers), seed, turns, mode=mode)
    assert_same_batch(told, expected)


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


def test_mixed_places_threads_and_start_methods_change_nothing() -> None:
    config = configured({"Walk": 2, "Talk": 1, "Dice": 1}, 2, max_workers=2, sequential_env_types=["talk"])
    turns = [[["right", "left"], ["throw"], ["please"]], [["jump"], ["throw", "throw"]]]
    expected = course({**config, "es_manager": {**config["es_manager"], "use_multiprocessing": False}}, 3, turns)
    for context in ("fork", "spawn"):
        config["es_manager"]["context"] = context
        assert_same_batch(course(config, 3, turns), expected)
    config["custom_envs"] = {
        "Walk": {**config["custom_envs"]["Walk"], "parallel_friendly": True},
        "Talk": config["custom_envs"]["Talk"],
        "Dice": {**config["custom_envs"]["Dice"], "parallel_friendly": True, "max_workers": 2},
    }
    assert_same_batch(course(config, 3, turns), expected)


# ---- the environments that come with the package, as configurations have them ---------------------------------------

SOKOBAN = {"env_type": "sokoban"}
TAGS: dict[str, dict[str, Any]] = {
    "Bandit": {"env_type": "bandit", "max_actions_per_traj": 1, "env_config": None},
    "Bandits": {"env_type": "bandit", "env_config": {"num_pulls": 3, "noise": 0.5, "action_space_start": 0}},
    "Coordinates": SOKOBAN
    | {"env_config": {"dim_x": 6, "dim_y": 6, "num_boxes": 1, "observation_format": "grid_coord"}},
    "Signs": SOKOBAN | {"env_config": {"search_depth": 30, "grid_lookup": {0: "W", 1: "."}, "max_steps": 4}},
    "Pictures": SOKOBAN | {"env_config": {"dim_room": [5, 7], "num_boxes": 1, "render_mode": "rgb_array"}},
    "Lake": {"env_type": "frozen_lake", "env_config": {"size": 5, "p": 1, "is_slippery": True}},
    "Countdown": {"env_type": "countdown", "max_actions_per_traj": 1, "env_config": {"num_numbers": [3, 4]}},
    "MetamathQA": {"env_type": "metamathqa", "max_actions_per_traj": 5, "env_config": None},
    "WebShop": {"env_type": "webshop", "max_actions_per_traj": 8, "env_config": {"show_attrs": True}},
    "Rich": {
        "env_type": "webshop",
        "env_config": {"human_goals": False, "observation_mode": "text_rich"},
    },
}
PLAYED = [
    [["Up", "down", "search[gold plated cable]", "1 + 1", "Bond"]],
    [["left", "click[b0cabl0001]", "fly", "The answer is: 4", "Share"], ["North", "#### 12", "baker", "2 - 1"]],
    [["Right", "Right", "click[black]", "click[buy now]", "\x00", "[" * 60], ["East", "search[steel kettle]", "1/0"]],
]


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize(("num_workers", "threads"), [(2, False), (5, True)])
@pytest.mark.parametrize("mode", ["train", "val"])
def test_members_of_a_group_begin_alike_have_metrics_of_their_own_and_never_fail(
    mode: GroupMode, num_workers: int, threads: bool
) -> None:
    said = course(of_tags(TAGS, 2, use_multiprocessing=False), 5, PLAYED, mode=mode)
    first = [entry["history"][0]["state"] for entry in said[0]]
    assert first[::2] == first[1::2]
    assert len(set(first)) >= len(TAGS) - 1
    states, metrics, *_ = said[-4:]
    assert not any("failure" in entry for entry in states)
    told = {"Bandit/best_arm_lead", "Coordinates/boxes_on_target", "Lake/tiles_to_goal", "MetamathQA/attempts"}
    assert told | {"Countdown/best_score", "WebShop/task_score", "WebShop/success"} <= metrics.keys()
    away = {tag: {**said, "where": "process", "parallel_friendly": threads} for tag, said in TAGS.items()}
    assert_same_batch(course(of_tags(away, 2, max_workers=num_workers), 5, PLAYED, mode=mode), said)
    mixed = {tag: {**said, "where": "auto"} for tag, said in TAGS.items()}
    assert_same_batch(course(of_tags(mixed, 2, max_workers=num_workers), 5, PLAYED, mode=mode), said)


@pytest.mark.parametrize("use_multiprocessing", [False, True])
def test_a_broken_file_is_an_error_of_the_first_reset(tmp_path: Path, use_multiprocessing: bool) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text('{"query": "?", "response": "The answer is: 1"}\n{"query": "?"}\n')
    tags = {"It": {"env_type": "metamathqa", "env_config": {"data_path": str(path)}, "where": "process"}}
    with (
        EnvStateManager(of_tags(tags, 2, use_multiprocessing=use_multiprocessing, max_workers=1)) as manager,
        pytest.raises(DataFileError, match=r"set\.jsonl, line 2: the field `response` is missing") as caught,
    ):
        manager.reset()
    error: Exception = caught.value
    assert (caught.value.path, caught.value.line) == (str(path), 2)
    assert isinstance(error, EnvError)
    assert isinstance(error, ValueError)
    assert error.env_ids == (0,)
