"""Episodes kept as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.evaluation.recordings import episode_file, read_episode, save_episode
from parallel_envs.evaluation.records import BadDocument, EpisodeRecord, Trajectory


def record(trajectory: Trajectory | None, mission: str = "m") -> EpisodeRecord:
    return EpisodeRecord(mission=mission, episode=7, seed=3, returns={"a": 1.5}, length=2, trajectory=trajectory)


def trajectory(observations: list[dict[Any, Any]], **others: Any) -> Trajectory:
    steps = len(observations) - 1
    known: dict[str, Any] = {
        "observations": observations,
        "actions": [{"a": 1}] * steps,
        "rewards": [{"a": 0.5}] * steps,
        "terminations": [{"a": False}] * steps,
        "truncations": [{"a": False}] * steps,
    }
    return Trajectory(**{**known, **others})


def saved(tmp_path: Path, observations: list[dict[Any, Any]], **others: Any) -> dict[str, Any]:
    path = save_episode(tmp_path / "new" / "folder", record(trajectory(observations, **others)))
    return dict(read_episode(path).arrays)


def test_an_episode_comes_back(tmp_path: Path) -> None:
    seen = [{"a": np.array([step, 0.25], np.float32)} for step in range(3)]
    path = save_episode(tmp_path, record(trajectory(seen, actions=[{"a": np.int64(4)}, {"a": np.int64(2)}])))
    assert path == tmp_path / "m-0007.npz"
    read = read_episode(path)
    assert read.record == record(None)
    assert read.arrays.keys() == {
        f"{part}/a" for part in ("observations", "actions", "rewards", "terminations", "truncations")
    }
    assert read.arrays["observations/a"].dtype == np.float32
    assert read.arrays["observations/a"].tolist() == [[0, 0.25], [1, 0.25], [2, 0.25]]
    assert read.arrays["actions/a"].tolist() == [4, 2]
    assert read.arrays["terminations/a"].dtype == np.bool_


def test_parts_of_observations_have_arrays_of_their_own(tmp_path: Path) -> None:
    seen = [{"a": {"camera": np.full((2, 2), step, np.uint8), "joints": (step, [0.5, 1.5])}} for step in range(2)]
    arrays = saved(tmp_path, seen)
    assert arrays["observations/a/camera"].shape == (2, 2, 2)
    assert arrays["observations/a/joints/0"].tolist() == [0, 1]
    assert arrays["observations/a/joints/1"].tolist() == [[0.5, 1.5]] * 2


def test_agents_come_and_go(tmp_path: Path) -> None:
    arrays = saved(tmp_path, [{"a": 1}, {"a": 2, (0, "b"): 7}, {(0, "b"): 8}])
    assert arrays["observations/a"].tolist() == [1, 2]
    assert arrays["steps/observations/a"].tolist() == [0, 1]
    assert arrays["observations/(0, 'b')"].tolist() == [7, 8]
    assert arrays["steps/observations/(0, 'b')"].tolist() == [1, 2]


def test_what_has_no_fixed_shape_is_text(tmp_path: Path) -> None:
    assert saved(tmp_path, [{"a": [1]}, {"a": [1, 2]}])["observations/a"].tolist() == ["[1]", "[1, 2]"]
    assert saved(tmp_path, [{"a": "north"}, {"a": "up"}])["observations/a"].tolist() == ["north", "up"]
    assert saved(tmp_path, [{"a": None}, {"a": None}])["observations/a"].tolist() == ["None", "None"]
    assert saved(tmp_path, [{"a": {"x": 1}}, {"a": {"y": 1}}])["observations/a"].tolist() == ["{'x': 1}", "{'y': 1}"]


@pytest.mark.parametrize("mission", ["../../etc/passwd", "ALE/Breakout-v5", "a:b", "..", "", "spread,N=2"])
def test_a_mission_never_leads_out_of_the_folder(mission: str, tmp_path: Path) -> None:
    file = episode_file(tmp_path, record(None, mission))
    assert file.parent == tmp_path
    assert file.name.endswith("-0007.npz")
    assert file != episode_file(tmp_path, record(None, mission.replace("/", "_").replace(":", "_") + " "))
    assert file.resolve().parent == tmp_path.resolve()


def test_what_is_no_episode_is_told(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no trajectory\. Evaluate with trajectories=True"):
        save_episode(tmp_path, record(None))
    with pytest.raises(BadDocument, match=r"none\.npz is not a saved episode"):
        read_episode(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    with pytest.raises(BadDocument, match=r"other\.npz is not a saved episode"):
        read_episode(tmp_path / "other.npz")
