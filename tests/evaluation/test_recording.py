"""Videos of episodes that were evaluated."""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from parallel_envs.choices import Recorded
from parallel_envs.evaluation import BadEvaluation, EpisodeRecord, EvaluationResult, Failure, evaluate, recordings
from parallel_envs.evaluation.recordings import Video, chosen_records, record_videos

pytest.importorskip("moviepy")

BROKEN = Failure(kind="env", error_type="ValueError", message="no")


class Light(gymnasium.Env[Any, Any]):
    """Each frame is of one colour, and the seed says how many there are. A fault may be asked for."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012  # as Gymnasium has it

    def __init__(self, render_mode: str | None = None, fault: str = "") -> None:
        self.render_mode, self.fault = render_mode, fault

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        if self.fault == "unseeded":
            self.np_random = np.random.default_rng()
        self.length, self.steps = int(self.np_random.integers(2, 1000)) % 17 + 2, 0
        return 0, {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return 0, 1.0, self.steps == self.length, False, {}

    def render(self) -> Any:
        if self.fault == "exits":
            os._exit(3)
        if self.fault == "raises":
            raise RuntimeError("no screen")
        return None if self.fault == "dark" else np.full((20, 30, 3), self.steps, np.uint8)


def filmed(folder: Path, which: Recorded = "best", fault: str = "") -> tuple[EvaluationResult, list[Video]]:
    missions = {"light": functools.partial(Light, fault=fault)}
    result = evaluate(missions, "random", episodes=3, seed=1)
    return result, list(record_videos(result, missions, "random", which, folder))


def frames_in(path: Path) -> tuple[int, float, Any]:
    from moviepy.video.io.VideoFileClip import VideoFileClip

    with VideoFileClip(str(path)) as clip:
        return clip.reader.n_frames, clip.fps, clip.get_frame(0)


def test_the_best_episode_is_filmed_from_its_first_frame_to_its_last(tmp_path: Path) -> None:
    result, (recordings,) = filmed(tmp_path / "videos")
    longest = max(result.episodes, key=lambda one: one.length)
    assert (recordings.record, recordings.problem) == (longest, "")
    assert recordings.path == tmp_path / "videos" / f"light-{longest.episode:04d}.mp4"
    count, fps, first = frames_in(tmp_path / "videos" / f"light-{longest.episode:04d}.mp4")
    assert (count, fps, first.shape) == (longest.length + 1, 10.0, (20, 30, 3))
    assert [file.suffix for file in (tmp_path / "videos").iterdir()] == [".mp4"]


def test_all_episodes_are_filmed(tmp_path: Path) -> None:
    result, videos = filmed(tmp_path, "all")
    assert [recordings.record for recordings in videos] == list(result.episodes)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("dark", "With render_mode='rgb_array' the environment renders NoneType"),
        ("raises", "RuntimeError: no screen"),
        ("exits", "rendering ended its process (exit code 3)"),
    ],
)
def test_what_cannot_be_filmed_is_told_and_the_next_is_tried(fault: str, problem: str, tmp_path: Path) -> None:
    _, videos = filmed(tmp_path, "all", fault)
    assert [recordings.path for recordings in videos] == [None] * 3
    assert all(problem in recordings.problem for recordings in videos)
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_is_made_without_render_mode_is_told_to_take_it(tmp_path: Path) -> None:
    missions = {"light": lambda fault="": Light(fault=fault)}
    result = evaluate(missions, "random", episodes=1)
    (recordings,) = record_videos(result, missions, "random", "all", tmp_path, backend="serial")
    assert "Videos need an environment that takes render_mode='rgb_array'" in recordings.problem


def test_an_episode_that_goes_another_way_is_told(tmp_path: Path) -> None:
    _, videos = filmed(tmp_path, "all", "unseeded")
    assert any(
        "its environment or a policy depends on more than the seed" in recordings.problem for recordings in videos
    )
    assert all(recordings.path is not None for recordings in videos)


# ---- which episodes ----------------------------------------------------------------------------------------------


def result(*scores: float | None) -> EvaluationResult:
    return EvaluationResult(
        episodes=tuple(
            EpisodeRecord(
                mission=mission,
                episode=number,
                seed=0,
                returns={"a": -99.0 if score is None else score},
                failure=BROKEN if score is None else None,
            )
            for mission in ("one", "two")
            for number, score in enumerate(scores)
        )
    )


@pytest.mark.parametrize(("which", "number"), [("best", 1), ("worst", 4), ("median", 2)])
def test_each_mission_has_its_best_worst_and_median(which: Recorded, number: int) -> None:
    found = chosen_records(result(3.0, 9.0, 2.0, None, 1.0), which)
    assert [(one.mission, one.episode) for one in found] == [("one", number), ("two", number)]


def test_what_failed_is_not_filmed() -> None:
    assert [one.episode for one in chosen_records(result(1.0, None), "all")] == [0, 0]
    assert chosen_records(result(None), "best") == []


def test_what_is_missing_is_told_before_anything_is_played(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadEvaluation, match=r"record='first' is unknown\. Choose one of best, worst"):
        recordings.check_can_record("first")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadEvaluation, match=r'pip install "parallel-envs\[video\]"'):
        recordings.check_can_record("best")
