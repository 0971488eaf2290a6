"""A manager that is closed while it waits, by another thread or by a signal handler: the wait ends, and says why."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.errors import ClosedError
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv

LONG = 60.0  # far more than it takes: who waits for so long hangs


class Hanging(CountingEnv):
    """Never ends its step, but tells `pid` of it with SIGTERM first, if there is one."""

    def __init__(self, pid: int | None = None) -> None:
        super().__init__(100)
        self.pid = pid

    def step(self, action: Any) -> Any:
        if self.pid is not None:
            os.kill(self.pid, signal.SIGTERM)
        threading.Event().wait()


def send_and_receive(envs: ParallelEnvManager) -> None:
    envs.send(np.zeros(2, int))
    envs.recv(timeout=LONG)


def send_and_look(envs: ParallelEnvManager) -> None:
    envs.send(np.zeros(2, int))
    envs.ready(timeout=LONG)


WAYS: list[Any] = [
    pytest.param(lambda envs: envs.step(np.zeros(2, int), timeout=LONG), id="step"),
    pytest.param(send_and_receive, id="recv"),
    pytest.param(send_and_look, id="ready"),
]


@pytest.mark.parametrize("wait", WAYS)
def test_by_another_thread(
    make_process: Make, monkeypatch: pytest.MonkeyPatch, wait: Callable[[ParallelEnvManager], None]
) -> None:
    envs = make_process([Hanging] * 2)
    envs.reset()
    pool: Any = envs._fleet.pool
    closer = threading.Thread(target=partial(envs.close, timeout=0.2))
    real = pool._poller.wait

    def start_to_close_and_wait(timeout: float | None) -> Any:
        if not closer.ident:
            closer.start()
        return real(timeout)

    monkeypatch.setattr(pool._poller, "wait", start_to_close_and_wait)
    with pytest.raises(ClosedError):
        wait(envs)
    closer.join()
    assert envs.closed


@pytest.mark.parametrize("wait", WAYS)
def test_by_a_signal_handler(make_process: Make, wait: Callable[[ParallelEnvManager], None]) -> None:
    envs = make_process([partial(Hanging, os.getpid()), Hanging])
    envs.reset()
    before = signal.signal(signal.SIGTERM, lambda number, frame: envs.close(timeout=0.2))
    try:
        with pytest.raises(ClosedError):
            wait(envs)
    finally:
        signal.signal(signal.SIGTERM, before)
