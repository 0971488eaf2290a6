"""The end of a training run: what came of it, the commands that go on from there, and the name of its folder."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytest.importorskip("torch")
pytest.importorskip("safetensors")

from typer.testing import CliRunner

from parallel_envs import cli
from parallel_envs.evaluation.missions import named_missions
from parallel_envs.extras import is_installed
from parallel_envs.learners.checkpoint import about
from parallel_envs.learners.outcomes import outcome_in
from parallel_envs.learners.run_folder import new_folder_in_runs, read_metrics
from parallel_envs.multiagent.by_name import as_text
from tests.learners.command_lines import PPO, Train, command, newest

BANDITS = Path(__file__).parents[2] / "examples" / "results" / "meta" / "bandits.yaml"
SMALL = [
    *("env.num_eval_tasks=2", "env.num_envs=2", "train.num_rollouts_per_iter=2"),
    *("checkpoint_every=1", "policy.algorithm.minibatch_size=20"),
]


SOURCE = """
import gymnasium
import numpy as np


class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-9.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=3, title=""):
        self.length, self.title = length, title

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.place += 1
        return np.full(1, self.place, np.float32), float(action), self.place == self.length, False, {}
"""


def settings(path: Path, **more: Any) -> Path:
    alone = {"num_envs": 2, "total_steps": 60, "backend": "serial", "update_mode": "sequential", "tensorboard": False}
    path.write_text(yaml.safe_dump({**alone, "algorithm": PPO, **more}))
    return path


def trained(train: Train, folder: Path, *words: str, **more: Any) -> Any:
    done = train(f"folder={folder}", *words, **more)
    assert done.exit_code == 0, done.output
    return done


def commands_in(text: str) -> list[str]:
    """The lines below `Next:`."""
    lines = text.splitlines()
    return [line.strip() for line in lines[lines.index("Next:") + 1 :] if line.startswith("  ")]


def run_in(folder: Path, line: str) -> subprocess.CompletedProcess[str]:
    """What a user's shell makes of a line."""
    return subprocess.run(line, shell=True, cwd=folder, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("env", ["my_walks:Walk", pytest.param("./my_walks.py:Walk", marks=pytest.mark.slow)])
def test_the_three_printed_commands_work_as_printed(env: str, tmp_path: Path) -> None:
    """Also with blanks and `=` in the folder's name, arguments of the environment, and a module that wants --trust."""
    (tmp_path / "my_walks.py").write_text(SOURCE)
    folder = "my runs/walk, lr=1"
    kwargs = {"length": 4, "title": "a & b.yaml"}
    settings(tmp_path / "walk.yaml", env=env, env_kwargs=kwargs, folder=folder)
    done = run_in(tmp_path, f"{shlex.quote(sys.executable)} -m parallel_envs train walk.yaml")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [folder]
    evaluation, report, resume = commands_in(done.stderr)

    found = run_in(tmp_path, f"{evaluation} --format json")
    assert found.returncode == 0, found.stderr
    document = json.loads(found.stdout)
    assert [one["length"] for one in document["episodes"]] == [4] * 20
    (mission,) = document["settings"]["missions"].values()
    assert mission["kwargs"] == kwargs

    told = run_in(tmp_path, report)
    assert told.returncode == 0, told.stderr
    assert told.stdout.strip() in done.stderr
    assert "Ended: all 70 steps were made (total_steps: 60)" in told.stdout

    assert "--trust" in resume
    before = newest(tmp_path / folder)
    again = run_in(tmp_path, resume)
    assert again.returncode == 0, again.stderr
    assert "nothing is left to do" not in again.stderr
    assert int(newest(tmp_path / folder).name) > int(before.name)
    assert re.search(
        r"Ended: all 1\d\d steps were made \(total_steps: 120\), \d+ of them since it was resumed", again.stderr
    )


@pytest.mark.slow
@pytest.mark.skipif(not is_installed("tensorboard"), reason="needs tensorboard")
def test_tensorboard_is_proposed_where_the_run_has_written_for_it(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "a run"
    done = trained(train, folder, "tensorboard=true")
    board = commands_in(done.output)[1]
    assert board.endswith(f"--logdir {shlex.quote(str(folder / 'tensorboard'))}")
    inspected = run_in(tmp_path, f"{board} --inspect")  # reads what is there and ends, in the place of serving it
    assert inspected.returncode == 0, inspected.stderr
    assert "return/agent_0" in inspected.stdout


def test_the_figures_are_those_of_the_checkpoint_and_the_metrics(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained(train, folder, "log_every=1")
    outcome, told = outcome_in(folder), about(newest(folder))
    (one,) = outcome.agents.values()
    returns = told["returns"][0]
    assert (outcome.steps, outcome.steps_here) == (told["steps"], told["steps"])
    assert (one.algorithm, one.episodes) == ("ppo", told["episodes"][0])
    assert one.episodes == len(returns) > 0  # fewer than 100, so all are kept
    assert one.last_return is not None
    assert one.last_return == pytest.approx(sum(returns) / len(returns))
    lines = [line["agents"]["agent_0"].get("return") for line in read_metrics(folder)]
    assert one.best_return == max([*(value for value in lines if value is not None), one.last_return])
    assert max(map(len, outcome.told().splitlines())) < 80


def test_episodes_are_counted_on_where_a_run_goes_on(train: Train, tmp_path: Path) -> None:
    folder, whole, parted = (tmp_path / name for name in ("run", "whole", "parted"))
    trained(train, folder, "env=Pendulum-v1", "total_steps=60", "env_kwargs={}")
    assert outcome_in(folder).agents["agent_0"].episodes == 0
    assert "-" in outcome_in(folder).told().splitlines()[-1]  # no episode, no return
    trained(train, whole, "total_steps=160")
    trained(train, parted, "total_steps=80")
    assert train("total_steps=160", resume=parted).exit_code == 0
    assert about(newest(parted))["episodes"] == about(newest(whole))["episodes"]
    assert 0 < (outcome_in(parted).steps_here or 0) < outcome_in(parted).steps


def test_a_run_that_was_killed_is_reported_by_its_metrics(train: Train, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    trained(train, folder, "log_every=1")
    (folder / "outcome.json").unlink()
    told = CliRunner().invoke(cli.app, ["report", str(folder)])
    assert told.exit_code == 0, told.output
    assert told.output.startswith("Still training, or ended by a kill: 94 steps are known.")
    assert "agent_0" in told.output
    (folder / "outcome.json").write_text('{"ended": 3')
    refused = CliRunner().invoke(cli.app, ["report", str(folder)])
    assert (refused.exit_code, "outcome.json is damaged" in refused.output) == (2, True)
    assert "holds no run" in CliRunner().invoke(cli.app, ["report", str(tmp_path)]).output


def test_a_run_from_a_file_goes_on_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_walks.py").write_text(SOURCE)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # the settings name a file beside them
    done = command(settings(tmp_path / "walk.yaml", env="my_walks.py:Walk"), f"folder={tmp_path / 'run'}")
    assert done.exit_code == 0, done.output
    refused = command("--resume", tmp_path / "run", "total_steps=120")
    assert (refused.exit_code, f"--trust {tmp_path / 'my_walks.py'}" in refused.output) == (2, True)
    done = command("--resume", tmp_path / "run", "total_steps=120", "--trust", tmp_path / "my_walks.py")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    "until", ["train.num_iters=2", pytest.param("train.n_env_steps_total=20", marks=pytest.mark.slow)]
)
def test_a_meta_run_says_how_it_ended_and_its_commands_work(until: str, tmp_path: Path) -> None:
    folder, budget = tmp_path / "a band", ["train.num_iters=null"] if "total" in until else []
    done = command(BANDITS, *budget, until, *SMALL, f"folder={folder}")
    assert done.exit_code == 0, done.output
    steps = outcome_in(folder).steps
    assert f"Ended as the settings say, after {steps:,} steps" in done.output
    told, again = (run_in(tmp_path, line) for line in commands_in(done.output))
    assert (told.returncode, again.returncode) == (0, 0), told.stderr + again.stderr
    assert told.stdout.strip() in done.output
    assert "ppo" in told.stdout
    outcome = outcome_in(folder)
    assert (outcome.ended, outcome.steps) == ("budget", 2 * steps)


@pytest.mark.parametrize(
    ("kind", "ended", "reason", "words"),
    [
        (KeyboardInterrupt, "ctrl-c", "", "Ended by Ctrl-C after"),
        (RuntimeError, "error", "RuntimeError", "Ended by an error (RuntimeError)"),
    ],
)
def test_a_meta_run_that_ends_early_says_why(
    kind: type[BaseException], ended: str, reason: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def update(*_: Any, **__: Any) -> dict[str, float]:
        raise kind

    monkeypatch.setattr("parallel_envs.learners.meta.learner.Learner.update", update)
    done = command(BANDITS, *SMALL, f"folder={tmp_path / 'run'}")
    assert done.exit_code != 0
    outcome = outcome_in(tmp_path / "run")
    assert (outcome.ended, outcome.reason, words in done.output) == (ended, reason, True)


NAMES = {
    "CartPole-v1": "CartPole-v1",
    "mpe2.simple_spread_v3": "mpe2.simple_spread_v3",
    "mpe2/simple_spread-v3": "mpe2-simple_spread-v3",
    "ale_py:ALE/Pong-v5": "ale_py-ALE-Pong-v5",
    "./my envs/file.py:Class": "file-Class",
    "package.module:Class": "package.module-Class",
    "../..": "env",
    "-rf": "rf",
}


def test_a_runs_name_is_a_safe_file_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for env, name in NAMES.items():
        folder = new_folder_in_runs(env, ["ppo", "dqn", "ppo"], 7)
        assert re.fullmatch(re.escape(f"{name}_ppo+dqn_seed7_") + r"\d{8}-\d{6}(\W?\d+)?", folder.name), folder.name
        assert folder.is_dir()
        assert folder.parent == Path("runs")
    assert len({new_folder_in_runs("x" * 300, ["ppo"], 0) for _ in range(4)}) == 4
    assert all(len(os.fsencode(path.name)) < 256 for path in (tmp_path / "runs").iterdir())


@pytest.mark.parametrize(
    "kwargs",
    [
        {},
        {"N": 3, "rate": 1e-5, "large": 1e22, "end": float("inf"), "flag": True, "nothing": None},
        {"name": "plain", "odd": "a&b=c?d", "file": "maps.yaml:easy", "word": "no", "number": "12", "empty": ""},
        {"nested": {"a": [1, "x&y"], "b": {"c": None}}, "text": "ünï \"quoted\" 'too' # not a comment"},
    ],
)
def test_arguments_come_back_from_text_as_they_were(kwargs: dict[str, Any]) -> None:
    (mission,) = named_missions(as_text("CartPole-v1", kwargs))
    assert (mission.env, mission.kwargs) == ("CartPole-v1", kwargs)
