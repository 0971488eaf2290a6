"""Which worker an environment lives in, and which core a worker is kept on."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.groups.placement import kept_on, placed, without_last


@given(kinds=st.lists(st.sampled_from("abc"), min_size=1, max_size=40), num_workers=st.integers(1, 8))
def test_workers_hold_equally_many_and_few_hold_a_kind(kinds: list[str], num_workers: int) -> None:
    num_workers = min(num_workers, len(kinds))
    homes = placed(dict(enumerate(kinds)), num_workers)
    assert homes.keys() == set(range(len(kinds)))
    counts = Counter(homes.values())
    assert set(counts) == set(range(num_workers))
    assert max(counts.values()) - min(counts.values()) <= 1
    for kind, number in Counter(kinds).items():
        holders = {homes[env] for env, own in enumerate(kinds) if own == kind}
        assert len(holders) <= -(-number // min(counts.values())) + 1


def test_kinds_that_fill_workers_are_apart() -> None:
    homes = placed(dict(enumerate("abababab")), 2)
    assert [homes[env] for env in range(8)] == [0, 1] * 4


def test_members_of_a_group_are_dealt_out() -> None:
    assert [placed(dict.fromkeys(range(6), "a"), 2)[env] for env in range(6)] == [0, 1] * 3


def test_who_plays_the_part_of_the_last_worker_has_as_many_as_any_other() -> None:
    homes = without_last(placed(dict.fromkeys(range(7), "a"), 3))
    assert Counter(homes.values()) == {0: 3, 1: 2}
    assert without_last({0: 0, 3: 0}) == {0: 0, 3: 0}


@pytest.mark.parametrize(
    ("num_workers", "cores", "kept"),
    [(2, (0, 1), [0, 1]), (4, (1, 3), [1, 3, 1, 3]), (3, (0, 1), []), (2, (0, 1, 2), []), (2, (0,), []), (2, (), [])],
)
def test_workers_that_fill_all_cores_evenly_are_kept_on_one_each(
    num_workers: int, cores: tuple[int, ...], kept: list[int]
) -> None:
    assert kept_on(num_workers, cores) == kept
