"""Workers that look for their next bell for a while before they go to sleep."""

from __future__ import annotations

import threading
import time

import psutil

from parallel_envs.engine import WorkerPool
from tests.engine.asking import host, settled, value_of
from tests.engine.conftest import Open
from tests.engine.hosted import Echo

LONG = 60.0
NUM_BELLS = 50


def times_asleep(pool: WorkerPool, key: int) -> int:
    """How often the worker goes to sleep during bells that follow one upon another, with a little time between."""
    process = psutil.Process(pool.pid(0))
    for number in range(3 + NUM_BELLS):
        if number == 3:  # before the first of them it may have waited for long
            before = process.num_ctx_switches().voluntary
        settled(pool, pool.ring(key))
        threading.Event().wait(0.002)
    return int(process.num_ctx_switches().voluntary - before)


def test_a_worker_that_stays_awake_does_not_sleep_between_bells_and_ends_at_once(open_processes: Open) -> None:
    pool = open_processes()
    key = host(pool, Echo)
    assert times_asleep(pool, key) > NUM_BELLS // 2
    pool.keep_awake(0, 1e-9)  # bells come later than that
    assert times_asleep(pool, key) > NUM_BELLS // 2
    pool.keep_awake(0, LONG)
    assert times_asleep(pool, key) < NUM_BELLS // 5
    pool.restart(0)
    assert times_asleep(pool, host(pool, Echo)) < NUM_BELLS // 5
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < LONG / 6


def test_a_worker_does_not_stay_awake_for_longer_than_it_was_told(open_processes: Open) -> None:
    pool = open_processes()
    key = host(pool, Echo)
    pool.keep_awake(0, 0.05)
    times_asleep(pool, key)
    process, deadline = psutil.Process(pool.pid(0)), time.monotonic() + 20.0
    while process.status() != psutil.STATUS_SLEEPING and time.monotonic() < deadline:
        threading.Event().wait(0.01)
    assert process.status() == psutil.STATUS_SLEEPING
    assert value_of(pool, pool.ring(key, 7)) == 7


def test_workers_of_this_process_are_awake_in_any_case(open_any: Open) -> None:
    pool = open_any()
    pool.keep_awake(0, LONG)
    assert value_of(pool, pool.ring(host(pool, Echo), 7)) == 7
