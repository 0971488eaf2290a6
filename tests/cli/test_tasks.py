"""`parallel-envs tasks`."""

from __future__ import annotations

import dataclasses
import os
import threading
from typing import Any

import pytest

from parallel_envs.cli.tasks import lines_of, takes_tasks
from parallel_envs.multiagent.by_name import EnvInspection
from parallel_envs.tasks import TaskWay
from tests.cli.test_tool import command, told

MAKING = "envs = ParallelEnvManager([GridNaviEnv] * 8) envs.reset(tasks=[("
NONE = "cartpole.CartPoleEnv way none: its reset takes options and does not read options['task']"
READS_OPTIONS = EnvInspection(
    layers=("here.Env",),
    is_gymnasium=True,
    way=TaskWay.OPTIONS,
    method=None,
    owner=None,
    looks=True,
    others=(),
    sample=None,
)


@pytest.mark.parametrize(
    ("env", "exit_code", "parts"),
    [
        ("parallel_envs.testing.families:GridNaviEnv", 0, ["reset_task(task", "also get_task, sample_tasks", MAKING]),
        ("CartPole-v1", 1, ["lineage gymnasium.wrappers.common.TimeLimit holds", NONE, "task_setter=give)"]),
        ("tests.cli.test_tasks:Nothing", 2, ["has no attribute 'Nothing'"]),
        ("CartPol-v1", 2, ["'CartPol-v1' is unknown. Did you mean 'CartPole-v1'"]),
        ("CartPole-*", 2, ["names 2 environments. Give one of 'CartPole-v0', 'CartPole-v1'"]),
        ("tests.cli.test_tasks:never_returns", 2, ["ended its process (exit code 3)"]),
        ("tests.cli.test_tasks:never_ready", 2, ["takes longer than 0.2 s"]),
    ],
)
def test_an_env_is_shown_with_its_way_to_take_tasks(env: str, exit_code: int, parts: list[str]) -> None:
    result = command("tasks", env, *(["--timeout", "0.2"] if "never_ready" in env else []))
    assert result.exit_code == exit_code, result.output
    assert [part for part in parts if part not in told(result)] == []


def never_returns() -> None:
    os._exit(3)


def never_ready() -> None:
    threading.Event().wait()


@pytest.mark.parametrize(
    ("name", "changes", "line"),
    [
        ("here:Env", {}, 'way      reset(options={"task": task}), which reads it'),
        (
            "mpe2.simple_spread_v3?N=5",
            {"is_gymnasium": False},
            'example  envs = MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=8, env_kwargs={...})',
        ),
        ("here:Env", {"way": None, "looks": None}, "way      none: it has neither reset_task nor set_task"),
    ],
)
def test_lines_of_an_inspection(name: str, changes: dict[str, Any], line: str) -> None:
    found = dataclasses.replace(READS_OPTIONS, **changes)
    assert takes_tasks(READS_OPTIONS)
    assert any(one.startswith(line) for one in lines_of(name, found))
