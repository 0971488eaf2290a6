"""The contract of `WorkerPool`, the same for every kind of worker, and from settings to a pool of the right kind."""

from __future__ import annotations

import gc
import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import Backend
from parallel_envs.engine import (
    BACKENDS,
    HOST,
    START_METHODS,
    Call,
    PendingRequest,
    PoolSettings,
    WorkerPool,
    open_pool,
)
from parallel_envs.errors import ClosedError
from tests.engine.asking import WAIT_SECONDS, failure_of, host, reply_to, run, settings_of, settled, value_of
from tests.engine.conftest import Open
from tests.engine.hosted import ERRORS, TOLD, Closing, Echo, Gated, Raiser, Runner
from tests.gates import Gate


def test_a_message_is_answered_with_its_value(open_any: Open) -> None:
    pool = open_any()
    key = host(pool, Echo)
    for value in ["text", {"a": [1, (2.5, None)]}, b"\0", math.inf]:
        assert value_of(pool, pool.call(0, key, "echo", value)) == value
    assert reply_to(pool, pool.call(0, key, "echo", None)) is None  # there is nothing to say
    assert value_of(pool, pool.call(0, key, "arguments", 1, "two", three=3)) == ((1, "two"), {"three": 3})
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    back = value_of(pool, pool.call(0, key, "echo", array))
    assert (back.dtype, back.tolist()) == (array.dtype, array.tolist())


def test_a_bell_is_answered_with_its_payload(open_any: Open) -> None:
    pool = open_any()
    key = host(pool, Echo)
    assert value_of(pool, pool.ring(key, 7)) == 7
    assert value_of(pool, pool.ring(key, 2**32 - 1)) == 2**32 - 1
    request = pool.ring(key, 0, label="mine")
    assert repr(request) == f"PendingRequest({request.number}, waiting for [0])"
    assert settled(pool, request).replies == {}  # nothing to say
    assert repr(request) == f"PendingRequest({request.number}, done)"
    assert request.label == "mine"


def test_bells_and_messages_are_answered_in_the_order_of_asking(open_any: Open) -> None:
    pool = open_any()
    key = host(pool, Echo)
    asked = [pool.ring(key, 1), pool.call(0, key, "echo", "a"), pool.ring(key, 0), pool.call(0, key, "echo", "b")]
    history = pool.call(0, key, "history")
    assert [value_of(pool, request) for request in asked] == [1, "a", None, "b"]
    assert value_of(pool, history) == [1, "a", 0, "b"]


def test_each_worker_is_asked_what_is_its_own(open_any: Open) -> None:
    pool = open_any(3)
    key = host(pool, Echo)
    rung = settled(pool, pool.ring(key, 5, workers=(0, 2)))
    assert {worker: reply.value for worker, reply in rung.replies.items()} == {0: 5, 2: 5}
    sent = settled(pool, pool.send({0: Call(key, "echo", ("zero",)), 2: Call(key, "echo", ("two",))}))
    assert {worker: reply.value for worker, reply in sent.replies.items()} == {0: "zero", 2: "two"}
    histories = settled(pool, pool.call_all(key, "history")).replies
    assert [histories[worker].value for worker in range(3)] == [[5, "zero"], [], [5, "two"]]


def test_bells_that_travel_together_are_requests_of_their_own(open_any: Open) -> None:
    pool = open_any(3)
    key = host(pool, Echo)
    requests = pool.ring_each(key, [(0, 4, "a"), (2, 5, "b"), (0, 0, "c"), (0, 6, "d")])
    assert [request.label for request in requests] == ["a", "b", "c", "d"]
    values = [value_of(pool, request, worker) for worker, request in zip((0, 2, 0, 0), requests, strict=True)]
    assert values == [4, 5, None, 6]
    histories = settled(pool, pool.call_all(key, "history")).replies
    assert [histories[worker].value for worker in range(3)] == [[4, 0, 6], [], [5]]
    assert pool.ring_each(key, []) == []


@pytest.mark.parametrize("by_bell", [True, False])
def test_an_error_comes_back_as_text(open_parallel: Open, by_bell: bool) -> None:
    pool = open_parallel()
    raiser, echo = host(pool, Raiser), host(pool, Echo)
    for number, name in enumerate(ERRORS):
        request = pool.ring(raiser, number) if by_bell else pool.call(0, raiser, "fail", name)
        failure = failure_of(pool, request)
        assert (failure.type_name, failure.message) == TOLD[name]
        assert "hosted.py" in failure.traceback
        assert value_of(pool, pool.ring(echo, 7)) == 7


def test_an_error_is_one_of_its_own_worker_and_request(open_any: Open) -> None:
    pool = open_any(2)
    raiser, echo = host(pool, Raiser), host(pool, Echo)
    both = settled(pool, pool.send({0: Call(raiser, "fail", ("plain",)), 1: Call(echo, "echo", (1,))}))
    assert both.replies[0].failure is not None
    assert both.replies[1].value == 1
    bells = [failure_of(pool, request) for request in pool.ring_each(raiser, [(0, 0, None), (0, 1, None)])]
    assert [failure.type_name for failure in bells] == [TOLD[name][0] for name in list(ERRORS)[:2]]
    for request, kind, text in (
        (pool.call(0, HOST, "build", pool.new_key(), Raiser, "plain"), *TOLD["plain"]),
        (pool.call(0, echo, "eccho", 1), "AttributeError", "eccho"),
        (pool.call(0, 99, "echo"), "KeyError", "99"),
        (pool.ring(99, workers=(0,)), "KeyError", "99"),
    ):
        failure = failure_of(pool, request)
        assert failure.type_name == kind
        assert text in failure.message
    assert value_of(pool, pool.ring(echo, 7)) == 7
    key = pool.new_key()
    assert failure_of(pool, pool.call(0, HOST, "build", key, Raiser, "plain")).type_name == TOLD["plain"][0]
    assert failure_of(pool, pool.ring(key, 1, workers=(0,))).type_name == "KeyError"  # nothing is left under its key


@pytest.mark.parametrize("seconds", [0.0, 0.05])
def test_a_wait_whose_time_is_up_may_be_repeated(open_parallel: Open, gate: Gate, seconds: float) -> None:
    pool = open_parallel()
    request = pool.ring(host(pool, Gated, gate.path), 5)
    assert not pool.wait(request, seconds)
    assert not request.done
    gate.let_through()
    assert value_of(pool, request) == 5


def test_waiting_for_one_request_settles_others_too(open_any: Open) -> None:
    pool = open_any()
    key = host(pool, Echo)
    first, second = pool.ring(key, 1), pool.ring(key, 2)
    assert value_of(pool, second) == 2
    assert first.done
    assert first.replies[0].value == 1


@pytest.mark.parametrize("num_bytes", [1, 2 << 20])
def test_a_late_reply_is_dropped(open_parallel: Open, gate: Gate, num_bytes: int) -> None:
    pool = open_parallel()
    gated, echo = host(pool, Gated, gate.path), host(pool, Echo)
    held_up = pool.ring(gated, 1)
    late = [pool.ring(gated, 2), pool.call(0, echo, "echo", bytes(num_bytes))]
    assert not pool.wait(late[0], 0.0)
    for request in late:
        pool.forget(request)
        assert request.done
    asked_later = [pool.ring(gated, 3), pool.call(0, echo, "echo", "mine")]
    gate.let_through(3)
    assert [value_of(pool, request) for request in asked_later] == [3, "mine"]
    assert value_of(pool, held_up) == 1
    assert [request.replies for request in late] == [{}, {}]


def test_pump_tells_which_requests_got_done(open_any: Open) -> None:
    pool = open_any(2)
    key = host(pool, Echo)
    assert pool.pump(0.0) == pool.pump(0.01) == []  # it comes back when its time is up
    asked = {pool.ring(key, number, workers=(worker,), label=worker) for number in (1, 2) for worker in (0, 1)}
    done: set[PendingRequest] = set()
    while done != asked:
        done.update(pool.pump(WAIT_SECONDS))
    assert all(request.done for request in asked)


def test_a_request_to_no_worker_is_done_at_once_and_not_kept(open_any: Open) -> None:
    pool = open_any()
    key = host(pool, Echo)
    assert pool.wait(pool.send({}), 0.0)
    for _ in range(10):
        assert pool.ring(key, workers=()).done
    gc.collect()
    assert not any(isinstance(held, PendingRequest) for held in gc.get_objects())


def test_an_object_is_closed_when_it_is_dropped_or_replaced(open_any: Open, tmp_path: Path) -> None:
    pool = open_any()
    key = host(pool, Closing, tmp_path / "notes")
    settled(pool, pool.call(0, HOST, "drop", key))
    assert (tmp_path / "notes").read_text() == "closed\n"
    assert failure_of(pool, pool.ring(key)).type_name == "KeyError"
    echo = host(pool, Echo)
    settled(pool, pool.ring(echo, 1))
    settled(pool, pool.call(0, HOST, "build", echo, Echo))  # in the place of the one before it
    assert value_of(pool, pool.call(0, echo, "history")) == []
    settled(pool, pool.call(0, HOST, "drop", echo))  # has nothing to close
    assert len({*(pool.new_key() for _ in range(100)), key, echo, HOST}) == 103


def test_meters_count_what_a_worker_was_asked(open_any: Open) -> None:
    pool = open_any(2)
    key = host(pool, Echo)
    settled(pool, pool.ring(key))
    before = pool.meters(0)
    for _ in range(5):
        settled(pool, pool.ring(key))
    settled(pool, pool.ring(key, workers=(0,)))
    settled(pool, pool.ring(key, workers=(1,)))
    settled(pool, pool.call(0, key, "echo", "a"))
    settled(pool, pool.ring(key))  # what was asked before it is in the meters by now
    after = pool.meters(0)
    assert after.requests - before.requests == 8
    assert after.bell_seconds > before.bell_seconds
    assert after.message_seconds > before.message_seconds
    assert after.wait_seconds > before.wait_seconds
    pool.restart(0)
    assert pool.meters(0).requests >= after.requests  # a worker in the place of another counts on


def test_work_is_no_idleness_and_idleness_no_work(open_any: Open) -> None:
    pool = open_any(2)
    key = host(pool, Runner)
    settled(pool, pool.call(0, key, "run", time.sleep, 0.2))
    run(pool, os.getpid)
    working, waiting = pool.meters(0), pool.meters(1)
    assert working.message_seconds >= 0.2
    assert working.wait_seconds >= 0.1
    assert waiting.idle_seconds + waiting.message_seconds + waiting.bell_seconds >= 0.2
    assert waiting.message_seconds + waiting.bell_seconds < 0.1


def test_a_closed_pool_says_so(open_any: Open) -> None:
    pool = open_any()
    key = host(pool, Echo)
    answered = settled(pool, pool.ring(key, 3))
    pool.close()
    assert pool.closed
    asks: list[Callable[[], PendingRequest]] = [
        lambda: pool.ring(key),
        lambda: pool.call(0, key, "echo"),
        lambda: pool.send({}),
    ]
    for ask in asks:
        with pytest.raises(ClosedError, match=r"closed\. Open a new one"):
            ask()
    assert pool.wait(answered)
    pool.close()
    pool.close(timeout=0.0)


def test_waiting_for_an_open_request_of_a_closed_pool_says_so(open_any: Open, gate: Gate) -> None:
    pool = open_any()
    request = pool.ring(host(pool, Gated, gate.path))
    pool.close(timeout=0.2)
    with pytest.raises(ClosedError):
        pool.wait(request, timeout=0.1)


def test_no_worker_is_too_few(open_any: Open) -> None:
    with pytest.raises(ValueError, match="pool of 0 workers"):
        open_any(0)


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
