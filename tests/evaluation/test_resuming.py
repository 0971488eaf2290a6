"""An evaluation that ended early, its rest, and the policies that must not have changed in between."""

from __future__ import annotations

import functools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from parallel_envs.evaluation import BadEvaluation, EpisodeRecord, EvaluationResult, Mission, NotSaved, evaluate
from parallel_envs.evaluation.evaluate import ResultSaver
from parallel_envs.evaluation.policies import fingerprint
from parallel_envs.evaluation.records import EpisodeKey
from parallel_envs.policies import PolicySpec
from tests.evaluation.stages import Counting, Course

MISSIONS = [Mission(name="short", env=Course), Mission(name="long", env=Course, kwargs={"length": 15})]
ROOT = Path(__file__).parents[2]


def run(**settings: Any) -> EvaluationResult:
    return evaluate(MISSIONS, {"it": Counting()}, 5, **settings)


class Acting:
    """A progress that does something as the evaluation begins and after so many episodes."""

    def __init__(self, after: int = 0, then: Callable[[], object] = int, first: Callable[[], object] = int) -> None:
        self.after, self.then, self.first = after, then, first
        self.work, self.before, self.noted = list[EpisodeKey](), list[EpisodeKey](), list[EpisodeKey]()

    def begin(self, work: Sequence[EpisodeKey], done: Sequence[EpisodeRecord]) -> None:
        self.work, self.before = list(work), [record.key for record in done]
        self.first()

    def note(self, record: EpisodeRecord) -> None:
        self.noted.append(record.key)
        if len(self.noted) == self.after:
            self.then()


@pytest.fixture(scope="module")
def whole() -> EvaluationResult:
    return run()


@pytest.mark.parametrize("jobs", [0, 2])
def test_a_ctrl_c_leaves_what_is_complete_and_the_rest_can_be_played(
    whole: EvaluationResult, jobs: int, tmp_path: Path
) -> None:
    path = tmp_path / "results.json"
    begun = run(jobs=jobs, save=path, progress=Acting(4, lambda: os.kill(os.getpid(), signal.SIGINT)))
    assert begun.interrupted
    assert 4 <= len(begun.episodes) < 10
    assert {record.key for record in begun.episodes} | set(begun.missing) == {record.key for record in whole.episodes}
    rest = Acting()
    for resume in (begun, path):
        found = run(jobs=jobs, resume=resume, progress=rest)
        assert found == whole
        assert (found.interrupted, found.missing) == (False, ())
        assert set(rest.before) == {record.key for record in begun.episodes}
        assert set(rest.noted[-len(begun.missing) :]) == set(begun.missing)
    document = json.loads(path.read_text())
    del document["settings"]["policies"]["it"]["digest"]  # as files were before there were digests
    path.write_text(json.dumps(document))
    assert run(resume=path) == whole


def test_only_what_is_missing_is_played(whole: EvaluationResult) -> None:
    progress = Acting()
    assert run(jobs=2, resume=whole, progress=progress) == whole
    assert progress.noted == []
    more = [*MISSIONS, Mission(name="third", env=Course, kwargs={"length": 3})]
    found = evaluate(more, {"it": Counting()}, 6, resume=whole, progress=progress)
    assert found == evaluate(more, {"it": Counting()}, 6)
    assert len(progress.noted) == 18 - 10


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        ({"seed": 43}, "made with seed=42, and 43 is requested"),
        ({"max_steps": 9}, "max_steps=1000"),
        ({"policies": {"other": Counting()}}, "policies="),
        ({"policies": {"two": Counting(), "it": Counting()}}, "policies="),
        ({"missions": [Mission(name="short", env=Course, kwargs={"length": 7})]}, "the mission 'short': "),
    ],
)
def test_another_evaluation_cannot_be_resumed(whole: EvaluationResult, changed: dict[str, Any], text: str) -> None:
    asked = {"missions": MISSIONS, "policies": {"it": Counting()}, **changed}
    with pytest.raises(BadEvaluation, match=text):
        evaluate(episodes=5, resume=whole, **asked)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("settings", "missions", [1]),
        ("settings", "policies", {"it": 3}),
        ("episode", "length", "x"),
        ("episode", "returns", [1]),
        ("episode", "attempts", 1.5),
    ],
)
def test_what_is_damaged_or_no_result_cannot_be_resumed(
    whole: EvaluationResult, tmp_path: Path, place: str, name: str, value: Any
) -> None:
    document = json.loads(whole.to_json())
    (document["settings"] if place == "settings" else document["episodes"][0])[name] = value
    (file := tmp_path / "results.json").write_text(json.dumps(document))
    for path, text in ((file, f"damaged.*{name}.* cannot be resumed"), (tmp_path / "none.json", "cannot be resumed")):
        with pytest.raises(BadEvaluation, match=f"(?s){text}"):
            run(resume=path)


def test_what_cannot_be_written_is_not_begun(tmp_path: Path) -> None:
    for save, text in ((tmp_path / "no" / "such.json", "there is no folder"), (tmp_path, "it is a folder")):
        progress = Acting()
        with pytest.raises(BadEvaluation, match=text):
            run(save=save, progress=progress)
        assert progress.work == []


def test_a_disk_that_is_full_for_a_while_ends_nothing_and_one_that_stays_full_loses_nothing(
    whole: EvaluationResult, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "results.json"  # there is a folder in its place
    assert run(save=path, progress=Acting(7, path.rmdir, first=path.mkdir)) == whole
    assert "results.json cannot be written" in caplog.text
    assert EvaluationResult.from_json(path).episodes == whole.episodes
    path.unlink()
    with pytest.raises(NotSaved, match=r"results\.json cannot be written: .*directory") as caught:
        run(save=path, progress=Acting(first=path.mkdir))
    assert caught.value.result == whole


def test_saving_takes_a_small_share_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, saved = SimpleNamespace(now=0.0), list[float]()
    clock.monotonic = lambda: clock.now

    def result() -> EvaluationResult:
        saved.append(clock.now)
        clock.now += 0.2  # what it takes to tell it
        return EvaluationResult(episodes=())

    monkeypatch.setattr(sys.modules["parallel_envs.evaluation.evaluate"], "time", clock)
    saver = ResultSaver(tmp_path / "results.json", result)
    for _ in range(1000):
        saver.note()
        clock.now += 0.01
    assert saved[:3] == pytest.approx([0.0, 4.2, 8.4], abs=0.03)


SCRIPT = """
import os, signal, sys
sys.path.insert(0, {root!r})
from parallel_envs.evaluation import evaluate
from tests.evaluation.test_resuming import MISSIONS, Acting, Counting

progress = Acting(4, lambda: os.kill(os.getpid(), signal.SIGKILL))
evaluate(MISSIONS, {{"it": Counting()}}, 5, jobs=2, save=sys.argv[1], progress=progress)
"""


def test_what_was_killed_can_be_resumed(whole: EvaluationResult, tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    command = [sys.executable, "-c", SCRIPT.format(root=str(ROOT)), str(path)]
    ended = subprocess.run(command, capture_output=True, check=False, timeout=60)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    held = json.loads(path.read_text())
    assert held["interrupted"]
    assert 0 < len(held["episodes"]) < 10
    assert run(resume=path, save=path).episodes == whole.episodes
    assert EvaluationResult.from_json(path).episodes == whole.episodes


# ---- a policy that has changed is noticed, and one that has not is not -----------------------------------------------

MISSION = MISSIONS[:1]
CAREFUL = """
class Careful:
    def step(self, observation):
        return {action}
    def load(self, path):
        pass
"""


@pytest.mark.parametrize("changed", ["code", "weights"])
def test_a_policy_whose_code_or_files_have_changed_is_not_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "careful_agents", raising=False)
    source, weights = tmp_path / "careful_agents.py", tmp_path / "data" / "weights"
    source.write_text(CAREFUL.format(action=0))
    weights.parent.mkdir()
    weights.write_bytes(b"one")
    spec, file = f"class=careful_agents:Careful,data={weights.parent}", weights.with_name("results.json")  # not counted
    begun = evaluate(MISSION, spec, 1, save=file)
    assert evaluate(MISSION, spec, 2, resume=file, save=file).episodes[:1] == begun.episodes
    source.write_text(CAREFUL.format(action=int(changed == "code")))
    weights.write_bytes(b"two" if changed == "weights" else b"one")
    with pytest.raises(BadEvaluation, match=r"policy '.*' whose code or files have changed"):
        evaluate(MISSION, spec, 3, resume=file, save=file)


def test_the_digest_of_a_run_is_that_of_its_checkpoints(tmp_path: Path) -> None:
    newest = tmp_path / "checkpoints" / "7" / "weights"
    newest.parent.mkdir(parents=True)
    newest.write_bytes(b"one")
    (tmp_path / "metrics.jsonl").write_text("1")
    spec = PolicySpec("random", str(tmp_path))
    before = fingerprint(spec)
    (tmp_path / "metrics.jsonl").write_text("2")
    assert fingerprint(spec) == before != fingerprint(PolicySpec("random"))
    newest.write_bytes(b"two")
    changed = fingerprint(spec)
    newest.rename(newest.with_name("others"))
    assert len({before, changed, fingerprint(spec)}) == 3


class Changed(Counting):
    def step(self, observation: Any) -> Any:
        return observation


def test_functions_and_objects_are_known_by_their_code() -> None:
    def ones(action: int) -> list[Any]:
        if action:
            return [lambda observation: 1, lambda observation: [1 for _ in "a"], Changed()]
        return [lambda observation: 0, lambda observation: [0 for _ in "a"], Counting()]

    first, again, other = ([fingerprint(one) for one in ones(action)] for action in (0, 0, 1))
    assert first == again
    assert all(one != two for one, two in zip(first, other, strict=True))
    assert fingerprint(functools.partial(max, 1)) is None
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {__name__} as t; print(t.digest())"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == digest()


def digest() -> str:
    return str(fingerprint(lambda observation: observation in {"a", "b", "c", "d"}))
