"""An evaluation that ended early, and its rest."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.errors import EpisodeFailed
from parallel_envs.evaluation import BadEvaluation, EpisodeRecord, EvaluationResult, Mission, NotSaved, evaluate
from parallel_envs.evaluation.records import EpisodeKey
from parallel_envs.evaluation.resume import ResultSaver
from tests.evaluation.stages import Counting, Course

MISSIONS = [Mission(name="short", env=Course), Mission(name="long", env=Course, kwargs={"length": 15})]
ROOT = Path(__file__).parents[2]


def run(**settings: Any) -> EvaluationResult:
    return evaluate(MISSIONS, {"it": Counting()}, 5, **settings)


class Interrupting:
    """Presses Ctrl-C after so many episodes."""

    def __init__(self, after: int) -> None:
        self.after = after
        self.work: list[EpisodeKey] = []
        self.before: list[EpisodeKey] = []
        self.noted: list[EpisodeKey] = []

    def begin(self, work: Sequence[EpisodeKey], done: Sequence[EpisodeRecord]) -> None:
        self.work, self.before = list(work), [record.key for record in done]

    def note(self, record: EpisodeRecord) -> None:
        self.noted.append(record.key)
        if len(self.noted) == self.after:
            os.kill(os.getpid(), signal.SIGINT)


@pytest.fixture(scope="module")
def whole() -> EvaluationResult:
    return run()


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_ctrl_c_leaves_what_is_complete_and_the_rest_can_be_played(
    whole: EvaluationResult, jobs: int, tmp_path: Path
) -> None:
    path = tmp_path / "results.json"
    begun = run(jobs=jobs, save=path, progress=Interrupting(after=4))
    assert begun.interrupted
    assert 4 <= len(begun.episodes) < 10
    assert {record.key for record in begun.episodes} | set(begun.missing) == {record.key for record in whole.episodes}
    rest = Interrupting(after=99)
    for resume in (begun, path):
        found = run(jobs=jobs, resume=resume, progress=rest)
        assert found.episodes == whole.episodes
        assert (found.interrupted, found.missing) == (False, ())
        assert found.settings == whole.settings
        assert set(rest.before) == {record.key for record in begun.episodes}
        assert set(rest.noted[-len(begun.missing) :]) == set(begun.missing)


def test_nothing_is_left_to_do_for_a_whole_result(whole: EvaluationResult) -> None:
    progress = Interrupting(after=1)
    assert run(jobs=2, resume=whole, progress=progress) == whole
    assert progress.noted == []


def test_more_episodes_and_missions_may_be_added(whole: EvaluationResult) -> None:
    more = [*MISSIONS, Mission(name="third", env=Course, kwargs={"length": 3})]
    progress = Interrupting(after=99)
    found = evaluate(more, {"it": Counting()}, 6, resume=whole, progress=progress)
    assert found == evaluate(more, {"it": Counting()}, 6)
    assert len(progress.noted) == 18 - 10


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"seed": 43}, "made with seed=42, and 43 is requested"),
        ({"max_steps": 9}, "max_steps=1000"),
        ({"policies": {"other": Counting()}}, "policies="),
        ({"missions": [Mission(name="short", env=Course, kwargs={"length": 7})]}, "a mission 'short' that is"),
    ],
)
def test_another_evaluation_cannot_be_resumed(whole: EvaluationResult, changed: dict[str, Any], text: str) -> None:
    asked = {"missions": MISSIONS, "policies": {"it": Counting()}, **changed}
    with pytest.raises(BadEvaluation, match=text):
        evaluate(episodes=5, resume=whole, **asked)


def test_policies_in_another_order_are_dealt_otherwise_and_cannot_be_resumed() -> None:
    begun = evaluate(MISSIONS, {"one": Counting(), "two": Counting()}, 1)
    with pytest.raises(BadEvaluation, match="policies="):
        evaluate(MISSIONS, {"two": Counting(), "one": Counting()}, 2, resume=begun)


def test_what_is_no_result_cannot_be_resumed(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with pytest.raises(BadEvaluation, match="cannot be resumed"):
        run(resume=path)
    path.write_text("{}")
    with pytest.raises(BadEvaluation, match="cannot be resumed"):
        run(resume=path)


def test_where_nothing_can_be_written_nothing_begins(tmp_path: Path) -> None:
    for path, text in ((tmp_path / "no" / "such.json", "there is no folder"), (tmp_path, "it is a folder")):
        progress = Interrupting(after=1)
        with pytest.raises(BadEvaluation, match=text):
            run(save=path, progress=progress)
        assert progress.work == []


class Filling:
    """Puts a folder where the file is to be, once the evaluation has begun; takes it away after so many episodes."""

    def __init__(self, path: Path, after: int) -> None:
        self.path, self.after, self.noted = path, after, 0

    def begin(self, work: Sequence[EpisodeKey], done: Sequence[EpisodeRecord]) -> None:
        self.path.mkdir()

    def note(self, record: EpisodeRecord) -> None:
        self.noted += 1
        if self.noted == self.after:
            self.path.rmdir()


def test_a_disk_that_is_full_for_a_while_ends_nothing(
    whole: EvaluationResult, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "results.json"
    assert run(save=path, progress=Filling(path, after=7)) == whole
    assert "results.json cannot be written" in caplog.text
    assert EvaluationResult.from_json(path).episodes == whole.episodes


def test_what_cannot_be_written_in_the_end_is_not_lost(whole: EvaluationResult, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    with pytest.raises(NotSaved, match=r"results\.json cannot be written: .*directory") as caught:
        run(save=path, progress=Filling(path, after=99))
    assert caught.value.result == whole


def test_what_a_strict_evaluation_has_played_is_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    missions = [*MISSIONS, Mission(name="broken", env=Course, kwargs={"fault": "raise"})]
    with pytest.raises(EpisodeFailed):
        evaluate(missions, {"it": Counting()}, 2, strict=True, save=path)
    assert len(EvaluationResult.from_json(path).episodes) == 5


def test_saving_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from parallel_envs.evaluation import resume

    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

    clock, saved = Clock(), list[float]()

    def result() -> EvaluationResult:
        saved.append(clock.now)
        clock.now += 0.2  # what it takes to tell it
        return EvaluationResult(episodes=())

    monkeypatch.setattr(resume, "time", clock)
    saver = ResultSaver(tmp_path / "results.json", result)
    for _ in range(1000):
        saver.note()
        clock.now += 0.01
    assert saved[:3] == pytest.approx([0.0, 4.2, 8.4], abs=0.03)


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {root!r})
from parallel_envs.evaluation import evaluate
from tests.evaluation.stages import Counting
from tests.evaluation.test_resuming import MISSIONS

class Killer:
    noted = 0
    def begin(self, work, done): pass
    def note(self, record):
        Killer.noted += 1
        if Killer.noted == 4:
            os.kill(os.getpid(), signal.SIGKILL)

evaluate(MISSIONS, {{"it": Counting()}}, 5, jobs=2, save=sys.argv[1], progress=Killer())
"""


def test_what_was_killed_can_be_resumed(whole: EvaluationResult, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    command = [sys.executable, "-c", SCRIPT.format(root=str(ROOT)), str(path)]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    held = json.loads(path.read_text())
    assert held["interrupted"]
    assert 0 < len(held["episodes"]) < 10
    found = run(resume=path, save=path)
    assert found.episodes == whole.episodes
    assert EvaluationResult.from_json(path).episodes == whole.episodes
