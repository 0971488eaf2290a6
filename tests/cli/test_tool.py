"""`parallel-envs` as one tool: its help, its suggestions, that it starts at once, and its progress bars."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys

import pytest
from rich.console import Console
from typer.testing import CliRunner, Result

from parallel_envs import cli
from parallel_envs.cli.episode_display import shown
from parallel_envs.evaluation import EpisodeRecord, Failure

COMMANDS = ("train", "sweep", "eval", "compare", "tasks", "doctor")


def command(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words), prog_name="parallel-envs")


def told(result: Result) -> str:
    """All that was said, without frames and line breaks."""
    return " ".join(result.output.replace("│", " ").split())


def test_every_command_has_help_with_an_example() -> None:
    assert all(f" {name} " in told(command("--help")) for name in (*COMMANDS, "bench"))
    assert "Usage: parallel-envs [OPTIONS] COMMAND" in told(command())
    for name in COMMANDS:
        assert f"Example: parallel-envs {name} " in told(command(name, "--help"))
    assert "suggest" in told(command("bench", "--help"))
    assert "Usage: parallel-envs bench suggest [OPTIONS]" in told(command("bench", "suggest", "--help"))
    assert "Example: parallel-envs eval" in told(command("eval"))
    assert "Missing option '--policy'" in told(command("eval", "-m", "CartPole-v1"))


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["evla"], "eval"),
        (["train", "--resum", "x"], "--resume"),
        (["tasks", "CartPole-v1", "--timout", "3"], "--timeout"),
        (["bench", "sugest"], "suggest"),
        (["bench", "step", "--num-env", "3"], "--num-envs"),
    ],
)
def test_what_is_misspelt_is_guessed(words: list[str], meant: str) -> None:
    result = command(*words)
    assert result.exit_code == 2
    assert meant in told(result).rpartition("No such")[2]
    assert "Traceback" not in result.output


def ran(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **environment}
    return subprocess.run([sys.executable, *words], env=environment, capture_output=True, text=True, check=True)


def test_help_loads_nothing_that_it_does_not_need() -> None:
    program = (
        "import json, runpy, sys\n"
        "sys.argv = ['parallel-envs', '--help']\n"
        "try: runpy.run_module('parallel_envs', run_name='__main__')\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    shown = ran("-c", program).stdout
    loaded = set(json.loads(shown.splitlines()[-1]))
    assert "Usage: parallel-envs" in shown
    assert "parallel_envs.cli" in loaded
    assert loaded & {"numpy", "gymnasium", "pettingzoo", "torch", "pydantic", "parallel_envs.engine"} == set()


def test_a_terminal_without_signs_for_everything_gets_other_signs() -> None:
    words = ("-m", "parallel_envs", "eval", "-m", "CartPole-v1", "-p", "random", "-e", "2")
    assert "15.50 ? 0.50" in ran(*words, PYTHONIOENCODING="ascii").stdout


# ---- progress: bars, and lines where there is no terminal ------------------------------------------------------------

BROKEN = Failure(kind="env", error_type="ValueError", message="no")


def record(mission: str, episode: int, failure: Failure | None = None) -> EpisodeRecord:
    return EpisodeRecord(mission=mission, episode=episode, seed=0, failure=failure)


def written(num_missions: int, num_episodes: int, *, is_terminal: bool) -> str:
    """What is written while all episodes are played, a second each; every fourth fails."""
    now, text = 0.0, io.StringIO()
    console = Console(file=text, force_terminal=is_terminal, width=110, color_system=None)
    work = [(f"mission {mission:02d}", number) for mission in range(num_missions) for number in range(num_episodes)]
    with shown(console, lambda: now) as progress:
        progress.begin(work, [])
        for place, (mission, episode) in enumerate(work):
            now += 1.0
            progress.note(record(mission, episode, failure=BROKEN if place % 4 == 3 else None))
    return text.getvalue()


def test_lines_come_now_and_then_and_at_the_end_and_what_was_complete_before_is_no_speed() -> None:
    assert written(1, 24, is_terminal=False).splitlines() == [
        "10 of 24 episodes (42%), 1 episodes/s, 14 s left, 2 failed",
        "20 of 24 episodes (83%), 1 episodes/s, 4 s left, 5 failed",
        "24 of 24 episodes (100%), 1 episodes/s, 0 s left, 6 failed",
    ]
    now, text = 0.0, io.StringIO()
    with shown(Console(file=text, width=110), lambda: now) as progress:
        now = 100.0
        progress.begin([("m", number) for number in range(10)], [record("m", 0), record("m", 1, failure=BROKEN)])
        now = 114.0
        progress.note(record("m", 2))
    assert text.getvalue() == "3 of 10 episodes (30%), 0.0714 episodes/s, 1 min 38 s left, 1 failed\n"


@pytest.mark.parametrize(
    ("num_missions", "num_episodes", "there", "not_there"),
    [
        (2, 4, ["mission 00", "4/4 1 failed", "episodes/s, 4 s left, 1 failed", "8/8 1 episodes/s, 0 s"], "mission 02"),
        (1, 2, ["2/2"], "mission 00"),  # one mission has one bar
        (30, 1, ["mission 15", "30/30"], "mission 16"),  # more than fit a screen have bars for some
    ],
)
def test_bars_tell_missions_speed_time_left_and_failures(
    num_missions: int, num_episodes: int, there: list[str], not_there: str
) -> None:
    text = written(num_missions, num_episodes, is_terminal=True)
    assert [part for part in there if part not in text] == []
    assert not_there not in text
