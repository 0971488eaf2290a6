"""One seed, independent streams: the same whoever asks, apart for every path and every root."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs import SeedTree, env_seeds
from parallel_envs.seeding import GlobalStates, global_states_kept

MANY = 3000

names = st.one_of(st.integers(0, 2**32 - 1), st.text(max_size=6))
paths = st.lists(names, max_size=4)


def draws(tree: SeedTree) -> list[int]:
    return [int(number) for number in tree.generator().integers(2**63, size=4)]


def test_a_stream_does_not_depend_on_what_was_drawn_before_nor_on_the_order_of_asking() -> None:
    tree = SeedTree(7)
    np.random.seed(0)  # the global generator is not moved
    before = np.random.get_state()[1].tolist()  # type: ignore[index]  # the legacy form is a tuple
    wanted = [draws(SeedTree(7).child("env", index)) for index in range(5)]
    for other in ("env", "task", 0, 12):
        draws(tree.child(other))
        tree.child(other).seeds(3)
    assert [draws(tree.child("env", index)) for index in reversed(range(5))] == wanted[::-1]
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]


@settings(max_examples=30)
@given(st.integers(0, 2**64), paths)
def test_the_way_to_a_stream_may_be_gone_in_one_step_or_in_many(root: int, path: list[int | str]) -> None:
    stepwise = SeedTree(root)
    for name in path:
        stepwise = stepwise.child(name)
    assert stepwise == SeedTree(root).child(*path)
    assert stepwise.seed() == SeedTree(root).child(*path).seed()


@settings(max_examples=30)
@given(st.integers(0, 2**64), st.integers(0, 2**64), paths, paths)
def test_other_paths_and_other_roots_lead_to_other_streams(
    root: int, other_root: int, one: list[int | str], other: list[int | str]
) -> None:
    tree = SeedTree(root)
    assert (draws(tree.child(*one)) == draws(tree.child(*other))) is (one == other)
    assert (draws(tree.child(*one)) == draws(SeedTree(other_root).child(*one))) is (root == other_root)


def test_words_and_numbers_never_meet() -> None:
    tree = SeedTree(0)
    as_words = [tree.child(str(number)) for number in range(100)]
    as_numbers = [tree.child(number) for number in range(100)]
    assert not {node.path for node in as_words} & {node.path for node in as_numbers}
    assert not {node.seed() for node in as_words} & {node.seed() for node in as_numbers}
    word = tree.child("env")  # a path of numbers that spells a word's own parts leads elsewhere
    assert tree.child(*word.path).path != word.path
    assert tree.child("env", "run").seed() != tree.child("envrun").seed()
    assert tree.child("").seed() != tree.seed()


def test_seeds_of_roots_0_and_1_share_none() -> None:
    """Unlike `seed + i`, of which they share all but one."""
    zero, one = env_seeds(0, MANY), env_seeds(1, MANY)
    assert len(set(zero)) == len(set(one)) == MANY
    assert not set(zero) & set(one)
    assert not set(zero) & set(SeedTree(0).child("task").seeds(MANY))


def test_seeds_are_those_of_the_children_and_more_begin_with_the_same() -> None:
    assert env_seeds(5, 100)[:10] == env_seeds(5, 10)
    assert env_seeds(5, 0) == []
    tree = SeedTree(5).child("env")
    assert tree.seeds(4) == [tree.child(index).seed() for index in range(4)] == env_seeds(5, 4)


def test_the_numbers_are_what_they_have_always_been() -> None:
    """Pinned: a change here changes the results of everyone's experiments, on every machine and with every NumPy."""
    tree = SeedTree(7)
    assert env_seeds(0, 4) == [1200458412, 1812720158, 505596039, 421368881]
    assert env_seeds(1, 4) == [460697109, 2059443321, 2082555534, 942563742]
    assert tree.seed() == 1969781632
    assert tree.child("env", 3, "episode", 12).seed() == 1826489306
    assert tree.child("env", 3).path == (1, 832948729, 797655944, 0, 3)
    assert tree.child("\N{SNOWMAN}").path == (1, 3427039237, 1673933433)
    assert SeedTree(2**80).child(2**32 - 1).seed() == 1313678357
    assert tree.child("task").generator().random(2) == pytest.approx([0.11235218403662806, 0.16309800381001083])


TREE: Any = SeedTree
SEEDS: Any = env_seeds
NO_SEEDS = (None, "1", 1.0, True, [1], np.float64(3))
NO_INTEGER = r"seed=.* is not an integer\. Give a whole number from 0 up"
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    *((call, TypeError, NO_INTEGER) for seed in NO_SEEDS for call in (partial(TREE, seed), partial(SEEDS, seed, 3))),
    (partial(TREE, -1), ValueError, r"seed=-1 is negative\. Give a whole number from 0 up"),
    (partial(TREE(0).child, "env", -1), ValueError, "-1 cannot name a stream"),
    *((partial(TREE(0).child, name), TypeError, "cannot name a stream") for name in (1.5, None, b"env", ("env", 3))),
]


def test_bad_seeds_and_names_are_refused() -> None:
    for call, error, text in REFUSED:
        with pytest.raises(error, match=text):
            call()


def test_global_generators_are_restored_after_an_error_and_at_will() -> None:
    torch = pytest.importorskip("torch")

    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))

    kept = GlobalStates.now(with_torch=True)
    first = drawn()
    kept.restore()
    with contextlib.suppress(ValueError), global_states_kept(with_torch=True):
        assert drawn() == first
        raise ValueError
    with global_states_kept():
        assert drawn() == first
    again = drawn()
    assert again[:2] == first[:2]
    assert again[2] != first[2]  # torch's was not kept
    assert GlobalStates.now().torch is None
