"""`parallel-envs tasks`."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest
from gymnasium.envs.classic_control import CartPoleEnv

from tests.cli.test_tool import command, told

MAKING = "envs = ParallelEnvManager([GridNaviEnv] * 8) envs.reset(tasks=[("
NONE = "cartpole.CartPoleEnv way none: its reset takes options and does not read options['task']"
MANY = 'envs = MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=8, task_setter=give)'


@pytest.mark.parametrize(
    ("env", "exit_code", "parts"),
    [
        ("parallel_envs.testing.families:GridNaviEnv", 0, ["reset_task(task", "also get_task, sample_tasks", MAKING]),
        ("CartPole-v1", 1, ["lineage gymnasium.wrappers.common.TimeLimit holds", NONE, "task_setter=give)"]),
        ("tests.cli.test_tasks:ReadsOptions", 0, ['way reset(options={"task": task}), which reads it']),
        ("mpe2.simple_spread_v3", 1, [MANY]),
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


class ReadsOptions(CartPoleEnv):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.gravity = (options or {}).get("task", 9.8)
        return super().reset(seed=seed)


def never_returns() -> None:
    os._exit(3)


def never_ready() -> None:
    threading.Event().wait()
