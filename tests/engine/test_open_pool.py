"""From what was asked for to a pool of the right kind."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from typing import Any

import pytest

from parallel_envs.choices import Backend
from parallel_envs.engine import BACKENDS, HOST, START_METHODS, PoolSettings, WorkerPool, open_pool
from tests.engine.asking import failure_of, host, run, settings_of, settled, value_of
from tests.engine.hosted import ERRORS, Echo, Raiser


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"backend": "processes"}, r"backend='processes' is unknown\. Choose one of 'process'"),
        ({"context": "forkserve"}, r"context='forkserve' is not a start method\. Choose one of 'forkserver'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        open_pool(1, PoolSettings(**settings))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_pool_tells_its_backend(backend: Backend) -> None:
    pool = open_pool(1, PoolSettings(backend=backend))
    assert pool.backend == ("process" if backend == "auto" else backend)
    assert value_of(pool, pool.ring(host(pool, Echo), 7)) == 7
    pool.close()


@pytest.mark.parametrize(("platform", "method"), [("linux", "forkserver"), ("darwin", "spawn"), ("win32", "spawn")])
def test_start_method_is_the_quickest_safe_one(monkeypatch: pytest.MonkeyPatch, platform: str, method: str) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert PoolSettings().start_method == method
    assert [PoolSettings(context=one).start_method for one in START_METHODS] == list(START_METHODS)


def test_processes_are_the_default_and_what_cannot_be_preloaded_is_no_obstacle() -> None:
    pool = open_pool(1, PoolSettings(preload=("no_such_module_anywhere",)))
    assert run(pool, os.getpid) == pool.pid(0) != os.getpid()
    pool.close()


@pytest.fixture(params=["serial", "thread"])
def local(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def opened(backend: str, num_workers: int = 1) -> WorkerPool:
    return open_pool(num_workers, settings_of(backend, name="local worker"))


def test_a_thread_worker_has_a_thread_of_its_name() -> None:
    pool = opened("thread", 2)
    names = [run(pool, lambda: threading.current_thread().name, worker=worker) for worker in (0, 1)]
    assert names == ["local worker 0", "local worker 1"]
    pool.close()


def test_serial_works_in_the_callers_thread_in_the_order_of_asking_when_it_is_waited_for() -> None:
    pool = opened("serial", 3)
    assert run(pool, threading.current_thread) is threading.current_thread()
    heard: list[int] = []
    key = host(pool, lambda: heard)
    requests = [pool.call(worker, key, "append", number) for number, worker in enumerate((2, 0, 1, 0))]
    assert heard == []
    settled(pool, requests[-1])
    assert heard == [0, 1, 2, 3]
    pool.close()


def test_values_and_errors_travel_by_reference(local: str) -> None:
    pool = opened(local, 2)
    value = [threading.Lock()]  # and nothing needs to be picklable
    assert value_of(pool, pool.call(0, host(pool, Echo), "echo", value)) is value
    failure = failure_of(pool, pool.call(0, host(pool, Raiser), "fail", "unpicklable"))
    assert type(failure.cause) is type(ERRORS["unpicklable"]())
    assert [pool.pid(0), pool.pid(1)] == [os.getpid()] * 2
    pool.close()


@pytest.mark.parametrize("name", [name for name in ERRORS if name != "interrupt"])
def test_an_error_in_serial_is_a_failure_like_any_other(name: str) -> None:
    pool = opened("serial")
    failure = failure_of(pool, pool.call(0, host(pool, Raiser), "fail", name))
    assert type(failure.cause) is type(ERRORS[name]())
    pool.close()


@pytest.mark.parametrize("by_bell", [True, False])
def test_ctrl_c_in_the_callers_own_thread_is_the_callers(by_bell: bool) -> None:
    pool = opened("serial")
    key = host(pool, Raiser)
    request = pool.ring(key, list(ERRORS).index("interrupt")) if by_bell else pool.call(0, key, "fail", "interrupt")
    with pytest.raises(KeyboardInterrupt, match="struck here"):
        pool.wait(request)
    assert value_of(pool, pool.ring(host(pool, Echo), 3)) == 3
    pool.close()


def test_a_hosted_object_is_gone_once_it_is_dropped(local: str) -> None:
    pool = opened(local)
    made: list[weakref.ref[Echo]] = []

    def make() -> Echo:
        made.append(weakref.ref(echo := Echo()))
        return echo

    key = host(pool, make)
    settled(pool, pool.call(0, HOST, "drop", key))
    settled(pool, pool.ring(HOST))  # the worker has let go of the request before
    assert made[0]() is None
    pool.close()
