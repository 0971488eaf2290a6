"""Numbers and words about faults that make no sense are refused, and nothing has begun."""

from __future__ import annotations

import gc
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.engine import supervisor_pid
from parallel_envs.errors import ClosedError
from parallel_envs.testing import ScriptedEnv
from tests.faults.matrix import Make
from tests.vector.small_envs import CountingEnv

DEADLINES = ("step_timeout", "reset_timeout", "start_timeout")
SETTINGS: list[tuple[str, Any, type[Exception], str]] = [
    *((name, value, ValueError, "") for name in DEADLINES for value in (-0.5, 0, math.nan, "1", True)),
    *(("max_restarts", value, ValueError, "") for value in (0, -1)),
    *(("max_restarts", value, TypeError, "") for value in (1.5, True)),
    *(("restart_window", value, ValueError, "") for value in (-1, math.nan, None, "1", True)),
    *(
        ("on_failure", value, ValueError, r"is unknown\. Choose one of 'raise', 'restart'\.")
        for value in ("Restart", "", "ignore", None, True, 3)
    ),
]


@pytest.mark.parametrize(("setting", "value", "kind", "text"), SETTINGS)
def test_bad_settings_leave_nothing(make: Make, setting: str, value: Any, kind: type[Exception], text: str) -> None:
    workers, blocks = children_of_the_supervisor(), open_blocks()
    with pytest.raises(kind, match=rf"^{setting}={value!r} {text}") as caught:
        make([ScriptedEnv], **{setting: value})
    assert caught.value.__traceback__ is not None  # while the error is held, and with it all that its frames hold
    assert children_of_the_supervisor() == workers
    del caught
    gc.collect()
    assert open_blocks() == blocks


def children_of_the_supervisor() -> set[int]:
    pid = supervisor_pid()
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def open_blocks() -> set[str]:
    links = [link for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    return {link.name for link in links if str(link.readlink()).startswith("/memfd:parallel_envs")}


@pytest.mark.parametrize("asked", ["reset", "step", "reset_wait", "step_wait", "call_wait", "recv", "close"])
def test_a_deadline_of_a_call_that_makes_no_sense_is_refused(make: Make, asked: str) -> None:
    for value in (-1, "1"):
        envs = make([ScriptedEnv], context="fork")
        with pytest.raises(ValueError, match=rf"^timeout={value!r} "):
            ask_with_timeout(envs, asked, value)
        assert not envs.closed
        if asked in ("reset", "step", "close"):  # a refused call has not begun
            envs.reset(seed=0)
        envs.close()


def ask_with_timeout(envs: ParallelEnvManager, asked: str, timeout: Any) -> Any:
    one = np.zeros(1, int)
    if asked not in ("reset", "reset_wait", "call_wait", "close"):
        envs.reset(seed=0)
    match asked:
        case "reset" | "close":
            return getattr(envs, asked)(timeout=timeout)
        case "step":
            return envs.step(one, timeout=timeout)
        case "reset_wait":
            envs.reset_async()
            return envs.reset_wait(timeout=timeout)
        case "step_wait":
            envs.step_async(one)
            return envs.step_wait(timeout=timeout)
        case "call_wait":
            envs.call_async("echo")
            return envs.call_wait(timeout=timeout)
        case _:
            envs.send(one)
            return envs.recv(timeout=timeout)


@pytest.mark.parametrize("env_ids", [2, -3, [0.0], [True], [0, 0], []])
def test_unknown_envs_are_not_restarted_and_no_others(make: Make, env_ids: Any) -> None:
    envs = make([CountingEnv] * 2, context="fork")
    with pytest.raises(ValueError, match="env_ids"):
        envs.restart(env_ids)
    assert [row["restarts"] for row in envs.stats()] == [0, 0]


def test_a_closed_manager_cannot_be_restarted(make: Make) -> None:
    envs = make([CountingEnv])
    envs.close()
    with pytest.raises(ClosedError, match=r"`restart`.*after a call to `close\(\)`"):
        envs.restart()
