"""The commands as a user runs them: tables, JSON, exit codes; and the bars."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import cli
from benchmarks.experiments import Experiment, Figures
from benchmarks.peers import PEERS
from benchmarks.syscalls import StraceMissing
from benchmarks.targets import Bar, judge
from parallel_envs.bench import cli as installed
from parallel_envs.bench import machine
from parallel_envs.bench.measure import MeasurementFailed, Pace, Tell
from parallel_envs.engine import num_cores
from tests.benchmarks.stages import Absent, Broken

Bench = Callable[..., Any]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(machine, "busy_cores", lambda: 0.0)  # measuring the load takes a while

    def run(command: str, *arguments: object) -> Any:
        app = installed.app if command in ("suggest", "machine") else cli.app
        return CliRunner().invoke(app, [command, *map(str, arguments)], env={"COLUMNS": "200"})

    return run


def written(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_step_measures_all_and_names_what_is_missing(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PEERS, "absent", Absent)
    monkeypatch.setitem(PEERS, "broken", Broken)
    file = tmp_path / "step.json"
    done = bench(
        *("step", "--env", "CartPole-v1", "--num-envs", 2, "--num-workers", 1, "--backend", "serial"),
        *("--peers", "absent,broken", "--seconds", 0.01, "--rounds", 3, "--json", file),
    )
    assert done.exit_code == 0, done.output
    assert "absent is not installed: pip install absent-library" in done.output
    assert "broken failed: RuntimeError: this space is not supported" in done.output

    content = written(file)
    assert content.keys() == {"schema", "command", "machine", "settings", "rows"}
    assert (content["schema"], content["command"]) == (1, "step")
    assert content["machine"].keys() == {"cores", "busy_cores_beside", "processor", "system", "python", "versions"}
    assert content["settings"]["env"] == "CartPole-v1"
    assert content["settings"]["pace"] == {"seconds": 0.01, "rounds": 3}

    rows = {row["name"]: row for row in content["rows"]}
    assert list(rows) == ["parallel_envs", "in-process", "absent", "broken"]
    assert all(row.keys() == rows["in-process"].keys() for row in rows.values())
    for name in ("parallel_envs", "in-process"):
        assert len(rows[name]["rates"]) == rows[name]["spread"]["num_samples"] == 3
        assert rows[name]["ours_to_this"]["num_samples"] == 3
    assert rows["absent"]["missing"] == "absent-library"
    assert rows["absent"]["spread"] is rows["broken"]["spread"] is None
    assert rows["broken"]["error"] == "RuntimeError: this space is not supported"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("step --env NoSuchEnv-v1", 'Environment "NoSuchEnv-v1" cannot be made'),
        ("suggest NoSuchEnv-v1", 'Environment "NoSuchEnv-v1" cannot be made'),
        ("startup --env NoSuchEnv-v1", 'Environment "NoSuchEnv-v1" cannot be made'),
        ("memory --env NoSuchEnv-v1", 'Environment "NoSuchEnv-v1" cannot be made'),
        ("step --peers envpool", 'There is no peer called "envpool".'),
        ("step --env spin:0 --num-envs 1 --num-workers 2 --peers none", "2 workers cannot share 1 environments"),
        ("soak --num-envs 2 --num-workers 3", "3 workers cannot share 2 environments"),
        ("zoo --num-workers 3 --num-envs 2", "3 workers cannot share 2 environments"),
        ("zoo --peers sb3", 'There is no peer called "sb3". Give some of supersuit, agilerl, or all, or none.'),
        ("zoo --env agents:0", '"agents:0" does not say how many agents'),
        ("eval --works long", "There is no work called 'long'"),
        ("groups --work smal", "There is no work called 'smal'"),
        ("policies --work python,nonsense", "There is no work called"),
        ("rollouts --num-workers 3 --num-envs 2", "3 workers cannot share 2 environments"),
        ("learners --modes quick", ""),
        ("learners --agents 0", ""),
        ("learners --batch many", ""),
        ("meta --workers 1", "holds no numbers from 2 up"),
        ("train --update-mode quick", "no update mode called"),
    ],
)
def test_what_cannot_be_measured_ends_the_command_with_2_and_plain_words(bench: Bench, words: str, text: str) -> None:
    done = bench(*words.split())
    assert done.exit_code == 2
    assert text in done.output
    assert "Traceback" not in done.output


@pytest.mark.slow
def test_suggest_names_a_setting_and_the_line_to_write(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "suggest.json"
    done = bench("suggest", "spin:0", "--num-envs", 1, "--seconds", 0.01, "--rounds", 2, "--json", file)
    settings = written(file)["settings"]
    assert settings["verdict"] in done.output
    assert settings["why"] in done.output
    if settings["verdict"] == "machine busy":  # so it may be, where the tests run
        assert (done.exit_code, settings["best"]) == (1, None)
        return
    assert done.exit_code == 0, done.output
    assert f": {settings['best']}\n    {settings['code']}\n" in done.output
    assert settings["best"] in {row["name"] for row in written(file)["rows"]}


def test_suggest_advises_nothing_beside_other_programs(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = iter([0.0, 0.0, 64.0])  # other programs begin while it measures
    monkeypatch.setattr(machine, "busy_cores", lambda: next(loads, 0.0))
    done = bench("suggest", "spin:0", "--num-envs", 1, "--seconds", 0.001, "--rounds", 1)
    assert done.exit_code == 1
    assert "machine busy: Other programs keep 64.0 of" in done.output
    assert "ParallelEnvManager(" not in done.output


@pytest.mark.slow
def test_machine_measures_cores_and_the_cost_of_a_worker(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    done = bench("machine", "--seconds", 0.01, "--rounds", 1, "--json", file)
    assert done.exit_code == 0, done.output
    rows = {row["name"]: row["spread"] for row in written(file)["rows"]}
    assert list(rows) == ["cores at once", "worker round trip", "break-even"]
    assert 0.0 < rows["cores at once"]["median"] < 2.0 * max(2, num_cores())
    assert all(name in done.output for name in rows)


def test_memory_prints_ten_points_and_a_verdict(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    done = bench("memory", "--env", "spin:0", "--num-envs", 2, "--steps", 200, "--json", file)
    assert len(written(file)["rows"]) == 10
    assert written(file)["rows"][-1]["steps"] == 200
    assert "flat: " in done.output
    assert done.exit_code == (0 if written(file)["settings"]["flat"] else 1)


def test_syscalls_says_how_to_get_strace(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = bench("syscalls")
    assert done.exit_code == 2
    assert "apt-get install strace" in done.output


PACE = Pace(seconds=0.01, rounds=1)


@dataclass(frozen=True)
class Staged(Experiment):
    """An experiment with a known outcome, which says that it was run."""

    outcome: Any

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        tell("run")
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return {"speed": self.outcome}


def bar(outcome: Any, **given: Any) -> Bar:
    settings = {"work": "work", "figure": "speed", "unit": "x", "sense": "at least", "limit": 2.0}
    return Bar(experiment=Staged(outcome), **{**settings, **given})


def test_some_bars_only_are_run_and_each_is_told_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "BARS", [bar(2.0, limit=1.0, work=work) for work in ("Ant", "Sokoban")])
    done = bench("bars", "--only", "soko")
    assert done.exit_code == 0, done.output
    assert "PASS  Sokoban: 2.00, at least 1 x" in done.stderr
    assert "Ant" not in done.output
    done = bench("bars", "--only", "Pong")
    assert done.exit_code == 2
    assert "no bar has 'Pong' in it" in done.output


@pytest.mark.parametrize(
    ("outcome", "given", "expected"),
    [
        (2.0, {"sense": "at least"}, ("PASS", 2.0, "")),
        (1.99, {"sense": "at least"}, ("FAIL", 1.99, "")),
        (2.0, {"sense": "at most"}, ("PASS", 2.0, "")),
        (2.01, {"sense": "at most"}, ("FAIL", 2.01, "")),
        (MeasurementFailed("a worker died"), {}, ("FAIL", None, "a worker died")),
        (3.0, {"figure": "another"}, ("FAIL", None, "no figure for another")),
        (StraceMissing("apt-get install strace"), {}, ("SKIP", None, "apt-get install strace")),
        (
            3.0,
            {"needs": (("no_such_module", "pkg[extra]"),)},
            ("SKIP", None, "not installed: pip install 'pkg[extra]'"),
        ),
    ],
)
def test_a_bar_is_judged(outcome: Any, given: dict[str, Any], expected: tuple[str, float | None, str]) -> None:
    lines: list[str] = []
    (verdict,) = judge([bar(outcome, **given)], PACE, lines.append)
    assert (verdict.outcome, verdict.value, verdict.note) == expected
    assert lines == ([] if "needs" in given else ["work: run"])
