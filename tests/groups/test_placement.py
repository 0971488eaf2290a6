"""Which worker an environment lives in, and which core a worker is kept on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.engine import WorkerPool
from parallel_envs.groups import worker_group
from parallel_envs.groups.placement import assign_beside_caller, assign_workers
from parallel_envs.groups.worker_group import WorkerCores, assign_cores


@given(kinds=st.lists(st.sampled_from("abc"), min_size=1, max_size=40), num_workers=st.integers(1, 8))
def test_workers_hold_equally_many_and_few_hold_a_kind(kinds: list[str], num_workers: int) -> None:
    num_workers = min(num_workers, len(kinds))
    homes = assign_workers(dict(enumerate(kinds)), num_workers)
    assert homes.keys() == set(range(len(kinds)))
    counts = Counter(homes.values())
    assert set(counts) == set(range(num_workers))
    assert max(counts.values()) - min(counts.values()) <= 1
    for kind, number in Counter(kinds).items():
        holders = {homes[env] for env, own in enumerate(kinds) if own == kind}
        assert len(holders) <= -(-number // min(counts.values())) + 1


@pytest.mark.parametrize(("kinds", "homes"), [("abababab", [0, 1] * 4), ("aaaaaa", [0, 1] * 3)])
def test_kinds_that_fill_workers_are_apart_and_members_of_one_are_dealt_out(kinds: str, homes: list[int]) -> None:
    assert [home for _, home in sorted(assign_workers(dict(enumerate(kinds)), 2).items())] == homes


@given(num_envs=st.integers(1, 200), num_workers=st.integers(1, 40))
def test_the_caller_that_works_has_a_little_less_than_any_other(num_envs: int, num_workers: int) -> None:
    num_workers = min(num_workers, num_envs)
    homes = assign_beside_caller(dict.fromkeys(range(num_envs), "a"), num_workers)
    counts, own = Counter(homes.values()), num_envs - len(homes)
    assert set(counts) == set(range(num_workers - (own > 0)))
    assert max(counts.values()) - min(counts.values()) <= 1
    assert own <= max(counts.values())
    if num_workers == 1:
        assert own == 0
    elif num_workers <= 8:
        assert own >= 0.2 * min(counts.values()) - 1  # noting for eight leaves little time to play


def test_of_128_a_caller_and_a_worker_share_the_playing_and_the_noting() -> None:
    homes = assign_beside_caller(dict.fromkeys(range(128), "a"), 2)
    assert Counter(homes.values()) == {0: 71}
    assert max(sum(env in homes for env in range(first, first + 16)) for first in range(0, 128, 16)) <= 9


@pytest.mark.parametrize(
    ("num_workers", "cores", "kept"),
    [
        (2, (0, 1), [0, 1]),
        (4, (1, 3), [1, 3, 1, 3]),
        (3, (0, 1), []),
        (2, (0, 1, 2), []),
        (2, (1,), [1, 1]),
        (2, (), []),
    ],
)
def test_workers_that_fill_all_cores_evenly_are_kept_on_one_each(
    num_workers: int, cores: tuple[int, ...], kept: list[int]
) -> None:
    assert assign_cores(num_workers, cores) == kept


# ---- as turns go by and the caller moves ----------------------------------------------------------------------------


class NoPool:  # workers whose cores are noted
    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.all_workers = tuple(range(num_workers))
        self.kept: dict[int, Sequence[int]] = {}
        self.awake: dict[int, float] = {}

    def keep_awake(self, worker: int, seconds: float) -> None:
        self.awake[worker] = seconds

    def keep_on(self, worker: int, cores: Sequence[int]) -> None:
        self.kept[worker] = cores


@pytest.fixture
def caller(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The core of the caller, on a system with four."""
    here = [0]
    monkeypatch.setattr(worker_group, "cores_here", lambda: (0, 1, 2, 3))
    monkeypatch.setattr(worker_group, "current_core", lambda: here[0])
    return here


def after_short_turns(pool: NoPool, *, caller_works: bool) -> WorkerCores:
    kept = WorkerCores(cast(WorkerPool, pool), caller_works=caller_works)
    assert kept.seconds_awake == 0.0
    for _ in range(worker_group._SHORT_TURNS):
        assert not pool.kept
        assert list(kept.wake_order(range(pool.num_workers))) == list(range(pool.num_workers))
        kept.note_turn(worker_group._SHORT_SECONDS / 2)
    return kept


def test_workers_of_a_caller_that_waits_have_all_cores_and_the_far_ones_come_first(caller: list[int]) -> None:
    pool = NoPool(4)
    kept = after_short_turns(pool, caller_works=False)
    assert pool.kept == {0: (0,), 1: (1,), 2: (2,), 3: (3,)}
    caller[0] = 1
    assert list(kept.wake_order(range(4))) == [0, 2, 3, 1]


@pytest.mark.parametrize(
    ("begins", "first", "moves"),
    [
        (2, [0, 1, 3], [(1, {1: (2,)}), (1, {}), (2, {1: (1,)}), (3, {2: (2,)})]),
        (0, [1, 2, 3, 1, 2, 3], [(2, {1: (0,), 4: (0,)})]),
    ],
)
def test_workers_of_a_caller_that_works_leave_it_its_core_wherever_that_is(
    begins: int, first: list[int], moves: list[tuple[int, dict[int, tuple[int]]]], caller: list[int]
) -> None:
    caller[0] = begins
    pool = NoPool(len(first))
    kept = after_short_turns(pool, caller_works=True)
    assert pool.kept == {worker: (core,) for worker, core in enumerate(first)}
    for moves_to, expected in moves:
        caller[0] = moves_to
        pool.kept.clear()
        assert list(kept.wake_order(pool.all_workers)) == list(pool.all_workers)
        assert pool.kept == expected


@pytest.mark.parametrize(
    ("num_workers", "caller_works", "awake", "workers_awake"),
    [(3, True, True, True), (6, True, True, False), (4, False, False, False), (4, True, False, False)],
)
def test_a_worker_with_a_core_of_its_own_beside_a_caller_that_works_stays_awake_and_not_for_long(
    num_workers: int, caller_works: bool, awake: bool, workers_awake: bool, caller: list[int]
) -> None:
    pool = NoPool(num_workers)
    kept = after_short_turns(pool, caller_works=caller_works)
    assert (kept.seconds_awake > 0.0) == awake
    assert kept.seconds_awake < 1e-3
    assert pool.awake.keys() == (set(pool.all_workers) if workers_awake else set())
    assert all(0.0 < seconds < 1e-3 for seconds in pool.awake.values())
