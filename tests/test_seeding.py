"""One seed, independent streams: the same whoever asks, apart for every path and every root."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs import SeedTree, env_seeds

MANY = 10_000

names = st.one_of(st.integers(0, 2**32 - 1), st.text(max_size=6))
paths = st.lists(names, max_size=4)


def draws(tree: SeedTree) -> list[int]:
    return [int(number) for number in tree.generator().integers(2**63, size=4)]


# ---- streams -------------------------------------------------------------------------------------


def test_a_stream_does_not_depend_on_what_was_drawn_before() -> None:
    tree = SeedTree(7)
    wanted = draws(SeedTree(7).child("env", 3))
    for other in ("env", "task", 0, 12):
        draws(tree.child(other))
        tree.child(other).seeds(3)
    assert draws(tree.child("env", 3)) == wanted
    assert draws(tree.child("env", 3)) == wanted


def test_a_stream_does_not_depend_on_the_order_of_asking() -> None:
    tree = SeedTree(7)
    forwards = [draws(tree.child("env", index)) for index in range(5)]
    backwards = [draws(tree.child("env", index)) for index in reversed(range(5))]
    assert forwards == backwards[::-1]


def test_drawing_moves_no_global_generator() -> None:
    np.random.seed(0)  # the global one is what the test is about
    before = np.random.get_state()[1].tolist()  # type: ignore[index]  # the legacy form is a tuple
    draws(SeedTree(7).child("env"))
    assert np.random.get_state()[1].tolist() == before  # type: ignore[index]


@given(st.integers(0, 2**64), paths)
def test_the_way_to_a_stream_may_be_gone_in_one_step_or_in_many(root: int, path: list[int | str]) -> None:
    stepwise = SeedTree(root)
    for name in path:
        stepwise = stepwise.child(name)
    assert stepwise == SeedTree(root).child(*path)
    assert stepwise.seed() == SeedTree(root).child(*path).seed()


@given(st.integers(0, 2**64), paths, paths)
def test_other_paths_lead_to_other_streams(root: int, one: list[int | str], other: list[int | str]) -> None:
    tree = SeedTree(root)
    assert (draws(tree.child(*one)) == draws(tree.child(*other))) is (one == other)


@given(st.integers(0, 2**64), st.integers(0, 2**64), paths)
def test_other_roots_lead_to_other_streams(one: int, other: int, path: list[int | str]) -> None:
    assert (draws(SeedTree(one).child(*path)) == draws(SeedTree(other).child(*path))) is (one == other)


def test_words_and_numbers_never_meet() -> None:
    tree = SeedTree(0)
    as_words = [tree.child(str(number)) for number in range(100)]
    as_numbers = [tree.child(number) for number in range(100)]
    assert not {node.path for node in as_words} & {node.path for node in as_numbers}
    assert not {node.seed() for node in as_words} & {node.seed() for node in as_numbers}


def test_a_word_and_the_numbers_it_becomes_are_apart() -> None:
    """A path of numbers that spells a word's own parts leads elsewhere."""
    tree = SeedTree(0)
    word = tree.child("env")
    assert tree.child(*word.path).path != word.path
    assert tree.child("env", "run").seed() != tree.child("envrun").seed()
    assert tree.child("").seed() != tree.seed()


def test_a_huge_number_is_no_path_of_small_ones() -> None:
    assert _seed_or_error(5 + 7 * 2**64) != SeedTree(0).child(5, 7).seed()


def _seed_or_error(number: int) -> int | str:
    try:
        return SeedTree(0).child(number).seed()
    except ValueError as error:
        return str(error)


# ---- seeds ---------------------------------------------------------------------------------------


def test_seeds_of_roots_0_and_1_share_none() -> None:
    """Unlike `seed + i`, of which they share all but one."""
    zero, one = env_seeds(0, MANY), env_seeds(1, MANY)
    assert len(set(zero)) == len(set(one)) == MANY
    assert not set(zero) & set(one)


def test_seeds_of_envs_and_of_others_share_none() -> None:
    assert not set(env_seeds(0, MANY)) & set(SeedTree(0).child("task").seeds(MANY))


def test_seeds_are_of_a_size_that_every_library_takes() -> None:
    seeds = env_seeds(123, 1000)
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in seeds)
    assert np.mean(seeds) == pytest.approx(2**30, rel=0.1)
    np.random.RandomState(seeds[0])  # an old library's idea of a seed


def test_more_seeds_begin_with_the_same() -> None:
    assert env_seeds(5, 100)[:10] == env_seeds(5, 10)
    assert env_seeds(5, 0) == []


def test_seeds_are_those_of_the_children() -> None:
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


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, "1", 1.0, True, [1], np.float64(3)])
def test_a_seed_that_is_no_whole_number_is_refused(seed: Any) -> None:
    for ask in (SeedTree, lambda seed: env_seeds(seed, 3)):
        with pytest.raises(TypeError, match=r"seed=.* is not an integer\. Give a whole number from 0 up"):
            ask(seed)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"seed=-1 is negative\. Give a whole number from 0 up"):
        SeedTree(-1)


def test_whole_numbers_of_numpy_are_as_good_as_any() -> None:
    assert SeedTree(np.int64(3)).seed() == SeedTree(3).seed()  # type: ignore[arg-type]  # not an int to a type checker
    assert SeedTree(3).child(np.int64(4)) == SeedTree(3).child(4)  # type: ignore[arg-type]  # as above


def test_a_negative_name_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 cannot name a stream"):
        SeedTree(0).child("env", -1)


@pytest.mark.parametrize("name", [1.5, None, b"env", ("env", 3)])
def test_a_name_that_is_neither_word_nor_number_is_refused(name: Any) -> None:
    said = _said_to(name)
    assert "cannot name a stream" in said


def _said_to(name: Any) -> str:
    try:
        return repr(SeedTree(0).child(name))
    except (TypeError, ValueError) as error:
        return str(error)
