"""From what was asked for to a pool of the right kind."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest

from parallel_envs.choices import Backend
from parallel_envs.engine import BACKENDS, START_METHODS, PoolSettings, local, open_pool, process
from parallel_envs.errors import WorkerStartError
from tests.engine.asking import host, run, value_of
from tests.engine.hosted import Echo


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backend": "processes"}, r"backend='processes' is unknown\. Choose one of 'process'"),
        ({"context": "forkserve"}, r"context='forkserve' is not a start method\. Choose one of 'forkserver'"),
        ({"threads": 0}, r"threads=0 is not a number of threads\. Give at least 1, or None"),
        ({"threads": -2}, r"threads=-2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PoolSettings(**settings)


def test_no_cores_at_all_are_refused() -> None:
    assert _raised_without_cores() is ValueError


def _raised_without_cores() -> type[Exception] | None:
    try:
        open_pool(1, PoolSettings(affinity=[])).close()
    except Exception as error:  # noqa: BLE001  # the fact is which one it is
        return type(error)
    return None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pool_tells_its_backend(backend: Backend) -> None:
    pool = open_pool(1, PoolSettings(backend=backend))
    assert pool.backend == ("process" if backend == "auto" else backend)
    assert value_of(pool, pool.ring(host(pool, Echo), 7)) == 7
    pool.close()


def test_processes_are_the_default() -> None:
    pool = open_pool(1)
    assert run(pool, os.getpid) != os.getpid()
    pool.close()


@pytest.mark.parametrize(("platform", "method"), [("linux", "forkserver"), ("darwin", "spawn"), ("win32", "spawn")])
def test_the_start_method_is_the_quickest_that_is_safe(
    monkeypatch: pytest.MonkeyPatch, platform: str, method: str
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert PoolSettings().start_method == method
    assert [PoolSettings(context=one).start_method for one in START_METHODS] == list(START_METHODS)


def test_what_is_preloaded_that_cannot_be_imported_is_no_obstacle() -> None:
    pool = open_pool(1, PoolSettings(preload=("no_such_module_anywhere",)))
    assert run(pool, os.getpid) == pool.pid(0)
    pool.close()


# ---- falling back --------------------------------------------------------------------------------


def refuse(*arguments: Any) -> Any:
    raise WorkerStartError("nothing can be started here")


def test_where_no_process_can_be_started_threads_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ProcessPool", refuse)
    with pytest.warns(RuntimeWarning, match=r"'process' could not be started \(nothing can .*in threads instead"):
        pool = open_pool(2, PoolSettings(backend="auto"))
    assert pool.backend == "thread"
    assert value_of(pool, pool.ring(host(pool, Echo), 7)) == 7
    pool.close()


def test_where_no_thread_can_be_started_the_caller_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ProcessPool", refuse)
    monkeypatch.setattr(local, "ThreadPool", refuse)
    with pytest.warns(RuntimeWarning) as warned:
        pool = open_pool(2, PoolSettings(backend="auto"))
    assert pool.backend == "serial"
    assert [("'process'" in str(one.message), "'thread'" in str(one.message)) for one in warned] == [
        (True, False),
        (False, True),
    ]
    pool.close()


def test_processes_that_were_asked_for_are_not_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "ProcessPool", refuse)
    with pytest.raises(WorkerStartError, match="nothing can be started"):
        open_pool(1, PoolSettings(backend="process"))
