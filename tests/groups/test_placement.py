"""Which worker an environment lives in, and which core a worker is kept on."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.groups.placement import assign_beside_caller, assign_workers
from parallel_envs.groups.worker_group import assign_cores


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


def test_kinds_that_fill_workers_are_apart() -> None:
    homes = assign_workers(dict(enumerate("abababab")), 2)
    assert [homes[env] for env in range(8)] == [0, 1] * 4


def test_members_of_a_group_are_dealt_out() -> None:
    assert [assign_workers(dict.fromkeys(range(6), "a"), 2)[env] for env in range(6)] == [0, 1] * 3


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
        assert own >= 0.2 * min(counts.values()) - 1  # who notes for eight has little time to play


def test_of_128_two_who_work_share_the_playing_and_the_noting() -> None:
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
