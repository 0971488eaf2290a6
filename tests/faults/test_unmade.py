"""Envs that cannot be made anew, or whose making is cut short: what is said of them, and how they come back."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from parallel_envs.errors import EnvError, WorkerDied
from tests.faults.matrix import Make

LONG = 60.0
ACTIONS = np.zeros(2, np.int64)
DIES = partial(os._exit, 3)
REASON = "the licence server is down"
AS_IT_WAS_MADE = r"during its construction, while it was made anew \(envs\.restart\(env_ids\) tries again\)"


class Fragile(gym.Env[Any, Any]):
    """Counts its steps. With `notes` it breaks in step 2 of its first life, and `second_life` is called in the next
    life's constructor.
    """

    observation_space = gym.spaces.Discrete(100)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, notes: Path | None, second_life: Any = None, breaks: Any = DIES) -> None:
        self.breaks = None
        if notes is not None:
            with notes.open("a") as lives:
                lives.write("x")
            life = notes.stat().st_size
            if life == 1:
                self.breaks = breaks
            elif life == 2 or second_life is refuse:
                second_life(notes)
        self.steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[int, dict[str, Any]]:
        self.steps = 0
        return 0, {}

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 2 and self.breaks is not None:
            self.breaks()
        return self.steps, 1.0, False, False, {"x": 1.0, **({"y": 2.0} if self.steps == 2 else {})}


def refuse(notes: Path) -> None:
    """Fails until somebody helps."""
    if not notes.with_suffix(".up").exists():
        raise RuntimeError(REASON)


def fail() -> None:
    """Raises, and leaves the worker alone."""
    raise ValueError("broken")


def strike_and_hang(pid: int, notes: Path) -> None:
    """Ctrl-C for the asker, who is waiting for this env just now."""
    os.kill(pid, signal.SIGINT)
    threading.Event().wait()


def struck(make: Make, notes: Path, **settings: Any) -> Any:
    """A manager whose second env broke in step 2, and whose repair Ctrl-C has cut short."""
    second = partial(Fragile, notes, partial(strike_and_hang, os.getpid()))
    envs = make([partial(Fragile, None), second], autoreset_mode="Disabled", step_timeout=LONG, **settings)
    envs.reset()
    envs.step(ACTIONS)
    return envs


def test_a_repair_that_ctrl_c_cut_short_is_taken_up_again(make: Make, tmp_path: Path) -> None:
    envs = struck(make, tmp_path / "lives", on_failure="restart")
    with pytest.raises(KeyboardInterrupt):
        envs.step(ACTIONS)
    assert "waiting for step" in repr(envs)
    observations, _, _, truncated, infos = envs.step_wait(LONG)
    assert observations.tolist() == [2, 0]
    assert truncated.tolist() == [False, True]
    assert infos["worker_restarted"].tolist() == [False, True]
    assert infos["y"].tolist() == [2.0, 0.0]
    assert envs.step(ACTIONS)[0].tolist() == [3, 1]
    assert envs.step(ACTIONS)[4]["y"].tolist() == [0.0, 2.0]


def test_a_restart_by_hand_that_was_cut_short_may_be_asked_for_again(make: Make, tmp_path: Path) -> None:
    envs = struck(make, tmp_path / "lives")
    with pytest.raises(WorkerDied):
        envs.step(ACTIONS)
    with pytest.raises(KeyboardInterrupt):
        envs.restart([1])
    with pytest.raises(WorkerDied, match="Worker 1"):
        envs.step(ACTIONS)
    envs.restart([1])
    assert envs.step(ACTIONS)[3].tolist() == [False, True]


def test_what_has_been_asked_again_is_not_asked_twice(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = partial(Fragile, tmp_path / "lives", lambda notes: None)
    envs = make([partial(Fragile, None), second], step_timeout=LONG, on_failure="restart")
    envs.reset()
    envs.step(ACTIONS)
    ask = envs._batch.report_lost
    asked: list[Any] = []

    def ask_and_strike(*arguments: Any) -> Any:
        asked.append(ask(*arguments))
        signal.raise_signal(signal.SIGINT)
        return asked[-1]

    monkeypatch.setattr(envs._batch, "report_lost", ask_and_strike)
    with pytest.raises(KeyboardInterrupt):
        envs.step(ACTIONS)
    observations, _, _, truncated, infos = envs.step_wait(LONG)
    assert observations.tolist() == [2, 0]
    assert truncated.tolist() == [False, True]
    assert infos["worker_restarted"].tolist() == [False, True]
    assert len(asked) == 1


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("breaks", [DIES, fail], ids=["dies", "raises"])
def test_the_reason_is_told_each_time(make: Make, tmp_path: Path, num_workers: int, breaks: Any) -> None:
    second = partial(Fragile, tmp_path / "lives", refuse, breaks)
    envs = make(
        [partial(Fragile, None), second],
        num_workers=num_workers,
        step_timeout=LONG,
        reset_timeout=LONG,
        on_failure="restart",
        max_restarts=1,
    )
    envs.reset()
    envs.step(ACTIONS)
    for ask in (lambda: envs.step(ACTIONS), lambda: envs.step(ACTIONS), envs.reset):
        with pytest.raises(EnvError, match=f"Env 1 .*{AS_IT_WAS_MADE}: {REASON}"):
            ask()
    (tmp_path / "lives.up").touch()
    envs.restart([1])
    envs.reset()
    assert envs.step(ACTIONS)[0].tolist() == [1, 1]


@pytest.mark.parametrize("backend", ["thread", "serial", "process"])
def test_the_reason_is_told_after_a_restart_by_hand(make: Make, tmp_path: Path, backend: str) -> None:
    second = partial(Fragile, tmp_path / "lives", refuse, fail)
    envs = make([partial(Fragile, None), second], backend=backend, step_timeout=LONG)
    envs.reset()
    for _ in range(2):
        with pytest.raises(EnvError, match=REASON):
            envs.restart([1])
    with pytest.raises(EnvError, match=f"Env 1 .*{AS_IT_WAS_MADE}: {REASON}"):
        envs.step(ACTIONS)
    with pytest.raises(EnvError, match=REASON):
        envs.get_attr("steps")
    (tmp_path / "lives.up").touch()
    envs.restart([1])
    assert envs.step(ACTIONS)[3].tolist() == [False, True]
