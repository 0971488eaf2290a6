"""Which worker an environment lives in."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.groups.placement import assign_workers


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
