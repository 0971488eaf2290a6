"""`--json`: one document on stdout with the keys of docs/reference/commands.md, and nothing else."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from parallel_envs import cli
from parallel_envs.commands import json_text
from parallel_envs.evaluation import EpisodeRecord, EvaluationResult
from tests.cli.test_doctor import FINE

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "commands.md"
OUTCOME = {"folder", "ended", "reason", "steps", "total_steps", "steps_here", "seconds", "agents"}
FIGURES = {"n", "failed", "mean", "standard_error", "iqm", "iqm_interval", "success_rate", "mixed", "late"}
PRINTS = """
import gymnasium


class Prints(gymnasium.Env):
    observation_space, action_space = gymnasium.spaces.Discrete(2), gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        print("I am reset")
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        return 0, 1.0, True, False, {}
"""


def command(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words))


def document(*words: str, exit_code: int = 0) -> Any:
    done = command(*words)
    assert done.exit_code == exit_code, done.output
    return json.loads(done.stdout)


def check_documented(name: str, *keys: set[str]) -> None:
    row = next(line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}"))
    assert set().union(*keys) <= set(re.findall(r"`(\w+)`", row))


def test_an_evaluation_and_a_comparison_of_its_policies(tmp_path: Path) -> None:
    file = str(tmp_path / "results.json")
    found = document("eval", "-m", "CartPole-v1", "-p", "random", "-p", "noop", "-e", "3", "--output", file, "--json")
    assert found["episodes"] == 6
    assert (found["failed"], found["missing"], found["interrupted"]) == (0, 0, False)
    assert found["missions"]["CartPole-v1"] == found["policies"]
    assert found["policies"]["random"].keys() == FIGURES
    assert found["policies"]["random"]["mean"] == EvaluationResult.from_json(file).per_policy()["random"].mean
    check_documented("eval", found.keys(), FIGURES)
    (row,) = (compared := document("compare", file, "--json"))["comparisons"]
    assert (row["first"], row["second"], row["mission"], row["n"]) == ("random", "noop", "CartPole-v1", 3)
    assert compared["cross_play"] == []
    check_documented("compare", compared.keys(), row.keys())


def test_policies_that_shared_the_agents(tmp_path: Path) -> None:
    file = tmp_path / "versus.json"
    assignment, returns = {"red": "one", "blue": "other"}, {"red": 1.0, "blue": float("nan")}
    episodes = [
        EpisodeRecord(mission="m", episode=number, seed=number, assignment=assignment, returns=returns)
        for number in range(3)
    ]
    EvaluationResult(episodes=tuple(episodes)).to_json(file)
    found = document("compare", str(file), "--json")
    (table,) = found["cross_play"]
    assert (table["missions"], table["policies"], found["comparisons"]) == (["m"], ["one", "other"], [])
    assert table["returns"] == [[None, 1.0], [None, None]]  # NaN is no JSON
    assert table["ratings"]["one"].keys() == {"elo", "interval", "games"}
    check_documented("compare", table.keys(), table["ratings"]["one"].keys())


def test_training_prints_its_outcome_and_the_report_repeats_it(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    words = [
        f"env={tmp_path / 'prints.py'}:Prints",
        "backend=serial",
        "num_envs=1",
        "total_steps=16",
        "tensorboard=false",
    ]
    algorithm = ["algorithm.name=ppo", "algorithm.rollout_length=16", "algorithm.minibatch_size=16"]
    done = command("train", *words, *algorithm, f"folder={tmp_path / 'run'}", "update_mode=sequential", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert "I am reset" in done.stderr
    assert (found["folder"], found["ended"], found["steps"]) == (str(tmp_path / "run"), "budget", 16)
    assert found["agents"]["agent_0"]["algorithm"] == "ppo"
    assert document("report", str(tmp_path / "run"), "--json") == {"runs": [found]}
    assert found.keys() == OUTCOME
    check_documented("train", found.keys(), found["agents"]["agent_0"].keys())


def test_the_layers_of_an_environment() -> None:
    found = document("tasks", "CartPole-v1", "--json", exit_code=1)  # it takes no tasks
    assert found["takes_tasks"] is False
    assert found["layers"][-1].endswith("CartPoleEnv")
    assert "task_setter=give" in found["code"]
    check_documented("tasks", found.keys())


def test_the_doctor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["parallel_envs.cli.doctor"], "look", lambda methods, tell: FINE)
    found = document("doctor", "--json")
    assert found["machine"]["cores"] == FINE.cores
    check_documented("doctor", found.keys(), found["findings"][0].keys())


@pytest.mark.slow
def test_a_benchmark_prints_its_document_or_writes_it(tmp_path: Path) -> None:
    words = ["bench", "step", "--env", "spin:0", "--num-envs", "1", "--seconds", "0.01", "--rounds", "1"]
    for more in (["--json"], ["--json", "-"]):
        found = document(*words, *more)
        assert (found["command"], found["settings"]["env"]) == ("step", "spin:0")
    check_documented("bench", found.keys())
    done = command(*words, "--json", str(tmp_path / "step.json"))
    assert "env steps/s" in done.stdout  # the table
    assert json.loads((tmp_path / "step.json").read_text()).keys() == found.keys()


@pytest.mark.parametrize(
    "words",
    [
        ["eval", "-m", "NoSuchEnv-v1", "-p", "random"],
        ["eval", "-m", "CartPole-v1", "-p", "random", "--format", "csv"],
        ["compare", "missing.json"],
        ["report", "missing"],
        ["train", "missing.yaml"],
        ["tasks", "NoSuchEnv-v1"],
        ["bench", "step", "--env", "NoSuchEnv-v1"],
    ],
)
def test_what_is_refused_prints_no_document(words: list[str]) -> None:
    done = command(*words, "--json")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr


def test_a_program_can_read_the_pipe() -> None:
    words = [sys.executable, "-m", "parallel_envs", "eval", "-m", "CartPole-v1", "-p", "random", "-e", "2", "--json"]
    assert json.loads(subprocess.run(words, capture_output=True, check=True).stdout)["episodes"] == 2


def test_values_that_json_lacks() -> None:
    values = {"a": float("inf"), "b": (1, 2.5), 3: Path("x"), "d": [float("nan"), True, None]}
    assert json.loads(json_text(values)) == {"a": None, "b": [1, 2.5], "3": "x", "d": [None, True, None]}
