"""Command lines name the value that was meant."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from benchmarks.cli import app as bench
from parallel_envs import cli


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["--format", "tabel"], "table"),
        (["--parallel-policy", "proces"], "process"),
        (["--turns", "sequental"], "sequential"),
        (["--record", "wrst"], "worst"),
    ],
)
def test_a_misspelt_value_of_eval(words: list[str], meant: str) -> None:
    told = refused(cli.app, "eval", "-m", "CartPole-v1", "-p", "random", *words)
    assert f"Invalid value for '{words[0]}': '{words[1]}' is not one of '" in told
    assert f"Did you mean '{meant}'?" in told


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["step", "--backend", "serail"], "serial"),
        (["soak", "--context", "forkserve"], "forkserver"),
        (["rollouts", "--work", "ant-mlpp"], "ant-mlp"),
        (["policies", "--work", "slep"], "sleep"),
        (["groups", "--work", "wating"], "waiting"),
        (["eval", "--works", "spred"], "spread"),
        (["learners", "--modes", "fusd"], "fused"),
        (["train", "--update-mode", "fusd"], "fused"),
    ],
)
def test_a_misspelt_value_of_bench(words: list[str], meant: str) -> None:
    assert f"Did you mean '{meant}'?" in refused(bench, *words)


def test_a_peer_and_an_environment_that_are_not_known() -> None:
    assert "Did you mean 'gymnasium'?" in refused(bench, "step", "--peers", "gymnasum")


def test_a_value_that_is_like_none_is_told_without_a_guess() -> None:
    told = refused(cli.app, "eval", "-m", "CartPole-v1", "-p", "random", "--format", "xyz")
    assert "'xyz' is not one of 'table', 'json', 'csv', 'yaml'." in told
    assert "Did you mean" not in told


def refused(app: object, *words: str) -> str:
    """What is told, on one line and without a frame."""
    result = CliRunner().invoke(app, list(words))  # type: ignore[arg-type]  # a Typer
    assert result.exit_code == 2, result.output
    return " ".join(result.output.replace("│", " ").split())
