from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.soak import faults
from benchmarks.soak.env import SoakEnv
from benchmarks.soak.faults import FloodingProgram, KeeperStop, evaluate_and_kill, fork_and_try
from parallel_envs.engine import supervisor_pid
from parallel_envs.vector import ParallelEnvManager

ACTIONS = np.zeros((2, 2), np.int64)


def make_manager() -> ParallelEnvManager:
    return ParallelEnvManager([partial(SoakEnv, env, "array") for env in range(2)])


def test_a_forked_child_is_refused_every_call_and_harms_nothing() -> None:
    with make_manager() as envs:
        envs.reset(seed=0)
        envs.step_async(ACTIONS)
        assert fork_and_try(envs, ACTIONS) == ""
        assert envs.step_wait()[0][:, 3].tolist() == [1, 1]


class Unguarded:
    """A manager that answers whatever process asks it, and one call of which never returns."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **settings: time.sleep(3600.0) if name == "restart" else None


def test_a_manager_that_serves_a_forked_child_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "FORK_SECONDS", 1.0)
    unguarded: Any = Unguarded()
    assert fork_and_try(unguarded, ACTIONS) == "the forked child hung"
    monkeypatch.setattr(Unguarded, "restart", lambda self: None, raising=False)
    assert "recv was not refused in a forked child" in fork_and_try(unguarded, ACTIONS)


def test_the_keeper_stands_still_and_goes_on() -> None:
    with make_manager() as envs:
        envs.reset(seed=0)
        stop = KeeperStop()
        assert state_of(supervisor_pid()) == "T"
        envs.step(ACTIONS)
        stop.end()
        until = time.monotonic() + 30.0
        while state_of(supervisor_pid()) == "T" and time.monotonic() < until:
            time.sleep(0.01)
        assert state_of(supervisor_pid()) != "T"


def state_of(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize("killed_after", [0.0, 0.03, 0.1])
def test_an_evaluation_whose_worker_is_killed_has_the_right_scores(killed_after: float) -> None:
    assert evaluate_and_kill(killed_after) == ""


def test_an_evaluation_with_other_scores_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_reference_scores", lambda: [1.0])
    assert "and [1.0] is right" in evaluate_and_kill(60.0)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_flooding_program_ends_as_it_should(is_killed: bool) -> None:
    assert FloodingProgram(is_killed=is_killed).end() == ""


def test_a_program_that_comes_to_a_wrong_result_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_PROGRAM", "print('[]'); print('wrong rows')")
    assert "wrong rows" in FloodingProgram(is_killed=False).end()


def test_processes_that_outlive_a_killed_program_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "child = subprocess.Popen(['sleep', '600'])",
        "print(json.dumps([child.pid]), flush=True)",
        "time.sleep(600)",
    ]
    monkeypatch.setattr(faults, "_PROGRAM", "; ".join(["import json, subprocess, time", *lines]))
    monkeypatch.setattr(faults, "_LEFT_SECONDS", 0.5)
    assert "outlived a killed program" in FloodingProgram(is_killed=True).end()
