"""Which workers are kept on a core: many that do short pieces of work, and no others."""

from __future__ import annotations

import os

import pytest

from parallel_envs.engine import Meters, cores_here, settle
from parallel_envs.engine.placement import SHORT_SECONDS, plan
from tests.engine.asking import host, run, settled
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
