"""The commands as a user runs them: tables, JSON, exit codes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import cli
from benchmarks.experiments import Experiment, Figures
from benchmarks.peers import PEERS
from benchmarks.targets import Bar
from parallel_envs.bench import cli as installed
from parallel_envs.bench import machine
from parallel_envs.bench.measure import Tell
from parallel_envs.bench.turns import Pace
from tests.benchmarks.stages import Absent, Broken

Bench = Callable[..., Any]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(machine, "busy_cores", lambda: 0.0)  # measuring the load takes a while

    def run(command: str, *arguments: object) -> Any:
        app = installed.app if command in ("suggest", "machine") else cli.app
        return CliRunner().invoke(app, [command, *map(str, arguments)])

    return run


def written(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_step_measures_everyone_and_names_who_is_missing_and_who_broke(
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


def test_more_workers_than_environments_are_refused_before_anything_is_measured(bench: Bench) -> None:
    done = bench("step", "--env", "spin:0", "--num-envs", 1, "--num-workers", 2, "--peers", "none", "--rounds", 1)
    assert done.exit_code == 2
    assert "2 workers cannot share 1 environments" in done.output


@pytest.mark.parametrize("command", [("step", "--env"), ("suggest",), ("startup", "--env"), ("memory", "--env")])
def test_an_unknown_env_ends_the_command_with_2_and_plain_words(bench: Bench, command: tuple[str, ...]) -> None:
    done = bench(*command, "NoSuchEnv-v1")
    assert done.exit_code == 2
    assert 'Environment "NoSuchEnv-v1" cannot be made' in done.output
    assert "Traceback" not in done.output


def test_an_unknown_peer_ends_the_command_with_2(bench: Bench) -> None:
    done = bench("step", "--peers", "envpool")
    assert done.exit_code == 2
    assert 'There is no peer called "envpool".' in done.output


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


def test_machine_measures_cores_and_the_cost_of_a_worker(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    done = bench("machine", "--seconds", 0.02, "--rounds", 2, "--json", file)
    assert done.exit_code == 0, done.output
    rows = {row["name"]: row["spread"] for row in written(file)["rows"]}
    assert list(rows) == ["cores at once", "worker round trip", "break-even"]
    assert 0.0 < rows["cores at once"]["median"] < 2.0 * max(2, machine.available_cores())
    assert all(name in done.output for name in rows)


def test_the_installed_step_compares_with_the_plain_loop_alone(tmp_path: Path) -> None:
    file = tmp_path / "step.json"
    words = ["step", "--env", "spin:0", "--num-envs", "2", "--seconds", "0.01", "--rounds", "1", "--json", str(file)]
    done = CliRunner().invoke(installed.app, words)
    assert done.exit_code == 0, done.output
    assert [row["name"] for row in written(file)["rows"]] == ["parallel_envs", "in-process"]


def test_memory_prints_ten_points_and_a_verdict(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "memory.json"
    done = bench("memory", "--env", "spin:0", "--num-envs", 2, "--steps", 200, "--json", file)
    assert len(written(file)["rows"]) == 10
    assert written(file)["rows"][-1]["steps"] == 200
    assert "flat: " in done.output
    assert done.exit_code == (0 if written(file)["settings"]["flat"] else 1)


def test_syscalls_says_how_to_get_strace_and_exits_with_2(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    done = bench("syscalls")
    assert done.exit_code == 2
    assert "apt-get install strace" in done.output


class Reaching(Experiment):
    """An experiment whose figure is known."""

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        return {"speed": 2.0}


@pytest.mark.parametrize(("limit", "outcome", "exit_code"), [(1.9, "PASS", 0), (2.1, "FAIL", 1)])
def test_bars_exits_with_1_if_one_is_missed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: float, outcome: str, exit_code: int
) -> None:
    bar = Bar(work="w", experiment=Reaching(), figure="speed", unit="x", sense="at least", limit=limit)
    monkeypatch.setattr(cli, "BARS", (bar,))
    done = bench("bars", "--json", tmp_path / "bars.json")
    assert done.exit_code == exit_code
    assert outcome in done.output
    row = written(tmp_path / "bars.json")["rows"][0]
    assert (row["value"], row["limit"], row["outcome"]) == (2.0, limit, outcome)


def test_some_bars_only_are_run_and_each_is_told_at_once(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bars = [
        Bar(work=work, experiment=Reaching(), figure="speed", unit="x", sense="at least", limit=1.0)
        for work in ("Ant", "Sokoban")
    ]
    monkeypatch.setattr(cli, "BARS", bars)
    done = bench("bars", "--only", "soko")
    assert done.exit_code == 0, done.output
    assert "PASS  Sokoban: 2.00, at least 1 x" in done.stderr
    assert "Ant" not in done.output
    done = bench("bars", "--only", "Pong")
    assert done.exit_code == 2
    assert "no bar has 'Pong' in it" in done.output
