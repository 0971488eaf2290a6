"""Ways for a worker to end, at every moment, by every start method: seen at once, told with its exit code."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.engine import HOST, Call, Death, PendingRequest, WorkerPool
from tests.engine.asking import SOON_SECONDS, WAIT_SECONDS, ends_within, host, reply_to, settled, value_of
from tests.engine.conftest import Open
from tests.engine.hosted import ENDS, LAST_WORDS, Founder, Gated, Mortal, Talker
from tests.gates import Gate, wait_at

Ask = Callable[[WorkerPool, int, str], PendingRequest]


def in_its_constructor(pool: WorkerPool, key: int, way: str) -> PendingRequest:
    return pool.call(0, HOST, "build", pool.new_key(), Mortal, way)


def in_a_message(pool: WorkerPool, key: int, way: str) -> PendingRequest:
    return pool.call(0, key, "end", way)


def at_a_bell(pool: WorkerPool, key: int, way: str) -> PendingRequest:
    return pool.ring(key, LAST_WORDS + list(ENDS).index(way), workers=(0,))


def death_of(pool: WorkerPool, request: PendingRequest, worker: int = 0) -> Death:
    """How the worker ended, told within a second."""
    began = time.monotonic()
    reply = reply_to(pool, request, worker)
    assert time.monotonic() - began < SOON_SECONDS
    assert reply is not None
    assert reply.death is not None, reply
    return reply.death


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("ask", [in_its_constructor, in_a_message, at_a_bell])
@pytest.mark.parametrize("way", ENDS)
def test_a_death_is_the_answer_to_what_was_asked(open_processes: Open, ask: Ask, way: str) -> None:
    pool = open_processes(2)
    key = host(pool, Mortal)
    death = death_of(pool, ask(pool, key, way))
    assert (death.worker, death.pid, death.exitcode) == (0, pool.pid(0), ENDS[way][1])
    assert pool.death(0) == death
    assert pool.death(1) is None
    assert value_of(pool, pool.ring(key, 5, workers=(1,)), worker=1) == 5


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSEGV, signal.SIGTERM])
def test_a_worker_killed_while_it_works_is_seen_by_whoever_waits(
    open_processes: Open, gate: Gate, number: signal.Signals
) -> None:
    pool = open_processes()
    request = pool.ring(host(pool, Gated, gate.path))
    assert not pool.wait(request, 0.0)
    os.kill(pool.pid(0), number)
    assert death_of(pool, request).exitcode == -number


def test_a_worker_killed_while_it_is_idle_is_seen_by_whoever_waits_for_another(
    open_processes: Open, gate: Gate
) -> None:
    pool = open_processes(2)
    request = pool.ring(host(pool, Gated, gate.path), 3, workers=(1,))
    os.kill(pool.pid(0), signal.SIGKILL)
    assert ends_within(pool.pid(0), SOON_SECONDS)
    pool.wait(request, 0.0)
    assert (death := pool.death(0)) is not None
    assert death.exitcode == -signal.SIGKILL
    gate.let_through()
    assert value_of(pool, request, worker=1) == 3


def test_a_request_to_a_dead_worker_is_answered_by_its_death(open_processes: Open) -> None:
    pool = open_processes(2)
    key = host(pool, Mortal)
    os.kill(pool.pid(0), signal.SIGKILL)
    unseen = [pool.ring(key, 1, workers=(0,)), pool.call(0, key, "echo", bytes(1 << 20))]
    death = death_of(pool, unseen[0])
    assert death.exitcode == -signal.SIGKILL
    assert death_of(pool, unseen[1]) == death == pool.death(0)
    for request in (pool.ring(key, 4), pool.send(dict.fromkeys((0, 1), Call(key, "echo", (4,))))):
        replies = settled(pool, request).replies
        assert replies[0].death == death
        assert replies[1].value == 4


def test_what_a_worker_had_said_before_it_ended_counts(open_processes: Open) -> None:
    pool = open_processes()
    key = host(pool, Mortal)
    before = [pool.ring(key, number) for number in range(20)] + [pool.call(0, key, "echo", 20)]
    last = pool.call(0, key, "end", "exit")
    assert death_of(pool, last).exitcode == 7
    assert [value_of(pool, request) for request in before] == [None, *range(1, 21)]


def test_much_that_a_worker_had_said_before_it_ended_counts(open_forkserver: Open) -> None:
    pool = open_forkserver()
    key = host(pool, Mortal)
    before = [pool.ring(key, 0) for _ in range(500)]
    pool.ring(key, LAST_WORDS)
    assert ends_within(pool.pid(0), WAIT_SECONDS)
    assert all(reply_to(pool, request) is None for request in before)


@pytest.mark.parametrize("with_heir", [False, True], ids=["alone", "its child holds its channel"])
def test_a_worker_that_ends_amid_its_reply_has_died(
    open_processes: Open, gate: Gate, tmp_path: Path, with_heir: bool
) -> None:
    pool = open_processes()
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


# ---- last output ---------------------------------------------------------------------------------


def test_a_death_tells_the_last_lines_that_were_written(open_processes: Open) -> None:
    many = [f"line {number}" for number in range(1000)]
    unfinished = [("write", 1, b"unfini"), ("write", 2, b"shed \xff")]
    outputs: list[tuple[list[Any], list[str], tuple[str, ...]]] = [
        ([("complain", "to stderr")], ["to stdout", "and goodbye"], ("to stderr", "to stdout", "and goodbye")),
        ([], many, tuple(many[-200:])),
        (unfinished, [], ("unfinished \N{REPLACEMENT CHARACTER}",)),
    ]
    pool = open_processes()
    for before, last_words, told in outputs:
        key = host(pool, Talker)
        for method, *arguments in before:
            settled(pool, pool.call(0, key, method, *arguments))
        assert death_of(pool, pool.call(0, key, "last_words", *last_words)).last_output == told
        pool.restart(0)


def test_a_crash_tells_where_it_happened(open_processes: Open) -> None:
    pool = open_processes()
    for ask in (("end", "SIGSEGV"), ("end_deep_inside", 40, "SIGSEGV")):
        death = death_of(pool, pool.call(0, host(pool, Mortal), *ask))
        assert "Fatal Python error: Segmentation fault" in death.last_output
        assert any("hosted.py" in line for line in death.last_output)
        pool.restart(0)


# ---- workers that cannot begin -------------------------------------------------------------------


def test_a_worker_that_cannot_begin_says_why(open_processes: Open) -> None:
    pool = open_processes(affinity=[[100_000]])  # there is no such core
    assert "OSError" in "\n".join(death_of(pool, pool.ring(HOST)).last_output)
