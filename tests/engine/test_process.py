"""Requests and replies between processes: how much fits, what cannot travel, what is dropped."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from parallel_envs.engine import HOST, Call, Unpicklable
from tests.engine.asking import (
    failure_of,
    host,
    run,
    settled,
    value_of,
)
from tests.engine.conftest import Open
from tests.engine.hosted import Echo, Founder, Gated, Runner, refuse
from tests.gates import Gate

MANY_BELLS = 10_000  # a pipe holds some 4,000


def test_bells_rung_together_beyond_what_a_pipe_holds_are_all_rung_in_order(open_forkserver: Open, gate: Gate) -> None:
    pool = open_forkserver(2)
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


def test_bells_that_wait_keep_their_order_and_hold_up_no_other_worker(open_forkserver: Open, gate: Gate) -> None:
    pool = open_forkserver(2)
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


def test_a_huge_message_to_a_busy_worker_does_not_block_the_asker(open_forkserver: Open, gate: Gate) -> None:
    pool = open_forkserver(2)
    gated, key = host(pool, Gated, gate.path), host(pool, Echo)
    held_up = pool.ring(gated, 1, workers=(0,))
    huge = pool.call(0, gated, "swallow", bytes(4 << 20))
    assert value_of(pool, pool.ring(key, 5, workers=(1,)), worker=1) == 5
    gate.let_through()
    assert value_of(pool, held_up) == 1
    assert value_of(pool, huge) == 4 << 20


def test_huge_messages_and_replies_of_all_workers_pass_each_other(open_forked: Open) -> None:
    pool = open_forked(3)
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


def test_an_argument_that_cannot_travel_is_named_before_anything_is_sent(open_forkserver: Open) -> None:
    pool = open_forkserver(2)
    key, lock = host(pool, Echo), threading.Lock()
    calls = {0: Call(key, "echo", (1,)), 1: Call(key, "echo", ({"held": lock},))}
    with pytest.raises(Unpicklable, match=r"args\[0\]\['held'\] \(a _thread\.lock\) cannot be pickled"):
        pool.send(calls)
    with pytest.raises(Unpicklable, match="variable 'lock'"):
        pool.call(0, HOST, "build", pool.new_key(), lambda: lock)
    assert [value_of(pool, pool.call(worker, key, "history"), worker) for worker in (0, 1)] == [[], []]


def test_a_value_that_cannot_travel_back_is_a_failure_that_names_it(open_forkserver: Open) -> None:
    pool = open_forkserver()
    request = pool.call(0, host(pool, Runner), "run", lambda: [{"made here": threading.Lock()}])
    failure = failure_of(pool, request)
    assert failure.type_name.endswith("Unpicklable")
    assert "value[0]['made here'] (a _thread.lock) cannot be pickled" in failure.message
    assert run(pool, os.getpid) == pool.pid(0)


def test_what_cannot_be_made_again_is_a_failure(open_forkserver: Open) -> None:
    class OneWay:
        def __reduce__(self) -> tuple[Any, ...]:
            return (refuse, (os.getpid(),))

    pool = open_forkserver()
    back = failure_of(pool, pool.call(0, host(pool, Runner), "run", OneWay))
    assert (back.type_name, back.message) == ("ValueError", f"made by {pool.pid(0)}")
    there = failure_of(pool, pool.call(0, host(pool, Echo), "echo", OneWay()))
    assert (there.type_name, there.message) == ("ValueError", f"made by {os.getpid()}")
    assert run(pool, os.getpid) == pool.pid(0)
