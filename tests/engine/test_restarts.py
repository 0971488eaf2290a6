"""One worker ended by force, put in the place of another, or asked where it is; its siblings go on."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from parallel_envs.engine import HOST, open_pool
from parallel_envs.engine.child_setup import STACK_SIGNAL
from tests.engine.asking import (
    WAIT_SECONDS,
    ends_within,
    host,
    reply_to,
    run,
    settings_of,
    settled,
    value_of,
)
from tests.engine.conftest import Open
from tests.engine.hosted import LAST_WORDS, Echo, Gated, Mortal
from tests.gates import Gate


def test_what_a_killed_worker_owed_is_answered_by_its_death(open_processes: Open, gate: Gate) -> None:
    pool = open_processes(2)
    key = host(pool, Gated, gate.path)
    owed = [pool.ring(key, number) for number in range(3)]
    pool.kill(0)
    gate.let_through(3)
    for request in owed:
        replies = settled(pool, request).replies
        assert replies[0].death is not None
        assert replies[0].death.exitcode == -signal.SIGKILL
    assert [request.replies[1].value for request in owed] == [0, 1, 2]
    assert pool.death(0) == owed[0].replies[0].death


def test_what_waited_for_a_killed_worker_does_not_reach_the_next(open_forkserver: Open, gate: Gate) -> None:
    pool = open_forkserver()
    gated = host(pool, Gated, gate.path)
    waiting = [pool.ring(gated) for _ in range(10_000)]
    huge = pool.call(0, gated, "swallow", bytes(4 << 20))
    pool.restart(0)
    assert reply_to(pool, waiting[-1]) is not None
    assert (reply := reply_to(pool, huge)) is not None
    assert reply.death is not None
    key = host(pool, Echo)
    assert value_of(pool, pool.ring(key, 7)) == 7
    assert value_of(pool, pool.call(0, key, "history")) == [7]


@pytest.mark.parametrize("count", [10, 100])
def test_answers_of_a_killed_worker_are_not_taken_for_those_of_the_next(open_forkserver: Open, count: int) -> None:
    pool = open_forkserver()
    key = host(pool, Mortal)
    for _ in range(count):
        pool.ring(key, 99)
    pool.ring(key, LAST_WORDS)
    assert ends_within(pool.pid(0), WAIT_SECONDS)
    pool.restart(0)
    settled(pool, pool.call(0, HOST, "build", key, Echo))
    assert [value_of(pool, pool.ring(key, number)) for number in (1, 2, 3)] == [1, 2, 3]


def test_at_most_one_request_for_a_stack_waits_for_a_worker(open_forkserver: Open) -> None:
    pool = open_forkserver()  # it has no other thread that could take the signal
    run(pool, signal.pthread_sigmask, signal.SIG_BLOCK, {STACK_SIGNAL})
    for _ in range(300):
        assert "no stack" in pool.stack(0, timeout=0.0)
    run(pool, signal.pthread_sigmask, signal.SIG_UNBLOCK, {STACK_SIGNAL})
    assert pool.stack(0, timeout=WAIT_SECONDS).count("Current thread") == 1


def test_a_stack_longer_than_a_pipe_holds_up_no_worker(open_forkserver: Open) -> None:
    def start_deep_threads() -> None:
        def sink(depth: int) -> None:
            if depth:
                sink(depth - 1)
            else:
                threading.Event().wait()

        for _ in range(40):
            threading.Thread(target=sink, args=(80,), daemon=True).start()

    pool = open_forkserver()
    run(pool, start_deep_threads)
    for _ in range(10):
        pool.stack(0, timeout=0.0)  # nobody reads what the worker writes now
        assert run(pool, os.getpid) == pool.pid(0)
    assert "in sink" in pool.stack(0, timeout=WAIT_SECONDS)


def test_asking_for_a_stack_disturbs_nothing(open_parallel: Open) -> None:
    pool = open_parallel()
    key = host(pool, Echo)
    for number in range(1, 20):
        request = pool.ring(key, number)
        pool.stack(0)
        assert value_of(pool, request) == number


def test_asking_for_the_stack_of_a_worker_that_is_still_starting_does_not_end_it() -> None:
    pool = open_pool(1, settings_of("spawn"))
    pool.stack(0, timeout=0.0)
    assert reply_to(pool, pool.call(0, HOST, "build", pool.new_key(), Echo)) is None
    pool.close()


def test_keeping_a_worker_on_a_core_that_is_not_there_is_no_error(open_any: Open) -> None:
    pool = open_any()
    pool.keep_on(0, [100_000])
    assert value_of(pool, pool.ring(host(pool, Echo), 7)) == 7
