"""Pages of runs and evaluations: one file, with curves over seeds, times, settings and failures."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from parallel_envs.cli import app
from parallel_envs.cli.report import RunRecord, _time_section, curve, mean_and_half_width
from parallel_envs.evaluation import evaluate
from parallel_envs.learners.outcomes import RunOutcome

pytest.importorskip("torch")
pytest.importorskip("matplotlib")

RUN = [
    "env=CartPole-v1",
    "backend=serial",
    "num_envs=2",
    "total_steps=400",
    "algorithm.rollout_length=32",
    "algorithm.minibatch_size=64",
]


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs that differ in their seeds, one with another learning rate, and an evaluation with a failure."""
    folder = tmp_path_factory.mktemp("report")
    for name, *words in (("one", "seed=1"), ("two", "seed=2"), ("other", "seed=1", "algorithm.learning_rate=0.01")):
        done = run("train", *RUN, *words, f"folder={folder / name}")
        assert done.exit_code == 0, done.output
    policies = {"left": lambda seen: 0, "broken": lambda seen: 0 if abs(seen[3]) < 0.5 else 1 // 0}
    evaluate("CartPole-v1", policies, episodes=3, jobs=0, versus=False).to_json(folder / "result.json")
    done = run(
        "report", *(folder / name for name in ("one", "two", "other", "result.json")), "--output", folder / "a.html"
    )
    assert done.exit_code == 0, done.output
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    return (folder / "a.html").read_text(encoding="utf-8")


def test_the_page_is_one_file(page: str) -> None:
    assert re.findall(r'(?:src|href)="(?!#)([^"]*)"', page) == []
    assert "url(http" not in page
    assert re.findall(r"<h2>(.*?)</h2>", page) == [
        *("Runs", "Learning curves", "Where time went", "Settings that differ"),
        *("Evaluation: result.json", "Failures: result.json"),
    ]


def test_runs_that_differ_in_the_seed_are_one_curve(page: str) -> None:
    assert "one and 1 more seed (mean, 95 %)" in page
    assert re.search(r">\s*other\s*<", page)


def test_every_picture_has_its_content_as_text(page: str) -> None:
    pictures = re.findall(r"<svg [^>]*>", page)
    assert len(pictures) == 3
    assert all('role="img"' in picture and 'aria-label="' in picture for picture in pictures)


def test_tables_have_the_outcomes_the_differences_and_the_failures(page: str, folder: Path) -> None:
    outcome = json.loads((folder / "one/outcome.json").read_text())
    assert f'data-value="{outcome["agents"]["agent_0"]["last_return"]}"' in page
    differences = page.partition("<h2>Settings that differ</h2>")[2].partition("</section>")[0]
    assert re.findall(r'<th scope="row"[^>]*>([^<]+)', differences) == ["algorithm.learning_rate", "seed"]
    assert page.partition("<h2>Failures")[2].count("ZeroDivisionError") >= 3


def test_a_curve_over_seeds_is_the_mean_with_students_interval() -> None:
    mean, half = mean_and_half_width([1.0, 2.0, 6.0])
    assert mean == 3.0
    assert half == pytest.approx(4.303 * math.sqrt(7.0 / 3.0), rel=1e-3)
    assert math.isnan(mean_and_half_width([5.0])[1])
    rows = curve([[(10, 1.0), (20, 3.0)], [(10, 3.0), (30, 5.0)]], num_rows=2)
    assert [(steps, mean) for steps, mean, _ in rows] == [(10, 2.0), (20, 3.0)]


def test_without_a_page_each_outcome_is_told(folder: Path) -> None:
    done = run("report", folder / "one", folder / "two")
    assert done.exit_code == 0
    assert done.output.count("Ended: ") == 2


def test_a_run_that_is_given_twice_is_no_second_seed(folder: Path, tmp_path: Path) -> None:
    for name in ("$^$", "b"):
        shutil.copytree(folder / "one", tmp_path / name)
    shutil.copy(folder / "result.json", tmp_path / "result.json")
    results = [folder / "result.json", tmp_path / "result.json"]
    done = run("report", tmp_path / "$^$", tmp_path / "b", tmp_path / "b", *results, "--output", tmp_path / "a.html")
    assert done.exit_code == 0, done.output
    page = (tmp_path / "a.html").read_text(encoding="utf-8")
    assert "more seed" not in page
    assert page.count("<h2>Evaluation: ") == 2


@pytest.mark.parametrize("name", ["nothing", "one/run.json"])
def test_what_is_no_run_and_no_evaluation_is_refused(folder: Path, name: str) -> None:
    done = run("report", folder / name, "--output", folder / "b.html")
    assert done.exit_code == 2
    assert not (folder / "b.html").exists()


@pytest.mark.skipif(shutil.which("chromium") is None, reason="Chromium is not installed")
def test_the_page_opens_without_an_error(folder: Path, tmp_path: Path) -> None:
    command = ["chromium", "--headless", "--no-sandbox", "--enable-logging=stderr", f"--user-data-dir={tmp_path}"]
    command += ["--host-resolver-rules=MAP * ~NOTFOUND", "--dump-dom", (folder / "a.html").as_uri()]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "</html>" in ran.stdout
    assert "CONSOLE" not in ran.stderr


def test_a_run_with_other_activities_and_one_without_metrics_have_a_page() -> None:
    lines = [{"update": 1, "steps": 5, "seconds": {"collect": 1.0, "learn": 2.0}, "agents": {"meta": {"return": 1.0}}}]
    outcome = outcome_of_nothing()
    assert RunRecord("damaged", {}, outcome, [{"agents": [1]}, {"steps": 1, "agents": {"a": None}}]).returns() == {}
    runs = [RunRecord("meta", {"env": {"name": "x"}}, outcome, lines), RunRecord("new", {}, outcome, [])]
    [(_, content)] = _time_section(runs)
    assert "meta: collect 1 s, learn 2 s" in content
    assert list(_time_section(runs[1:])) == []


def outcome_of_nothing() -> RunOutcome:
    return RunOutcome(
        folder=Path("x"), ended="unknown", steps=0, total_steps=None, steps_here=None, seconds=None, agents={}
    )
