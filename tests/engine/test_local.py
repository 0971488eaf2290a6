"""What is special about workers in the caller's own process."""

from __future__ import annotations

import logging
import os
import threading
import weakref
from pathlib import Path

import pytest

from parallel_envs.engine import HOST, WorkerPool, open_pool
from tests.engine.asking import WAIT_SECONDS, failure_of, host, run, settings_of, settled, value_of
from tests.engine.hosted import ERRORS, Closing, Echo, FailingAtClose, Raiser


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


def test_an_error_while_closing_is_logged_and_keeps_nothing_open(
    local: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pool = opened(local, 2)
    for kind in (Closing, FailingAtClose, Closing):
        host(pool, kind, tmp_path / "notes")
    with caplog.at_level(logging.WARNING, logger="parallel_envs"):
        pool.close()
    assert (tmp_path / "notes").read_text() == "closed\n" * 6
    messages = list(caplog.messages)
    caplog.clear()  # the records hold the errors, and these the frames they were raised in
    assert messages == ["An object raised while it was closed."] * 2


def test_a_thread_that_hangs_does_not_hold_up_the_end() -> None:
    pool = opened("thread", 2)
    released = threading.Event()
    request = pool.call(0, host(pool, lambda: released), "wait")
    workers = [thread for thread in threading.enumerate() if thread.name.startswith("local worker")]
    pool.close(timeout=0.1)
    assert [thread.is_alive() for thread in workers] == [True, False]
    assert not request.done
    released.set()
    workers[0].join(WAIT_SECONDS)


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
