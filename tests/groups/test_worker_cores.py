"""Which cores workers are kept on, as turns go by and the caller moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from parallel_envs.engine import WorkerPool
from parallel_envs.groups import worker_group
from parallel_envs.groups.worker_group import WorkerCores

SHORT = worker_group._SHORT_SECONDS / 2


class NoPool:
    """Workers whose cores are noted."""

    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.all_workers = tuple(range(num_workers))
        self.kept: dict[int, Sequence[int]] = {}
        self.awake: dict[int, float] = {}

    def keep_awake(self, worker: int, seconds: float) -> None:
        self.awake[worker] = seconds

    def keep_on(self, worker: int, worker_group: Sequence[int]) -> None:
        self.kept[worker] = worker_group


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The core of the caller, on a system with four."""
    here = [0]
    monkeypatch.setattr(worker_group, "cores_here", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(worker_group, "current_core", lambda: here[0])
    return here


def after_short_turns(pool: NoPool, *, caller_works: bool) -> WorkerCores:
    kept = WorkerCores(cast(WorkerPool, pool), caller_works=caller_works)
    for _ in range(worker_group._SHORT_TURNS):
        assert not pool.kept
        assert list(kept.wake_order(range(pool.num_workers))) == list(range(pool.num_workers))
        kept.note_turn(SHORT)
    return kept


def test_workers_of_a_caller_that_waits_have_all_cores_and_the_far_ones_come_first(caller: list[int]) -> None:
    pool = NoPool(4)
    kept = after_short_turns(pool, caller_works=False)
    assert pool.kept == {0: (0,), 1: (1,), 2: (2,), 3: (3,)}
    caller[0] = 1
    assert list(kept.wake_order(range(4))) == [0, 2, 3, 1]


def test_workers_of_a_caller_that_works_leave_it_its_core_wherever_that_is(caller: list[int]) -> None:
    caller[0] = 2
    pool = NoPool(3)
    kept = after_short_turns(pool, caller_works=True)
    assert pool.kept == {0: (0,), 1: (1,), 2: (3,)}
    for moves_to, expected in ((1, {1: (2,)}), (1, {}), (2, {1: (1,)}), (3, {2: (2,)})):
        caller[0] = moves_to
        pool.kept.clear()
        assert list(kept.wake_order(range(3))) == [0, 1, 2]
        assert pool.kept == expected


def test_two_workers_of_a_core_make_room_together(caller: list[int]) -> None:
    pool = NoPool(6)
    kept = after_short_turns(pool, caller_works=True)
    assert pool.kept == {0: (1,), 1: (2,), 2: (3,), 3: (1,), 4: (2,), 5: (3,)}
    caller[0] = 2
    pool.kept.clear()
    kept.wake_order(range(6))
    assert pool.kept == {1: (0,), 4: (0,)}


@pytest.mark.parametrize(("num_workers", "caller_works"), [(3, False), (4, True), (2, True)])
def test_workers_that_do_not_fill_the_cores_are_kept_on_none(
    num_workers: int, caller_works: bool, caller: list[int]
) -> None:
    pool = NoPool(num_workers)
    after_short_turns(pool, caller_works=caller_works)
    assert not pool.kept


def test_a_lone_core_is_nobodys_own(caller: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_group, "cores_here", lambda: (0,))
    pool = NoPool(1)
    after_short_turns(pool, caller_works=False)
    assert not pool.kept


@pytest.mark.parametrize(
    ("num_workers", "caller_works", "awake", "workers_awake"),
    [(3, True, True, True), (6, True, True, False), (4, False, False, False), (4, True, False, False)],
)
def test_only_who_works_on_a_core_of_its_own_beside_a_caller_that_works_stays_awake_and_not_for_long(
    num_workers: int, caller_works: bool, awake: bool, workers_awake: bool, caller: list[int]
) -> None:
    pool = NoPool(num_workers)
    kept = WorkerCores(cast(WorkerPool, pool), caller_works=caller_works)
    assert kept.seconds_awake == 0.0
    for _ in range(worker_group._SHORT_TURNS):
        kept.note_turn(SHORT)
    assert (kept.seconds_awake > 0.0) == awake
    assert kept.seconds_awake < 1e-3
    assert pool.awake.keys() == (set(pool.all_workers) if workers_awake else set())
    assert all(0.0 < seconds < 1e-3 for seconds in pool.awake.values())
