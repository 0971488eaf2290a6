"""`parallel-envs tasks`."""

from __future__ import annotations

import dataclasses

import pytest

from parallel_envs.cli.tasks import lines_of, takes_tasks
from parallel_envs.multiagent.by_name import EnvInspection
from parallel_envs.tasks import TaskWay
from tests.cli.test_tool import command
from tests.cli.test_tool import told as words_of

PLAIN = EnvInspection(
    layers=("here.Env",),
    is_gymnasium=True,
    way=TaskWay.OPTIONS,
    method=None,
    owner=None,
    looks=True,
    others=(),
    sample=None,
)


def test_an_env_with_a_setter_is_shown_with_a_sample() -> None:
    result = command("tasks", "parallel_envs.testing.families:GridNaviEnv")
    assert result.exit_code == 0, result.output
    text = words_of(result)
    assert "reset_task(task" in text
    assert "also get_task, sample_tasks" in text
    assert "envs = ParallelEnvManager([GridNaviEnv] * 8) envs.reset(tasks=[(" in text


def test_an_env_without_tasks_is_told_what_to_give() -> None:
    result = command("tasks", "CartPole-v1")
    assert result.exit_code == 1
    text = words_of(result)
    assert "lineage gymnasium.wrappers.common.TimeLimit holds" in text
    assert "cartpole.CartPoleEnv way none: its reset takes options and does not read options['task']" in text
    assert 'ParallelEnvManager("CartPole-v1", num_envs=8, task_setter=give)' in text


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("tests.cli.test_tasks:Nothing", "has no attribute 'Nothing'"),
        ("CartPol-v1", "'CartPol-v1' is unknown. Did you mean 'CartPole-v1'"),
        ("CartPole-*", "names 2 environments. Give one of 'CartPole-v0', 'CartPole-v1'"),
        ("tests.cli.test_tasks:nobody_returns", "ended its process (exit code 3)"),
    ],
)
def test_what_cannot_be_made_is_told(env: str, message: str) -> None:
    result = command("tasks", env)
    assert result.exit_code == 2
    assert message in words_of(result)


def nobody_returns() -> None:
    import os

    os._exit(3)


def test_an_env_that_takes_too_long_is_given_up() -> None:
    result = command("tasks", "tests.cli.test_tasks:never_ready", "--timeout", "0.2")
    assert result.exit_code == 2
    assert "takes longer than 0.2 s" in words_of(result)


def never_ready() -> None:
    import threading

    threading.Event().wait()


def test_an_env_that_looks_at_its_options_takes_tasks() -> None:
    assert takes_tasks(PLAIN)
    lines = list(lines_of("here:Env", PLAIN))
    assert 'way      reset(options={"task": task}), which reads it' in lines
    assert "example  envs = ParallelEnvManager([Env] * 8)" in lines


def test_many_agents_have_their_own_manager() -> None:
    lines = list(lines_of("mpe2.simple_spread_v3?N=5", dataclasses.replace(PLAIN, is_gymnasium=False)))
    assert 'example  envs = MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=8, env_kwargs={...})' in lines


def test_an_env_without_any_way_is_told() -> None:
    lines = list(lines_of("here:Env", dataclasses.replace(PLAIN, way=None, looks=None)))
    assert lines[1].startswith("way      none: it has neither reset_task nor set_task")
