"""Where workers cannot be started: `backend="auto"` says why and does without; anything else is an error."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Any

import pytest

from parallel_envs.engine import process, supervisor_client
from parallel_envs.errors import WorkerStartError
from parallel_envs.testing import ScriptedEnv
from tests.faults.broken_envs import LONG
from tests.faults.courses import Witness
from tests.faults.matrix import Make


def refuse(*_arguments: Any, **_settings: Any) -> Any:
    raise OSError(38, "Function not implemented")


@pytest.fixture
def obstacle(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reasons for which no process can be started."""
    match request.param:
        case "no supervisor":
            monkeypatch.setattr(supervisor_client, "_current", None)
            monkeypatch.setattr(subprocess, "Popen", refuse)
        case "no fork":
            monkeypatch.setattr(os, "fork", refuse)
        case "no process descriptors":
            monkeypatch.setattr(os, "pidfd_open", refuse)
        case "an old system":
            monkeypatch.delattr(os, "pidfd_open")


OBSTACLES = [
    ("no supervisor", "forkserver"),
    ("no supervisor", "spawn"),
    ("no fork", "fork"),
    ("no process descriptors", "fork"),
    ("an old system", "fork"),
]


@pytest.mark.usefixtures("obstacle")
@pytest.mark.parametrize(("obstacle", "context"), OBSTACLES, indirect=["obstacle"])
def test_auto_falls_back_to_threads_and_says_why(make: Make, request: pytest.FixtureRequest, context: str) -> None:
    reason = "Linux 5.3 or later" if "old" in request.node.name else "Function not implemented"
    with pytest.warns(RuntimeWarning, match=rf"(?s)2 workers .*'process'.*{reason}.*threads") as told:
        envs = make([lambda: ScriptedEnv(**LONG)] * 2, backend="auto", context=context)
    assert "parallel_envs" not in told[0].filename.replace("/tests/", "")  # it points at the user's line
    assert envs.backend == "thread"
    witness = Witness(envs, **LONG)
    witness.reset()
    witness.step()
    with pytest.raises(WorkerStartError):  # processes that were asked for, and cannot be
        make([ScriptedEnv] * 2, context=context)


def test_without_threads_too_everything_is_done_by_the_caller(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """The third thread that is started cannot be; the two that could be have ended."""
    begin, begun = threading.Thread.start, list[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if len(begun) == 2:
            raise RuntimeError("can't start new thread")
        begun.append(thread)
        begin(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        patch.setattr(process, "ProcessPool", refuse)
        with pytest.warns(RuntimeWarning) as told:
            envs = make([ScriptedEnv] * 3, backend="auto")
    assert envs.backend == "serial"
    assert [str(warning.message).partition(" could")[0] for warning in told] == [
        "3 workers of backend 'process'",
        "3 workers of backend 'thread'",
    ]
    for thread in begun:
        thread.join(5.0)
        assert not thread.is_alive()


def test_an_env_that_cannot_be_made_is_no_reason_to_fall_back(make: Make) -> None:
    def factory_that_fails() -> Any:
        raise OSError("no such device")

    with pytest.raises(OSError, match="no such device"):
        make([factory_that_fails], backend="auto")
