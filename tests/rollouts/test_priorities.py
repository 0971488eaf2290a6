"""Prioritised replay: both samplers draw what they should, and one of them the same each time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from parallel_envs.rollouts.replay import PrioritizedReplayBuffer, SumTree, _branch
from parallel_envs.testing import assert_same_batch
from tests.rollouts.lives import ACTIONS, OBSERVATIONS, Life, lives

NUM_DRAWS = 20_000
WRONG_SHARES = (("alpha", -0.1), ("alpha", np.nan), ("beta", 1.5))


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def a_life(sampler: str, capacity: int = 6, steps: int = 6, **options: Any) -> Life:
    life = Life(PrioritizedReplayBuffer(OBSERVATIONS, ACTIONS, capacity, 1, sampler=sampler, **options))  # type: ignore[arg-type]
    for _ in range(steps):
        life.play(("goes on",))
    return life


@pytest.fixture(params=["tree", "cpprb"])
def sampler(request: pytest.FixtureRequest) -> str:
    if request.param == "cpprb":
        pytest.importorskip("cpprb")
    return str(request.param)


def expected(priorities: Any, alpha: float) -> Any:
    shares = (np.array(priorities) + 1e-4) ** alpha
    return shares / shares.sum()


@pytest.mark.parametrize("since", [0, 1, 4, 5, 6, 7, 13])
def test_what_was_written_over_since_it_was_drawn_keeps_its_own_priority(sampler: str, since: int) -> None:
    life = a_life(sampler, steps=8, alpha=1.0)
    buffer: Any = life.buffer
    oldest_first = [2, 3, 4, 5, 0, 1]
    buffer.update_priorities(np.arange(6), np.full(6, 3.0))  # new steps are as important as that
    drawn_at = buffer.num_added
    for _ in range(since):
        life.play(("goes on",))
    buffer.update_priorities(np.arange(6), np.full(6, 0.5), drawn_at=drawn_at)
    left = oldest_first[since:]
    priorities = [0.5 if place in left else 3.0 for place in range(6)]
    assert np.array_equal(buffer.state()["arrays"]["priorities"], priorities)
    shares = np.bincount(buffer.sample(draws(), NUM_DRAWS)["indices"], minlength=6) / NUM_DRAWS
    assert np.allclose(shares, expected(priorities, 1.0), atol=0.01)


def test_what_was_drawn_before_a_load_tells_nothing_of_what_was_loaded() -> None:
    buffer: Any = a_life("tree").buffer
    drawn_at = buffer.num_added
    buffer.load_state(a_life("tree").buffer.state())
    buffer.update_priorities(np.arange(6), np.full(6, 9.0), drawn_at=drawn_at)
    assert np.array_equal(buffer.state()["arrays"]["priorities"], np.ones(6))


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_steps_are_drawn_in_proportion_to_their_priorities_and_weights_take_that_back(
    sampler: str, alpha: float
) -> None:
    life = a_life(sampler, capacity=8, alpha=alpha, beta=1.0)
    buffer: Any = life.buffer
    buffer.update_priorities(np.arange(6), np.array([0.0, 1.0, 2.0, 9.0, 1.0, 0.1]))
    life.play(("goes on",))  # new steps are as important as the most important one
    chances = expected([0.0, 1.0, 2.0, 9.0, 1.0, 0.1, 9.0], alpha)
    batch = buffer.sample(draws(), NUM_DRAWS)
    assert np.allclose(np.bincount(batch["indices"], minlength=7) / NUM_DRAWS, chances, atol=0.01)
    assert np.allclose(batch["weights"], chances.min() / chances[batch["indices"]], rtol=1e-3)
    if sampler == "tree":  # the same from the same generator
        assert_same_batch(buffer.sample(draws(3), 64), buffer.sample(draws(3), 64))


@given(lives(PrioritizedReplayBuffer))
def test_only_what_is_kept_is_drawn(life: Life) -> None:
    assume(life.kept)
    numbers = life.buffer.sample(draws(), 200)["observations"]["number"]
    assert set(numbers) == set(life.kept)


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=33), st.integers(0, 100))
def test_rounding_never_leads_to_where_nothing_is(priorities: list[float], seed: int) -> None:
    buffer = a_life("tree", capacity=40, steps=len(priorities), alpha=1.0).buffer
    buffer.update_priorities(np.arange(len(priorities)), np.array(priorities))  # type: ignore[attr-defined]
    batch = buffer.sample(draws(seed), 64)
    assert batch["indices"].max() < len(priorities)
    assert np.all((batch["weights"] > 0) & (batch["weights"] <= 1))


@pytest.mark.parametrize("capacity", [1, 63, 64, 65, 4096, 5000])
def test_the_tree_draws_what_a_plain_search_draws(capacity: int) -> None:
    tree, priorities = SumTree(capacity, alpha=1.0), np.zeros(capacity)
    size = -(-capacity * 2 // 3)
    for _ in range(5):
        places = draws(capacity).integers(size, size=100)
        priorities[places] = draws(capacity).random(100)
        tree.update(places, priorities[places])
    missing = np.setdiff1d(np.arange(size), places)
    tree.update(missing, priorities[missing])
    shares = np.where(np.arange(capacity) < size, priorities + 1e-4, 0.0)
    drawn, weights = tree.sample(draws(1), 64, beta=1.0)
    sought = (np.arange(64) + draws(1).random(64)) * (shares.sum() / 64)
    assert np.array_equal(drawn, np.searchsorted(shares.cumsum(), sought, side="right"))
    assert np.allclose(weights, shares[:size].min() / shares[drawn])


def test_a_rest_that_rounding_made_too_large_leads_to_the_last_place_that_is_filled() -> None:
    sums = np.zeros((1, 64))
    sums[0, :10] = 0.1  # one after another they make a little less than 1
    branches, rest, shares = _branch(sums, np.array([1.0]))
    assert (branches.tolist(), shares.tolist()) == ([9], [0.1])
    assert 0 <= rest[0] < 0.1


@pytest.mark.parametrize("steps", [3, 6, 8])
def test_a_buffer_that_was_loaded_goes_on_like_the_one_that_was_saved(sampler: str, steps: int, tmp_path: Path) -> None:
    life, other = a_life(sampler, steps=steps, alpha=1.0), a_life(sampler, steps=1, alpha=1.0)
    saved: Any = life.buffer
    saved.update_priorities(np.arange(min(steps, 6)), np.arange(min(steps, 6)) * 2.0)
    saved.save(tmp_path / "buffer.npz")
    other.buffer.load(tmp_path / "buffer.npz")
    for each in (saved, other.buffer):
        life.buffer = each
        life.play(("goes on",))
    size = len(saved)
    first, second = (
        np.bincount(each.sample(draws(), NUM_DRAWS)["indices"], minlength=size) for each in (saved, other.buffer)
    )
    assert np.allclose(first, second, atol=0.02 * NUM_DRAWS)
    assert sampler == "cpprb" or np.array_equal(first, second)


def test_priorities_and_draws_that_cannot_be_are_refused(sampler: str) -> None:
    buffer: Any = a_life(sampler).buffer
    for priority in (np.nan, np.inf, -1.0):
        with pytest.raises(ValueError, match="finite"):
            buffer.update_priorities(np.array([0]), np.array([priority]))
    with pytest.raises(ValueError, match="one finite number"):
        buffer.update_priorities(np.array([0, 1]), np.array([1.0]))
    with pytest.raises(ValueError, match="empty buffer"):
        a_life(sampler, steps=0).buffer.sample(draws(), 1)


def test_settings_that_make_no_sense_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong: list[tuple[dict[str, Any], Any, str]] = [
        *(({name: share}, ValueError, "is not a number from 0 to 1") for name, share in WRONG_SHARES),
        ({"beta": "x"}, TypeError, r"^beta='x' is not a number"),
        ({"sampler": "trie"}, ValueError, "sampler='trie'"),
        ({"sampler": "cpprb"}, ModuleNotFoundError, r'pip install "parallel-envs\[replay\]"'),
    ]
    monkeypatch.setitem(sys.modules, "cpprb", None)
    for settings, error, words in wrong:
        with pytest.raises(error, match=words):
            PrioritizedReplayBuffer(OBSERVATIONS, ACTIONS, 8, 1, **settings)
