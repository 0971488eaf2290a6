"""Requests and replies between processes: how much fits, what cannot travel, what is dropped."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import pytest

from parallel_envs.engine import HOST, Call, Unpicklable, process
from parallel_envs.engine.messages import BELL
from tests.engine.asking import (
    failure_of,
    host,
    reply_to,
    run,
    settled,
    value_of,
)
from tests.engine.conftest import Open
from tests.engine.hosted import Echo, Founder, Gated, Runner, refuse
from tests.gates import Gate

MANY_BELLS = 10_000  # a pipe holds some 4,000

# ---- how much fits -------------------------------------------------------------------------------


def test_bells_beyond_what_a_pipe_holds_are_all_rung_in_order(open_processes: Open) -> None:
    pool = open_processes()
    key = host(pool, Echo)
    requests = [pool.ring(key, 0) for _ in range(MANY_BELLS)]
    last = pool.ring(key, 7)
    assert value_of(pool, last) == 7
    assert all(request.done for request in requests)
    assert value_of(pool, pool.call(0, key, "history")) == [0] * MANY_BELLS + [7]


def test_bells_rung_together_beyond_what_a_pipe_holds_are_all_rung_in_order(open_processes: Open, gate: Gate) -> None:
    pool = open_processes(2)
    gated, key = host(pool, Gated, gate.path), host(pool, Echo)
    pool.ring(gated, workers=(0,))
    numbers = [number % 5 for number in range(MANY_BELLS)]
    requests = pool.ring_each(key, [(0, number, None) for number in numbers])
    after = pool.ring_each(key, [(1, 8, None), (0, 9, None)])
    assert value_of(pool, after[0], worker=1) == 8
    gate.let_through()
    assert value_of(pool, after[1]) == 9
    assert [value_of(pool, request) for request in requests] == [number or None for number in numbers]
    assert value_of(pool, pool.call(0, key, "history")) == [*numbers, 9]


def test_bells_rung_together_are_one_write_to_each_worker(
    open_processes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = open_processes(2)
    key = host(pool, Echo)
    real, written = os.write, list[int]()

    def write(fd: int, data: bytes) -> int:
        written.append(len(data))
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        requests = pool.ring_each(key, [(worker, 1, None) for worker in (0, 1, 1, 0, 1)])
    assert sorted(written) == [2 * BELL.size, 3 * BELL.size]
    assert all(settled(pool, request).done for request in requests)


def test_bells_rung_together_to_a_worker_that_has_died_are_answered_by_its_death(open_processes: Open) -> None:
    pool = open_processes(2)
    key = host(pool, Echo)
    os.kill(pool.pid(0), signal.SIGKILL)
    requests = pool.ring_each(key, [(0, 3, None), (1, 4, None), (0, 5, None)])
    replies = [reply_to(pool, request, worker) for worker, request in zip((0, 1, 0), requests, strict=True)]
    assert [reply.value if reply and reply.death is None else "died" for reply in replies] == ["died", 4, "died"]


def test_who_looks_but_once_is_told_of_a_death_beside_an_answer(
    open_processes: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "_LONGEST_GLANCING", 60.0)
    pool = open_processes(2)
    key = host(pool, Echo)
    settled(pool, pool.ring(key))
    requests = [pool.ring(key, 1, (0,)), pool.ring(key, 1, (1,))]
    os.kill(pool.pid(1), signal.SIGKILL)
    threading.Event().wait(0.3)  # both have happened by then
    pool.pump(0.0)
    assert [request.done for request in requests] == [True, True]
    assert pool.death(1) is not None


def test_bells_that_wait_keep_their_order_with_messages_and_hold_up_no_other_worker(
    open_processes: Open, gate: Gate
) -> None:
    pool = open_processes(2)
    gated, key = host(pool, Gated, gate.path), host(pool, Echo)
    held_up = pool.ring(gated, 1, workers=(0,))
    requests = [pool.ring(key, 1, workers=(0,)) for _ in range(MANY_BELLS)]
    message = pool.call(0, key, "echo", "then this")
    after = pool.ring(key, 2, workers=(0,))
    assert value_of(pool, pool.ring(key, 5, workers=(1,)), worker=1) == 5
    gate.let_through()
    assert [value_of(pool, request) for request in (held_up, message, after)] == [1, "then this", 2]
    assert value_of(pool, pool.call(0, key, "history")) == [1] * MANY_BELLS + ["then this", 2]
    assert {value_of(pool, request) for request in requests} == {1}


def test_a_huge_message_to_a_busy_worker_does_not_block_the_asker(open_processes: Open, gate: Gate) -> None:
    pool = open_processes(2)
    gated, key = host(pool, Gated, gate.path), host(pool, Echo)
    held_up = pool.ring(gated, 1, workers=(0,))
    huge = pool.call(0, gated, "swallow", bytes(4 << 20))
    assert value_of(pool, pool.ring(key, 5, workers=(1,)), worker=1) == 5
    gate.let_through()
    assert value_of(pool, held_up) == 1
    assert value_of(pool, huge) == 4 << 20


def test_huge_messages_and_replies_of_all_workers_pass_each_other(open_processes: Open) -> None:
    pool = open_processes(3)
    founder, echo = host(pool, Founder), host(pool, Echo)
    replies = [pool.call_all(founder, "much", (2 << 20) + number) for number in range(3)]
    echoes = [pool.call(0, echo, "echo", bytes([number]) * (2 << 20)) for number in range(4)]
    for number, request in reversed(list(enumerate(replies))):
        sizes = {worker: len(reply.value) for worker, reply in settled(pool, request).replies.items()}
        assert sizes == dict.fromkeys(range(3), (2 << 20) + number)
    assert [value_of(pool, request)[:1] for request in echoes] == [b"\0", b"\1", b"\2", b"\3"]


def test_bytes_on_the_way_are_counted(open_forkserver: Open) -> None:
    pool = open_forkserver()
    key = host(pool, Echo)
    before = pool.meters(0).num_bytes
    value_of(pool, pool.call(0, key, "echo", bytes(100_000)))
    value_of(pool, pool.ring(key, 1))
    assert 200_000 <= pool.meters(0).num_bytes - before < 210_000


# ---- what cannot travel --------------------------------------------------------------------------


def test_an_argument_that_cannot_travel_is_named_before_anything_is_sent(open_processes: Open) -> None:
    pool = open_processes(2)
    key, lock = host(pool, Echo), threading.Lock()
    calls = {0: Call(key, "echo", (1,)), 1: Call(key, "echo", ({"held": lock},))}
    with pytest.raises(Unpicklable, match=r"args\[0\]\['held'\] \(a _thread\.lock\) cannot be pickled"):
        pool.send(calls)
    with pytest.raises(Unpicklable, match="variable 'lock'"):
        pool.call(0, HOST, "build", pool.new_key(), lambda: lock)
    assert [value_of(pool, pool.call(worker, key, "history"), worker) for worker in (0, 1)] == [[], []]


def test_a_value_that_cannot_travel_back_is_a_failure_that_names_it(open_processes: Open) -> None:
    pool = open_processes()
    request = pool.call(0, host(pool, Runner), "run", lambda: [{"made here": threading.Lock()}])
    failure = failure_of(pool, request)
    assert failure.type_name.endswith("Unpicklable")
    assert "value[0]['made here'] (a _thread.lock) cannot be pickled" in failure.message
    assert run(pool, os.getpid) == pool.pid(0)


def test_what_cannot_be_made_again_is_a_failure(open_processes: Open) -> None:
    class OneWay:
        def __reduce__(self) -> tuple[Any, ...]:
            return (refuse, (os.getpid(),))

    pool = open_processes()
    back = failure_of(pool, pool.call(0, host(pool, Runner), "run", OneWay))
    assert (back.type_name, back.message) == ("ValueError", f"made by {pool.pid(0)}")
    there = failure_of(pool, pool.call(0, host(pool, Echo), "echo", OneWay()))
    assert (there.type_name, there.message) == ("ValueError", f"made by {os.getpid()}")
    assert run(pool, os.getpid) == pool.pid(0)


def test_classes_and_functions_made_in_a_function_travel(open_processes: Open) -> None:
    class Doubling:
        def __init__(self, number: int) -> None:
            self.number = number

        def __eq__(self, other: object) -> bool:
            return type(self) is type(other) and vars(self) == vars(other)

        __hash__ = None  # type: ignore[assignment]

    pool = open_processes()
    assert run(pool, lambda number: Doubling(2 * number), 21) == Doubling(42)
