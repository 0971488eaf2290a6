"""Evaluations as text, files of episodes, and videos: golden files, the way back, and what is none of them."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import yaml

from parallel_envs.choices import Recorded
from parallel_envs.evaluation import evaluate
from parallel_envs.evaluation.recordings import (
    Video,
    chosen_records,
    episode_file,
    read_episode,
    record_videos,
    save_episode,
)
from parallel_envs.evaluation.records import (
    BadDocument,
    EpisodeRecord,
    EvaluationResult,
    Failure,
    Trajectory,
    read_as,
    record_values,
    to_document,
)

GOLDEN = Path(__file__).parent / "golden"

NAN_ACTION = Failure(
    kind="nonsense", error_type="ValueError", message="The action nan is not in Discrete(5).", where="step 3"
)
LOST = Failure(kind="death", error_type="WorkerDied", message="Worker 0 was killed by signal 9.", traceback="far away")


def record(mission: str, episode: int, red: float = 0, blue: float = 0, **fields: Any) -> EpisodeRecord:
    assignment, returns = {"red": "random", "blue": "runs/spread"}, {"red": red, "blue": blue}
    known: Any = {"assignment": assignment, "returns": returns, "length": 25, "seconds": 0.5}
    return EpisodeRecord(mission=mission, episode=episode, seed=1000 + episode, **{**known, **fields})


RESULT = EvaluationResult(
    episodes=(
        record("easy", 0, -1.5, 2.0, success=True),
        record("easy", 1, -0.1, 4.25, success=False, timeouts={"blue": 3}),
        record("easy", 2, 0.25, 3.0, success=True, infos={"score": {"red": 0.5}}),
        record("easy", 3, 7.0, 7.0, success=False, failure=NAN_ACTION, length=2, attempts=2),
        record("hard, [bold]", 0, -12345.678, 1e-3),
        record("hard, [bold]", 1, 0.0, 0.0, failure=LOST, success=False, assignment={}, returns={}, length=0),
    ),
    settings={"seed": 42, "policies": ["random", "runs/spread"], "jobs": 2},
    interrupted=True,
    missing=(("hard, [bold]", 2),),
    worker_bytes=(80_000_000, 70_000_000),
)


@pytest.mark.parametrize("form", ["json", "yaml", "csv", "table"])
def test_what_is_written_is_what_it_was(form: str) -> None:
    golden = GOLDEN / f"result.{form.replace('table', 'txt')}"
    assert getattr(RESULT, f"to_{form}")() == golden.read_text(encoding="utf-8")


def test_json_comes_back_to_the_bit_and_yaml_holds_the_same(tmp_path: Path) -> None:
    text = RESULT.to_json(tmp_path / "result.json")
    assert EvaluationResult.from_json(tmp_path / "result.json") == RESULT
    assert (tmp_path / "result.json").read_text(encoding="utf-8") == text
    assert yaml.safe_load(RESULT.to_yaml()) == json.loads(text)
    # also numbers that JSON has no word for
    numbers: dict[str, Any] = {"a": math.pi, "b": -0.0, "c": 5e-324, "d": math.inf, "e": math.nan, "f": np.float32(0.1)}
    odd = EvaluationResult(episodes=(record("m", 0, assignment=dict.fromkeys(numbers, "one"), returns=numbers),))
    json.loads(odd.to_json(tmp_path / "odd.json"), parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    (read,) = EvaluationResult.from_json(tmp_path / "odd.json").episodes
    assert [value.hex() for value in read.returns.values()] == [float(value).hex() for value in numbers.values()]


def test_agents_and_infos_of_any_kind_can_be_written() -> None:
    odd = record("m", 0, returns={(0, 1): 1.0}, infos={"place": {1: np.arange(2)}, "thing": range, "b": b"x"})
    written = json.loads(json.dumps(record_values(odd)))
    assert read_as(EpisodeRecord, written, "here").returns == {"(0, 1)": 1.0}
    assert written["infos"] == {"place": {"1": [0, 1]}, "thing": "<class 'range'>", "b": "b'x'"}
    assert record_values(record("m", 0, returns={1: 1.0, "1": 2.0}))["returns"] == {"1": 1.0, "'1'": 2.0}
    left_out = {field.name for field in dataclasses.fields(EpisodeRecord)} - record_values(odd).keys()
    assert left_out == {"trajectory", "alone"}  # the second only of policies that played one by one


def test_a_narrow_table_keeps_its_names_and_numbers_and_one_mission_has_no_row_for_all() -> None:
    easy, nothing = EvaluationResult(episodes=RESULT.episodes[:3]), EvaluationResult(episodes=())
    rows = [line.split() for line in easy.to_table(width=70).splitlines()]
    names = ("easy", "random (mixed)", "runs/spread (mixed)")
    assert [name for row in rows if (name := " ".join(row)) in names] == [*names]
    assert ["3", "-0.45", "±", "0.53", "-0.45", "-1.5", "to", "0.25", "67%", "0", "0"] in rows
    assert max(map(len, easy.to_table(width=70).splitlines())) <= 70
    assert "all missions" not in easy.to_table()
    assert ("mission" in nothing.to_table(), nothing.to_csv().count("\n")) == (True, 1)


def test_failures_of_one_kind_are_one_line() -> None:
    texts = [*map("x".__mul__, range(6)), "pid 0", "pid 1"]
    failures = [NAN_ACTION] * 9 + [dataclasses.replace(LOST, message=text) for text in texts]
    failed = [record("m", number, failure=failure) for number, failure in enumerate(failures)]
    text = EvaluationResult(episodes=tuple(failed)).to_table()
    assert "17 of 17 episodes failed:" in text
    assert "  m, episode 0, step 3, and 8 more: ValueError: The action nan is not in Discrete(5).\n" in text
    assert "  m, episode 15, and 1 more: WorkerDied: pid 0\n" in text
    assert "and 3 other kinds of failure" in text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read: No such file or directory."),
        ("{", "is not JSON"),
        ("[]", "is not an evaluation. Give a file"),
        ('{"kind": "parallel_envs bench"}', "is not an evaluation"),
        ({"schema": 99}, "has schema 99, and this version reads 1"),
        ({"episodes": [{"mission": "m"}]}, "is damaged: `episodes.0.episode` is missing."),
        ({"missing": [["m"]]}, "is damaged: `missing.0"),
    ],
)
def test_a_file_that_is_no_evaluation_is_named(text: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "file.json"
    if text is not None:
        path.write_text(json.dumps({**to_document(RESULT), **text}) if isinstance(text, dict) else text)
    with pytest.raises(BadDocument) as raised:
        EvaluationResult.from_json(path)
    assert str(raised.value).startswith(str(path))
    assert message in str(raised.value)


# ---- episodes kept as files ------------------------------------------------------------------------------------------


def kept(folder: Path, observations: list[dict[Any, Any]], actions: Any = None) -> Any:
    """The way of an episode to a file and back."""
    steps = len(observations) - 1
    parts: dict[str, Any] = {"actions": actions or [{"a": 1}] * steps, "rewards": [{"a": 0.5}] * steps}
    parts |= dict.fromkeys(("terminations", "truncations"), [{"a": False}] * steps)
    path = save_episode(folder / "new", record("m", 7, trajectory=Trajectory(observations=observations, **parts)))
    assert path == folder / "new" / "m-0007.npz"
    read = read_episode(path)
    assert read.record == record("m", 7)
    return read.arrays


def test_an_episode_comes_back_as_arrays_of_each_part_and_agent(tmp_path: Path) -> None:
    seen = [{"a": np.array([step, 0.25], np.float32)} for step in range(3)]
    arrays = kept(tmp_path, seen, [{"a": np.int64(4)}, {"a": np.int64(2)}])
    names = ("observations", "actions", "rewards", "terminations", "truncations")
    assert arrays.keys() == {f"{part}/a" for part in names}
    assert (arrays["observations/a"].dtype, arrays["terminations/a"].dtype) == (np.float32, np.bool_)
    assert arrays["observations/a"].tolist() == [[0, 0.25], [1, 0.25], [2, 0.25]]
    assert arrays["actions/a"].tolist() == [4, 2]
    arrays = kept(tmp_path, [{"a": {"camera": np.full((2, 2), n, np.uint8), "joints": (n, [0.5])}} for n in range(2)])
    assert arrays["observations/a/camera"].shape == (2, 2, 2)
    assert arrays["observations/a/joints/0"].tolist() == [0, 1]
    assert arrays["observations/a/joints/1"].tolist() == [[0.5]] * 2
    arrays = kept(tmp_path, [{"a": 1}, {"a": 2, (0, "b"): 7}, {(0, "b"): 8}])  # agents come and go
    assert [arrays[f"{part}observations/a"].tolist() for part in ("", "steps/")] == [[1, 2], [0, 1]]
    assert [arrays[f"{part}observations/(0, 'b')"].tolist() for part in ("", "steps/")] == [[7, 8], [1, 2]]
    for values, text in (  # without a fixed shape: text
        ([[1], [1, 2]], ["[1]", "[1, 2]"]),
        (["north", "up"], ["north", "up"]),
        ([None, None], ["None", "None"]),
        ([{"x": 1}, {"y": 1}], ["{'x': 1}", "{'y': 1}"]),
    ):
        assert kept(tmp_path, [{"a": one} for one in values])["observations/a"].tolist() == text


@pytest.mark.parametrize("mission", ["../../etc/passwd", "ALE/Breakout-v5", "a:b", "..", ""])
def test_a_mission_never_leads_out_of_the_folder(mission: str, tmp_path: Path) -> None:
    file = episode_file(tmp_path, record(mission, 7))
    assert file.parent == tmp_path
    assert file.name.endswith("-0007.npz")
    assert file != episode_file(tmp_path, record(mission.replace("/", "_").replace(":", "_") + " ", 7))
    assert file.resolve().parent == tmp_path.resolve()


def test_what_is_no_episode_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"has no trajectory\. Evaluate with trajectories=True"):
        save_episode(tmp_path, record("m", 7))
    np.savez(tmp_path / "other.npz", x=np.zeros(3))
    for name in ("none", "other"):
        with pytest.raises(BadDocument, match=rf"{name}\.npz is not a saved episode"):
            read_episode(tmp_path / f"{name}.npz")


# ---- videos ----------------------------------------------------------------------------------------------------------


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


def filmed(
    folder: Path, which: Recorded = "all", fault: str = "", make: Any = Light, **settings: Any
) -> tuple[EvaluationResult, list[Video]]:
    pytest.importorskip("moviepy")
    missions = {"light": functools.partial(make, fault=fault)}
    result = evaluate(missions, "random", episodes=3, seed=1)
    return result, list(record_videos(result, missions, "random", which, folder, **settings))


def test_the_best_episode_is_filmed_from_its_first_frame_to_its_last(tmp_path: Path) -> None:
    result, (video,) = filmed(tmp_path / "videos", "best")
    longest = max(result.episodes, key=lambda one: one.length)
    assert (video.record, video.problem) == (longest, "")
    assert video.path == tmp_path / "videos" / f"light-{longest.episode:04d}.mp4"
    assert list((tmp_path / "videos").iterdir()) == [video.path]
    from moviepy.video.io.VideoFileClip import VideoFileClip

    with VideoFileClip(str(video.path)) as clip:
        assert (clip.reader.n_frames, clip.fps, clip.get_frame(0).shape) == (longest.length + 1, 10.0, (20, 30, 3))


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        ("dark", "NoneType was rendered with render_mode='rgb_array'"),
        ("raises", "RuntimeError: no screen"),
        ("exits", "rendering ended its process (exit code 3)"),
        ("unseeded", "its environment or a policy depends on more than the seed"),
    ],
)
def test_what_cannot_be_filmed_or_goes_another_way_is_named_and_the_next_is_tried(
    fault: str, problem: str, tmp_path: Path
) -> None:
    result, videos = filmed(tmp_path, "all", fault)
    assert [video.record for video in videos] == list(result.episodes)
    assert (all if fault != "unseeded" else any)(problem in video.problem for video in videos)
    assert {video.path is None for video in videos} == {fault != "unseeded"}
    assert len(list(tmp_path.iterdir())) == (3 if fault == "unseeded" else 0)


def test_an_env_that_takes_no_render_mode_is_told(tmp_path: Path) -> None:
    _, (video, *_) = filmed(tmp_path, make=lambda fault: Light(fault=fault), backend="serial")
    assert "Videos need an environment that takes render_mode='rgb_array'" in video.problem


def test_each_mission_has_its_best_worst_and_median() -> None:
    def chosen(which: Recorded, *scores: float | None) -> list[tuple[str, int]]:
        episodes = [
            record(mission, place, returns={"a": score or -99.0}, failure=LOST if score is None else None)
            for mission in ("one", "two")
            for place, score in enumerate(scores)
        ]
        found = chosen_records(EvaluationResult(episodes=tuple(episodes)), which)
        return [(one.mission, one.episode) for one in found]

    orders: list[tuple[Recorded, int]] = [("best", 1), ("worst", 4), ("median", 2)]
    for which, number in orders:
        assert chosen(which, 3.0, 9.0, 2.0, None, 1.0) == [("one", number), ("two", number)]
    assert chosen("all", 1.0, None) == [("one", 0), ("two", 0)], "what failed is not filmed"
    assert chosen("best", None) == []
