"""The environments as an `EnvStateManager` has them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from parallel_envs.choices import GroupMode
from parallel_envs.errors import EnvError
from parallel_envs.groups import BadSettings, DataFileError, EnvStateManager
from parallel_envs.testing.conformance import assert_same_batch

# As YAML would have it, and as it stands in configurations written for the original.
TAGS: dict[str, dict[str, Any]] = {
    "Bandit": {"env_type": "bandit", "max_actions_per_traj": 1, "env_config": None},
    "Coordinates": {"env_type": "sokoban", "env_config": {"dim_x": 6, "dim_y": 6, "num_boxes": 1, "max_steps": 100}},
    "Signs": {"env_type": "sokoban", "env_config": {"search_depth": 30, "grid_lookup": {0: "W", 1: "."}}},
    "Pictures": {"env_type": "sokoban", "env_config": {"dim_room": [5, 7], "num_boxes": 1, "render_mode": "rgb_array"}},
    "Lake": {"env_type": "frozen_lake", "env_config": {"size": 5, "p": 1, "is_slippery": True}},
    "Countdown": {"env_type": "countdown", "max_actions_per_traj": 1, "env_config": {"num_numbers": [3, 4]}},
    "MetamathQA": {"env_type": "metamathqa", "max_actions_per_traj": 5, "env_config": None},
    "WebShop": {"env_type": "webshop", "max_actions_per_traj": 8, "env_config": {"show_attrs": True}},
}
TURNS = [
    ["Up", "down", "search[gold plated cable]", "1 + 1"],
    ["left", "click[b0cabl0001]", "fly", "The answer is: 4"],
    ["Right", "Right", "click[black]", "click[buy now]"],
]


def configured(tags: dict[str, Any], **settings: Any) -> dict[str, Any]:
    block = {"env_groups": len(tags), "group_size": 2, "env_configs": {"tags": list(tags), "n_groups": [1] * len(tags)}}
    away = {tag: {**said, "where": "process"} for tag, said in tags.items()}
    return {"es_manager": {"train": block, "val": block, **settings}, "custom_envs": away}


def course(config: dict[str, Any], mode: GroupMode) -> list[Any]:
    said: list[Any] = []
    with EnvStateManager(config, mode) as manager:
        entries = manager.reset(seed=5)
        for turn in TURNS:
            said.append(entries)
            asked = [entry["env_id"] for entry in entries]
            entries = manager.step(
                [{"env_id": env, "llm_response": "", "llm_raw_response": "", "actions": turn} for env in asked]
            )
        said += [manager.get_rollout_states(), manager.metrics(), manager.render("text")]
    return said


def test_workers_change_nothing_about_them() -> None:
    for mode in ("train", "val"):
        expected = course(configured(TAGS, use_multiprocessing=False), mode)
        assert not any("failure" in entry for entry in expected[-3])
        assert_same_batch(course(configured(TAGS, max_workers=2), mode), expected)


def test_members_of_a_group_begin_alike_and_have_metrics_of_their_own() -> None:
    said = course(configured(TAGS, use_multiprocessing=False), "train")
    first = [entry["history"][0]["state"] for entry in said[0]]
    assert first[::2] == first[1::2]
    assert len(set(first)) == len(TAGS)
    for name in ("Bandit/best_arm_lead", "Coordinates/boxes_on_target", "Lake/tiles_to_goal", "MetamathQA/attempts"):
        assert name in said[-2]
    assert {"Countdown/best_score", "WebShop/task_score", "WebShop/success"} <= said[-2].keys()


@pytest.mark.parametrize("use_multiprocessing", [False, True])
def test_a_broken_file_is_an_error_of_the_first_reset(tmp_path: Path, use_multiprocessing: bool) -> None:
    (tmp_path / "set.jsonl").write_text('{"query": "?", "response": "The answer is: 1"}\n{"query": "?"}\n')
    tags = {"It": {"env_type": "metamathqa", "env_config": {"data_path": str(tmp_path / "set.jsonl")}}}
    with (
        EnvStateManager(configured(tags, use_multiprocessing=use_multiprocessing, max_workers=1)) as manager,
        pytest.raises(DataFileError, match=r"set\.jsonl, line 2: the field `response` is missing") as caught,
    ):
        manager.reset()
    error: Exception = caught.value
    assert (caught.value.path, caught.value.line) == (str(tmp_path / "set.jsonl"), 2)
    assert isinstance(error, EnvError)
    assert isinstance(error, ValueError)
    assert error.env_ids == (0,)


@pytest.mark.parametrize(
    ("env_type", "config", "words"),
    [
        ("sokoban", {"num_boxs": 1}, "`custom_envs.It.env_config.num_boxs` is unknown. Did you mean `num_boxes`"),
        ("sokoban", {"dim_room": [2, 6]}, r"dim_room\[0\]=2 is out of range"),
        ("frozen_lake", {"size": "big"}, "size"),
        ("countdown", {"num_numbers": [3, 2]}, "ends before it begins"),
        ("countdown", {"number_range": [1, 2], "target_range": [500, 600]}, "is out of reach"),
        ("sokoban", {"dim_room": [3, 9], "num_boxes": 3}, "there is space for 2 at most"),
        ("sokoban", {"action_lookup": {1: "Down"}}, "one name for two actions: 1 is 'Down', and 2 is 'Down'"),
        ("bandit", {"num_pulls": True}, r"`num_pulls: True`: Input should be a valid integer"),
        ("bandit", {"num_pulls": "2"}, r"`num_pulls: '2'`: Input should be a valid integer"),
        ("bandit", {"noise": True}, r"`noise: True`: Input should be a valid number"),
        ("frozen_lake", {"is_slippery": "yes"}, r"`is_slippery: 'yes'`: Input should be a valid boolean"),
        ("frozen_lake", {"is_slippery": 1}, r"`is_slippery: 1`: Input should be a valid boolean"),
        ("sokoban", {"max_steps": True}, r"`max_steps: True`: Input should be a valid integer"),
        ("sokoban", {"dim_room": [6, True]}, r"`dim_room.1: True`: Input should be a valid integer"),
        ("webshop", {"file_path": "items.json"}, "without instructions_path"),
    ],
)
def test_configs_that_cannot_be_are_bad_settings(env_type: str, config: dict[str, Any], words: str) -> None:
    tags = {"It": {"env_type": env_type, "env_config": config}}
    with pytest.raises(BadSettings, match=words):
        EnvStateManager(configured(tags))


def test_whole_numbers_and_small_ones_may_be_spelt_as_yaml_has_them() -> None:
    config = {"num_pulls": 2.0, "noise": "1e-3", "lo_arm_score": 0}
    [seat, _] = EnvStateManager(configured({"It": {"env_type": "bandit", "env_config": config}})).envs
    assert (seat.config.num_pulls, type(seat.config.num_pulls), seat.config.noise) == (2, int, 0.001)
