"""Workers that end by themselves or by force, the ones put in their place, and stacks of those that go on."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.engine import HOST, Call, Death, PendingRequest, PoolSettings, WorkerPool, open_pool
from parallel_envs.engine.child_setup import STACK_SIGNAL
from tests.engine.asking import (
    SOON_SECONDS,
    WAIT_SECONDS,
    ends_within,
    failure_of,
    host,
    reply_to,
    run,
    settings_of,
    settled,
    value_of,
)
from tests.engine.conftest import Open
from tests.engine.hosted import LAST_WORDS, Echo, Founder, Gated, Mortal, Raiser, Talker
from tests.gates import Gate, wait_at


def death_of(pool: WorkerPool, request: PendingRequest, worker: int = 0) -> Death:
    """How the worker ended, told within a second."""
    began = time.monotonic()
    reply = reply_to(pool, request, worker)
    assert time.monotonic() - began < SOON_SECONDS
    assert reply is not None
    assert reply.death is not None, reply
    return reply.death


def test_death_of_an_idle_worker_is_seen_by_a_wait_for_another(open_forked: Open, gate: Gate) -> None:
    pool = open_forked(2)
    request = pool.ring(host(pool, Gated, gate.path), 3, workers=(1,))
    os.kill(pool.pid(0), signal.SIGKILL)
    assert ends_within(pool.pid(0), SOON_SECONDS)
    pool.wait(request, 0.0)
    assert (death := pool.death(0)) is not None
    assert death.exitcode == -signal.SIGKILL
    gate.let_through()
    assert value_of(pool, request, worker=1) == 3


def test_a_request_to_a_dead_worker_is_answered_by_its_death(open_forked: Open) -> None:
    pool = open_forked(2)
    key = host(pool, Mortal)
    os.kill(pool.pid(0), signal.SIGKILL)
    unseen = [pool.ring(key, 1, workers=(0,)), pool.call(0, key, "echo", bytes(1 << 20))]
    death = death_of(pool, unseen[0])
    assert death.exitcode == -signal.SIGKILL
    assert death_of(pool, unseen[1]) == death == pool.death(0)
    for request in (
        pool.ring(key, 4),
        *pool.ring_each(key, [(0, 4, None)]),
        pool.send(dict.fromkeys((0, 1), Call(key, "echo", (4,)))),
    ):
        replies = settled(pool, request).replies
        assert replies[0].death == death
        assert 1 not in replies or replies[1].value == 4


def test_what_a_worker_had_said_before_it_ended_counts(open_forked: Open) -> None:
    pool = open_forked()
    key = host(pool, Mortal)
    before = [pool.ring(key, number) for number in range(20)] + [pool.call(0, key, "echo", 20)]
    last = pool.call(0, key, "end", "exit")
    assert death_of(pool, last).exitcode == 7
    assert [value_of(pool, request) for request in before] == [None, *range(1, 21)]


@pytest.mark.parametrize("with_heir", [False, True], ids=["alone", "its child holds its channel"])
def test_a_worker_that_ends_amid_a_reply_died(open_forked: Open, gate: Gate, tmp_path: Path, with_heir: bool) -> None:
    pool = open_forked()
    key = host(pool, Founder)
    ending = [pool.pid(0), *([value_of(pool, pool.call(0, key, "fork"))] if with_heir else [])]
    with Gate(tmp_path / "begun") as begun:
        settled(pool, pool.call(0, key, "break_off", begun.path, gate.path))
        request = pool.call(0, key, "much", 100)
        wait_at(begun.path)
    for _ in range(3):
        pool.pump(0.0)  # reads what there is
    gate.let_through()
    for pid in ending:
        assert ends_within(pid, SOON_SECONDS)
    assert death_of(pool, request).exitcode == -signal.SIGKILL


def test_a_death_tells_the_last_lines_that_were_written(open_forked: Open) -> None:
    many = [f"line {number}" for number in range(1000)]
    unfinished = [("write", 1, b"unfini"), ("write", 2, b"shed \xff")]
    outputs: list[tuple[list[Any], list[str], tuple[str, ...]]] = [
        ([("complain", "to stderr")], ["to stdout", "and goodbye"], ("to stderr", "to stdout", "and goodbye")),
        ([], many, tuple(many[-200:])),
        (unfinished, [], ("unfinished \N{REPLACEMENT CHARACTER}",)),
    ]
    pool = open_forked()
    for before, last_words, told in outputs:
        key = host(pool, Talker)
        for method, *arguments in before:
            settled(pool, pool.call(0, key, method, *arguments))
        assert death_of(pool, pool.call(0, key, "last_words", *last_words)).last_output == told
        pool.restart(0)


def test_a_worker_that_cannot_begin_says_why(open_processes: Open) -> None:
    pool = open_processes(affinity=[[100_000]])  # there is no such core
    assert "OSError" in "\n".join(death_of(pool, pool.ring(HOST)).last_output)


class Forker:
    """Forks, and comes back in both processes, as `ways[n]` says in the child. Tells how the child ended."""

    ways = ("return", "value", "exit", "raise")

    def ring(self, way: int) -> int | None:
        pid = os.fork()
        if pid:
            return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) + 1  # never 0: an answer that is heard
        match self.ways[way]:
            case "exit":
                sys.exit(3)
            case "raise":
                raise ValueError("in the child")
            case "value":
                return 77
        return None


class Delegating:
    """Has `multiprocessing` fork a process, which has a worker of its own, in itself. Tells how it ended."""

    def delegate(self) -> int | None:
        process = multiprocessing.get_context("fork").Process(target=ask_and_exit)
        process.start()
        process.join()
        return process.exitcode


def ask_and_exit() -> None:
    """Exits with 7 if an object of its own answers, and fails, as it does anywhere."""
    with contextlib.closing(open_pool(1, PoolSettings(backend="serial"))) as pool:
        key = host(pool, Raiser)
        failure_of(pool, pool.ring(key, 0))
        sys.exit(7)


def test_one_that_multiprocessing_forks_may_have_workers_of_its_own(open_forkserver: Open) -> None:
    pool = open_forkserver(1)
    key = host(pool, Delegating)
    assert value_of(pool, pool.call(0, key, "delegate")) == 7


def test_what_an_object_forked_ends_as_soon_as_it_comes_back(open_forkserver: Open) -> None:
    pool = open_forkserver(1)
    key = host(pool, Forker)
    for way, status in enumerate((1, 1, 3, 1)):
        answers: list[Any] = [value_of(pool, pool.ring(key, way)), value_of(pool, pool.call(0, key, "ring", way))]
        assert answers == [status + 1] * 2
    assert value_of(pool, pool.ring(key, 2)) == 4  # and there is still one worker, who does the answering


def test_what_a_killed_worker_owed_is_answered_by_its_death(open_forked: Open, gate: Gate) -> None:
    pool = open_forked(2)
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
