"""A manager that is closed while it waits, by another thread or by a signal handler: the wait ends, and says why."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.errors import ClosedError
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import CountingEnv

LONG = 60.0  # far more than it takes


class Hanging(CountingEnv):
    """Never ends its step, but tells `pid` of it with SIGTERM first, if there is one."""

    def __init__(self, pid: int | None = None) -> None:
        super().__init__(100)
        self.pid = pid

    def step(self, action: Any) -> Any:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGTERM)
        threading.Event().wait()


WAYS: dict[str, Callable[[ParallelEnvManager], Any]] = {
    "step": lambda envs: envs.step([0, 0], timeout=LONG),
    "recv": lambda envs: (envs.send([0, 0]), envs.recv(timeout=LONG)),
    "ready": lambda envs: (envs.send([0, 0]), envs.ready(timeout=LONG)),
}


@pytest.mark.parametrize("name", WAYS)
def test_closed_by_another_thread(make_process: Make, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    envs = make_process([Hanging] * 2)
    envs.reset()
    pool: Any = envs._batch.pool
    closer = threading.Thread(target=partial(envs.close, timeout=0.2))
    real = pool._poller.wait

    def start_to_close_and_wait(timeout: float | None) -> Any:
        if not closer.ident:
            closer.start()
        return real(timeout)

    monkeypatch.setattr(pool._poller, "wait", start_to_close_and_wait)
    with pytest.raises(ClosedError):
        WAYS[name](envs)
    closer.join()
    assert envs.closed


@pytest.mark.parametrize("name", WAYS)
def test_closed_by_a_signal_handler(make_process: Make, name: str) -> None:
    envs = make_process([partial(Hanging, os.getpid()), Hanging])
    envs.reset()
    before = signal.signal(signal.SIGTERM, lambda number, frame: envs.close(timeout=0.2))
    try:
        with pytest.raises(ClosedError):
            WAYS[name](envs)
    finally:
        signal.signal(signal.SIGTERM, before)


class CloseAtLine:
    """Within this, `envs` are closed when the caller is about to run its `line`-th line in the named files."""

    FILES = ("vector/manager.py", "vector/recovery.py")

    def __init__(self, envs: ParallelEnvManager, line: int) -> None:
        self._envs, self._left, self.where = envs, line, ""

    def __enter__(self) -> CloseAtLine:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self.FILES):
            return None
        if event == "line" and not self.where:
            self._left -= 1
            if not self._left:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                self._envs.close(timeout=0.2)
        return self._trace


ANSWERED: dict[str, Callable[[ParallelEnvManager], Any]] = {
    "reset": lambda envs: envs.reset(seed=1),
    "step": lambda envs: envs.step([0, 0]),
    "recv": lambda envs: (envs.send([0, 0]), envs.recv(2)),
    "recv_env": lambda envs: (envs.send_reset([1]), envs.recv_env(1)),
    "call": lambda envs: envs.call("__str__"),
}


@pytest.mark.filterwarnings("error:.*Calling .close. while waiting")  # none is under way
@pytest.mark.parametrize("name", ANSWERED)
@pytest.mark.parametrize("every", [53, pytest.param(1, marks=pytest.mark.slow)])
def test_closed_at_any_line_of_a_call(make_process: Make, name: str, every: int) -> None:
    for line in count(1, every):
        envs = opened(make_process, [partial(CountingEnv, 100)] * 2, context="fork")
        with CloseAtLine(envs, line) as closing:
            try:
                ANSWERED[name](envs)  # what had come before the pool was closed may be given out
            except ClosedError:
                assert closing.where
            except Exception as error:
                raise AssertionError(f"closed before {closing.where}") from error
        envs.close()
        if not closing.where:
            break
    assert line > every + 1  # it was closed more than once
