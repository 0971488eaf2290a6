"""Which workers are kept on a core: many that do short pieces of work, and no others."""

from __future__ import annotations

import os
import time

import pytest

from parallel_envs.engine import Meters, cores_here, pin_workers
from parallel_envs.engine.worker_process import SHORT_SECONDS, cores_are_shared, plan_cores, wake_orders
from tests.engine.asking import host, kill, run, settled
from tests.engine.conftest import Open
from tests.engine.hosted import Echo

CORES = cores_here()


@pytest.mark.parametrize(
    ("num_workers", "seconds", "requests", "cores", "expected"),
    [
        pytest.param(4, SHORT_SECONDS / 2, 10, [3, 7], [3, 7, 3, 7], id="short work"),
        pytest.param(6, 0.0, 10, [3, 7], [3, 7, 3, 7, 3, 7], id="three for each core"),
        pytest.param(4, SHORT_SECONDS * 2, 10, [0, 1], None, id="long work"),
        pytest.param(2, 0.0, 10, [0, 1], None, id="a core for each"),
        pytest.param(1, 0.0, 10, [0, 1], None, id="fewer than cores"),
        pytest.param(5, 0.0, 10, [0, 1], None, id="not evenly"),
        pytest.param(4, 0.0, 0, [0, 1], None, id="nothing known yet"),
        pytest.param(4, 0.0, 10, [], None, id="cores unknown"),
    ],
)
def test_many_workers_with_short_work_are_given_cores_in_turn_and_others_are_left_alone(
    num_workers: int, seconds: float, requests: int, cores: list[int], expected: list[int] | None
) -> None:
    meters = [Meters(seconds * requests, 0.0, 0.0, 0.0, requests, 0)] * num_workers
    assert plan_cores(meters, cores) == expected


@pytest.mark.parametrize(
    ("cores", "orders", "shared"),
    [
        ({}, {}, False),
        ({0: (3,), 1: (7,), 2: (3,), 3: (7,)}, {3: (1, 3, 0, 2), 7: (0, 2, 1, 3)}, True),
        ({0: (3,), 2: (7,)}, {3: (2, 0, 1, 3), 7: (0, 1, 2, 3)}, False),
    ],
)
def test_workers_of_other_cores_are_woken_first(
    cores: dict[int, tuple[int, ...]], orders: dict[int, tuple[int, ...]], shared: bool
) -> None:
    assert (wake_orders(cores, 4), cores_are_shared(cores)) == (orders, shared)


def test_all_are_woken_wherever_they_are(open_forkserver: Open) -> None:
    pool = open_forkserver(3)
    key = host(pool, Echo)
    for worker, core in enumerate((CORES[-1], CORES[0])):
        pool.keep_on(worker, [core])
    for asked in ([pool.ring(key, 7)], pool.ring_each(key, [(worker, 7, None) for worker in range(3)])):
        answers = [(worker, reply.value) for one in asked for worker, reply in settled(pool, one).replies.items()]
        assert sorted(answers) == [(0, 7), (1, 7), (2, 7)]


def test_a_restarted_worker_is_kept_where_the_earlier_one_was(open_forkserver: Open) -> None:
    pool = open_forkserver(2)
    pool.keep_on(1, CORES[:1])
    pool.restart(1)
    held = [sorted(run(pool, os.sched_getaffinity, 0, worker=worker)) for worker in pool.all_workers]
    assert held == [list(CORES), list(CORES[:1])]


def test_a_pool_is_settled_on_the_cores_there_are(open_forkserver: Open) -> None:
    pool = open_forkserver(2 * len(CORES))
    key = host(pool, Echo)
    for _ in range(20):
        settled(pool, pool.ring(key))
    pin_workers(pool)
    held = [sorted(run(pool, os.sched_getaffinity, 0, worker=worker)) for worker in pool.all_workers]
    assert held == [[core] for core in CORES] * 2


def test_a_death_is_seen_though_others_answer_at_every_first_look(open_forkserver: Open) -> None:
    pool = open_forkserver(3)
    key = host(pool, Echo)
    for worker in pool.all_workers:
        pool.keep_on(worker, CORES[:1])
    settled(pool, pool.ring(key))
    kill([pool.pid(2)])
    deadline = time.monotonic() + 1.0
    while pool.death(2) is None and time.monotonic() < deadline:
        settled(pool, pool.ring(key, workers=[0, 1]))
    assert pool.death(2) is not None
