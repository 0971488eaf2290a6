"""The end of a training run: what came of it, the commands that go on from there, and the name of its folder."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console
from typer.testing import CliRunner

from parallel_envs import cli
from parallel_envs.evaluation.missions import named_missions
from parallel_envs.extras import is_installed
from parallel_envs.learners.checkpoint import about
from parallel_envs.learners.outcomes import outcome_in
from parallel_envs.learners.progress import Counted, Progress, Repetitions, display, returns_told
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


@pytest.mark.slow
@pytest.mark.parametrize("env", ["my_walks:Walk", "./my_walks.py:Walk"])
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


@pytest.mark.slow
def test_a_meta_run_says_how_it_ended_and_its_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a band"
    done = command(BANDITS, "train.num_iters=2", *SMALL, f"folder={folder}")
    assert done.exit_code == 0, done.output
    steps = outcome_in(folder).steps
    assert f"Ended as the settings say, after {steps:,} steps" in done.output
    told, again = (run_in(tmp_path, line) for line in commands_in(done.output))
    assert (told.returncode, again.returncode) == (0, 0), told.stderr + again.stderr
    assert told.stdout.strip() in done.output
    assert "ppo" in told.stdout
    outcome = outcome_in(folder)
    assert (outcome.ended, outcome.steps) == ("budget", 2 * steps)
    ends: list[tuple[type[BaseException], str, str, str]] = [
        (KeyboardInterrupt, "ctrl-c", "", "Ended by Ctrl-C after"),
        (RuntimeError, "error", "RuntimeError", "Ended by an error (RuntimeError)"),
    ]
    for kind, ended, reason, words in ends:

        def update(*_: Any, kind: type[BaseException] = kind, **__: Any) -> dict[str, float]:
            raise kind

        monkeypatch.setattr("parallel_envs.learners.meta.learner.Learner.update", update)
        done = command(BANDITS, *SMALL, f"folder={tmp_path / ended}")
        assert done.exit_code != 0
        outcome = outcome_in(tmp_path / ended)
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


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"N": 3, "rate": 1e-5, "large": 1e22, "end": float("inf"), "flag": True, "nothing": None},
    {"name": "plain", "odd": "a&b=c?d", "file": "maps.yaml:easy", "word": "no", "number": "12", "empty": ""},
    {"nested": {"a": [1, "x&y"], "b": {"c": None}}, "text": "ünï \"quoted\" 'too' # not a comment"},
]


def test_arguments_come_back_from_text_as_they_were() -> None:
    for kwargs in ARGUMENTS:
        (mission,) = named_missions(as_text("CartPole-v1", kwargs))
        assert (mission.env, mission.kwargs) == ("CartPole-v1", kwargs)


SECONDS = {"collect": 3.0, "act": 1.0, "update": 4.0}
PROGRESS = Progress(steps=3_000, updates=3, returns={"red": 1.5, "blue": -20.0}, seconds=SECONDS)


class Stage:
    """A display on a made-up console by a made-up clock."""

    def __init__(self, *, is_terminal: bool = False, width: int = 150) -> None:
        self.now, self.written = 0.0, io.StringIO()
        self.console = Console(file=self.written, force_terminal=is_terminal, width=width, color_system=None)

    def show(self, *at: tuple[float, Progress], last: bool = False) -> str:
        """What is written when these are shown, each at its time; the `last` is the run's last."""
        with display(10_000, console=self.console, clock=lambda: self.now) as shown:
            for number, (self.now, progress) in enumerate(at, 1):
                shown.show(progress, last=last and number == len(at))
        return self.written.getvalue()


@pytest.mark.parametrize("is_terminal", [True, False])
def test_everything_is_told(is_terminal: bool) -> None:
    text = Stage(is_terminal=is_terminal).show((0.0, Progress(steps=1_000, updates=1)), (60.0, PROGRESS))
    assert "3,000 of 10,000 steps (30%), 33 steps/s, 3 min 30 s left, update 3" in text
    assert "return red 1.5, blue -20" in text
    assert "collect 38%, act 12%, update 50%" in text
    if is_terminal:
        lines = [line.strip() for line in Stage(is_terminal=True, width=80).show((0.0, PROGRESS)).splitlines()[:4]]
        assert [line.split(" ")[0] for line in lines[1:]] == ["3,000", "return", "collect"]
    else:
        assert "\x1b" not in text
        assert len(Stage().show((0.0, PROGRESS)).splitlines()) == 1
    many = returns_told({f"agent_{number}": float(number) for number in range(64)})
    assert many.endswith("agent_11 11, and 52 more")


def lines_of(*told: str) -> list[str]:
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(Repetitions())
    handler.setFormatter(Counted())
    for text in told:
        handler.handle(logging.LogRecord("x", logging.WARNING, __file__, 1, "%s", (text,), None))
    return written.getvalue().splitlines()


def test_each_tenth_power_is_told_with_how_many_there_were_in_whichever_step_and_of_whom() -> None:
    assert lines_of(*["red"] * 101, "blue") == ["red", "red (10 times so far.)", "red (100 times so far.)", "blue"]
    told = [f"{agent} in step {step} of the update" for agent in ("agent_1", "agent_2") for step in (1, 2, 3)]
    assert lines_of(*told) == [told[0], told[3]]


def test_the_end_is_told_as_it_is_and_lines_before_it_now_and_then() -> None:
    for steps, is_last, words in (
        (9_600, False, "10 steps/s, 40 s left"),  # a resumed run counts its own steps only
        (10_100, True, "10,100 of 10,000 steps (100%), 18 steps/s, 0 s left"),  # it learnt from all that it had made
        (9_999, False, "9,999 of 10,000 steps (99%)"),  # not at its end before it is
    ):
        at = (0.0, Progress(steps=9_000, updates=90)), (60.0, Progress(steps=steps, updates=95))
        assert words in Stage().show(*at, last=is_last)
    often = [(float(second), Progress(steps=second, updates=second)) for second in range(125)]
    lines = Stage().show(*often, (124.0, Progress(steps=10_000, updates=99)), last=True).splitlines()
    assert [line.split(" ")[0] for line in lines] == ["0", "60", "120", "10,000"]


def test_the_figures_are_those_of_the_checkpoint_and_the_metrics_and_a_killed_run_has_them_too(
    train: Train, tmp_path: Path
) -> None:
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
    (folder / "outcome.json").unlink()
    report = CliRunner().invoke(cli.app, ["report", str(folder)])
    assert report.exit_code == 0, report.output
    assert report.output.startswith("Still training, or ended by a kill: 94 steps are known.")
    assert "agent_0" in report.output
    (folder / "outcome.json").write_text('{"ended": 3')
    refused = CliRunner().invoke(cli.app, ["report", str(folder)])
    assert (refused.exit_code, "outcome.json is damaged" in refused.output) == (2, True)
    assert "holds no run" in CliRunner().invoke(cli.app, ["report", str(tmp_path)]).output
