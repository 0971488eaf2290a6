"""Where workers cannot be started: `backend="auto"` says why and does without; anything else is an error."""

from __future__ import annotations

import os
import subprocess
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from parallel_envs.engine import process, start_supervisor, supervisor_client
from parallel_envs.errors import WorkerStartError
from parallel_envs.testing import ScriptedEnv
from tests.faults.broken_envs import LONG
from tests.faults.courses import Witness
from tests.faults.matrix import Make

NO_SUCH_CALL = "[Errno 38] Function not implemented"


def refuse(*_arguments: Any, **_settings: Any) -> Any:
    raise OSError(38, "Function not implemented")


@pytest.fixture
def no_keeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keeper runs, and none can be started."""
    monkeypatch.setattr(supervisor_client, "_current", None)
    monkeypatch.setattr(subprocess, "Popen", refuse)


@pytest.fixture
def no_fork(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", refuse)


@pytest.fixture
def no_process_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "pidfd_open", refuse)


OBSTACLES = [
    ("no_keeper", "forkserver"),
    ("no_keeper", "spawn"),
    ("no_fork", "fork"),
    ("no_process_descriptors", "fork"),
]


@pytest.mark.parametrize(("obstacle", "context"), OBSTACLES)
def test_auto_falls_back_to_threads_and_says_why(
    make: Make, request: pytest.FixtureRequest, obstacle: str, context: str
) -> None:
    request.getfixturevalue(obstacle)
    with pytest.warns(RuntimeWarning, match=r"(?s)2 workers .*'process'.*Function not implemented.*threads"):
        envs = make([lambda: ScriptedEnv(**LONG)] * 2, backend="auto", context=context)
    assert envs.backend == "thread"
    witness = Witness(envs, **LONG)
    witness.reset()
    witness.step()


@pytest.mark.parametrize(("obstacle", "context"), OBSTACLES[:2])
def test_processes_that_were_asked_for_and_cannot_be_are_an_error(
    make: Make, request: pytest.FixtureRequest, obstacle: str, context: str
) -> None:
    request.getfixturevalue(obstacle)
    with pytest.raises(WorkerStartError, match=r"could not be started: .*Function not implemented"):
        make([ScriptedEnv] * 2, context=context)


@pytest.mark.parametrize(("obstacle", "context"), OBSTACLES[2:])
def test_forks_that_were_asked_for_and_cannot_be_are_an_error_of_ours(
    make: Make, request: pytest.FixtureRequest, obstacle: str, context: str
) -> None:
    request.getfixturevalue(obstacle)
    assert kind_of_error(lambda: make([ScriptedEnv] * 2, context=context)) is WorkerStartError


@pytest.mark.parametrize(("backend", "expected"), [("auto", None), ("process", WorkerStartError)])
def test_a_system_without_process_descriptors(
    make: Make, monkeypatch: pytest.MonkeyPatch, backend: str, expected: type[Exception] | None
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        assert kind_of_error(lambda: make([ScriptedEnv], context="fork", backend=backend)) is expected


def kind_of_error(function: Callable[[], Any]) -> type[BaseException] | None:
    try:
        function()
    except Exception as error:  # noqa: BLE001  # whatever it is
        return type(error)
    return None


def only_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third thread that is started cannot be."""
    begin, started = threading.Thread.start, list[threading.Thread]()

    def start(thread: threading.Thread) -> None:
        if len(started) == 2:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        begin(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    monkeypatch.setattr(process, "ProcessPool", refuse)


def test_without_threads_too_everything_is_done_by_the_caller(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        only_two_threads(patch)
        before = set(threading.enumerate())
        with pytest.warns(RuntimeWarning) as told:
            envs = make([ScriptedEnv] * 3, backend="auto")
        begun = set(threading.enumerate()) - before
    for thread in begun:
        thread.join(1.0)
    left = {thread for thread in begun if thread.is_alive()}
    assert envs.backend == "serial"
    assert [str(warning.message).partition(" could")[0] for warning in told] == [
        "3 workers of backend 'process'",
        "3 workers of backend 'thread'",
    ]
    envs.close()
    end_serving(left)
    assert left == set()


def end_serving(threads: set[threading.Thread]) -> None:
    """Let go of what a pool that could not be made still holds."""
    for thread in threads:
        pool = vars(thread)["_target"].__self__
        vars(pool)["_inboxes"][vars(thread)["_args"][0]].put(None)
        thread.join()
        vars(pool)["_block"].close()


@pytest.mark.usefixtures("no_keeper")
def test_the_warning_points_at_the_users_line(make: Make) -> None:
    with pytest.warns(RuntimeWarning) as told:
        make([ScriptedEnv], backend="auto")
    assert "parallel_envs" not in told[0].filename.replace("/tests/", "")


def test_where_processes_can_be_started_auto_is_processes(make: Make) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make([ScriptedEnv], backend="auto").backend == "process"


def test_an_env_that_cannot_be_made_is_no_reason_to_fall_back(make: Make) -> None:
    def factory_that_fails() -> Any:
        raise OSError("no such device")

    with pytest.raises(OSError, match="no such device"):
        make([factory_that_fails], backend="auto")


def test_a_keeper_can_be_started_again_afterwards(make: Make) -> None:
    start_supervisor()
    assert make([ScriptedEnv]).backend == "process"
