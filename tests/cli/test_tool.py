"""`parallel-envs` as one tool: its help, its suggestions, and that it starts at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner, Result

from parallel_envs import cli

COMMANDS = ("train", "eval", "compare", "tasks", "doctor")


def command(*words: str) -> Result:
    return CliRunner().invoke(cli.app, list(words), prog_name="parallel-envs")


def told(result: Result) -> str:
    """All that was said, without frames and line breaks."""
    return " ".join(result.output.replace("│", " ").split())


def test_help_names_every_command() -> None:
    result = command("--help")
    assert result.exit_code == 0
    assert all(f" {name} " in told(result) for name in (*COMMANDS, "bench"))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_an_example(name: str) -> None:
    result = command(name, "--help")
    assert result.exit_code == 0
    assert f"Example: parallel-envs {name} " in told(result)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["evla"], "eval"),
        (["dcotor"], "doctor"),
        (["train", "--resum", "x"], "--resume"),
        (["tasks", "CartPole-v1", "--timout", "3"], "--timeout"),
        (["doctor", "--worker", "3"], "--workers"),
        (["bench", "sugest"], "suggest"),
        (["bench", "step", "--num-env", "3"], "--num-envs"),
    ],
)
def test_what_is_misspelt_is_guessed(words: list[str], meant: str) -> None:
    result = command(*words)
    assert result.exit_code == 2
    assert meant in told(result).rpartition("No such")[2]
    assert "Traceback" not in result.output


def test_nothing_asked_for_is_help() -> None:
    assert "Usage: parallel-envs [OPTIONS] COMMAND" in told(command())


def test_bench_is_the_benchmark_with_all_its_commands() -> None:
    assert "suggest" in told(command("bench"))
    result = command("bench", "suggest", "--help")
    assert result.exit_code == 0
    assert "Usage: parallel-envs bench suggest [OPTIONS]" in told(result)


def test_help_loads_nothing_that_it_does_not_need() -> None:
    program = (
        "import json, sys\n"
        "sys.argv = ['parallel-envs', '--help']\n"
        "import parallel_envs.cli\n"
        "try: parallel_envs.cli.main()\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "parallel_envs.cli" in loaded
    assert loaded & {"numpy", "gymnasium", "pettingzoo", "torch", "pydantic", "parallel_envs.engine"} == set()


def test_the_package_can_be_run() -> None:
    done = subprocess.run([sys.executable, "-m", "parallel_envs", "--help"], capture_output=True, text=True, check=True)
    assert "Usage: parallel-envs" in done.stdout


def test_a_terminal_without_signs_for_everything_gets_other_signs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "parallel_envs", "eval", "-m", "CartPole-v1", "-p", "random", "-e", "2"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "15.50 ? 0.50" in done.stdout
