"""Which worker an environment lives in."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.groups.placement import placed


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
