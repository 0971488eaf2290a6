"""Which workers are kept on a core: many that do short pieces of work, and no others."""

from __future__ import annotations

import os
import time

import pytest

from parallel_envs.engine import Meters, cores_here, settle
from parallel_envs.engine.placement import SHORT_SECONDS, crowded, current_core, far_first, plan
from tests.engine.asking import host, kill, run, settled
from tests.engine.conftest import Open
from tests.engine.hosted import Echo

CORES = cores_here()


def meters(num_workers: int, seconds: float, requests: int = 10) -> list[Meters]:
    """Of workers that needed so many seconds for each request."""
    return [Meters(seconds * requests, 0.0, 0.0, 0.0, requests, 0)] * num_workers


def test_many_workers_with_short_work_are_given_cores_in_turn() -> None:
    assert plan(meters(4, SHORT_SECONDS / 2), [3, 7]) == [3, 7, 3, 7]
    assert plan(meters(6, 0.0), [3, 7]) == [3, 7, 3, 7, 3, 7]


@pytest.mark.parametrize(
    ("num_workers", "seconds", "requests", "cores"),
    [
        pytest.param(4, SHORT_SECONDS * 2, 10, [0, 1], id="long work"),
        pytest.param(2, 0.0, 10, [0, 1], id="a core for each"),
        pytest.param(1, 0.0, 10, [0, 1], id="fewer than cores"),
        pytest.param(5, 0.0, 10, [0, 1], id="not evenly"),
        pytest.param(4, 0.0, 0, [0, 1], id="nothing known yet"),
        pytest.param(4, 0.0, 10, [], id="cores unknown"),
    ],
)
def test_others_are_left_alone(num_workers: int, seconds: float, requests: int, cores: list[int]) -> None:
    assert plan(meters(num_workers, seconds, requests), cores) is None


def test_workers_of_other_cores_are_woken_first() -> None:
    places = {0: (3,), 1: (7,), 2: (3,), 3: (7,)}
    assert far_first(places, 4) == {3: (1, 3, 0, 2), 7: (0, 2, 1, 3)}


def test_workers_without_a_place_may_be_here() -> None:
    assert far_first({0: (3,), 2: (7,)}, 3) == {3: (2, 0, 1), 7: (0, 1, 2)}


def test_nobody_is_placed_at_first() -> None:
    assert far_first({}, 4) == {}


def test_the_core_of_the_caller_is_one_it_may_use() -> None:
    assert current_core() in CORES


def test_all_are_woken_wherever_they_are(open_forkserver: Open) -> None:
    pool = open_forkserver(3)
    key = host(pool, Echo)
    for worker, core in enumerate((CORES[-1], CORES[0])):
        pool.keep_on(worker, [core])
    ticket = pool.ring(key)
    assert ticket.waiting == {0, 1, 2}
    settled(pool, ticket)


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
    settle(pool)
    held = [sorted(run(pool, os.sched_getaffinity, 0, worker=worker)) for worker in pool.all_workers]
    assert held == [[core] for core in CORES] * 2


def test_settling_workers_of_this_process_moves_nobody(open_any: Open) -> None:
    pool = open_any()
    settled(pool, pool.ring(host(pool, Echo)))
    settle(pool)
    assert cores_here() == CORES


@pytest.mark.parametrize(
    ("places", "expected"),
    [
        ({}, False),
        ({0: (3,), 1: (7,)}, False),
        ({0: (3,), 1: (7,), 2: (3,)}, True),
        ({0: (3, 7), 1: (7,)}, True),
    ],
)
def test_cores_are_crowded_once_two_workers_share_one(places: dict[int, tuple[int, ...]], expected: bool) -> None:
    assert crowded(places) is expected


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
