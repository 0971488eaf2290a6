"""Replay against a naive memory: what is kept, what sums and sequences are made of, and files."""

from __future__ import annotations

import pickle
import threading
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from parallel_envs.rollouts.replay import PrioritizedReplayBuffer, ReplayBuffer, write_archive
from parallel_envs.testing import assert_same_batch
from tests.rollouts.lives import ACTIONS, OBSERVATIONS, Life, Step, lives, observed

MEMORY = (np.zeros(1),)
MANY = 200  # draws, so that of the few steps that are kept each is met


def draws(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def a_life(capacity: int = 20, num_rows: int = 2, *, steps: int = 0, **options: Any) -> Life:
    life = Life(ReplayBuffer(OBSERVATIONS, ACTIONS, capacity, num_rows, **options))
    for _ in range(steps):
        life.play(("goes on",) * num_rows)
    return life


@settings(max_examples=50)
@given(lives())
def test_the_newest_steps_are_kept_each_as_it_was(life: Life) -> None:
    assert len(life.buffer) == len(life.kept) <= life.buffer.capacity
    assume(life.kept)
    batch = life.buffer.sample(draws(), MANY)
    numbers = batch["observations"]["number"].tolist()
    assert set(numbers) == set(life.kept)
    drawn = [life.kept[number] for number in numbers]
    assert_same_batch(batch["observations"], observed(numbers))
    assert_same_batch(batch["next_observations"], observed([step.after for step in drawn]))
    assert batch["actions"].tolist() == [int(number) % 100 for number in numbers]
    assert batch["rewards"].tolist() == numbers
    assert batch["weights"].tolist() == [1.0] * MANY


def summed(step: Step, num_steps: int, discount: float) -> tuple[float, float, float]:
    """The sum, what the value after it counts, and the observation after it: step by step."""
    total, factor, last = step.number, discount, step
    for _ in range(num_steps - 1):
        if last.following is None:
            break
        last = last.following
        total, factor = total + factor * last.number, factor * discount
    return total, 0.0 if last.terminated else factor, last.after


@settings(max_examples=50)
@given(lives(num_steps=3, discount=0.5))
def test_sums_end_with_the_episode_and_bootstrap_unless_it_terminated(life: Life) -> None:
    assume(life.kept)
    batch = life.buffer.sample(draws(), MANY)
    expected = [summed(life.kept[number], 3, 0.5) for number in batch["observations"]["number"].tolist()]
    assert batch["rewards"].tolist() == [total for total, _, _ in expected]
    assert batch["discounts"].tolist() == [factor for _, factor, _ in expected]
    assert batch["next_observations"]["number"].tolist() == [after for _, _, after in expected]


def test_a_step_that_begins_an_episode_follows_nothing() -> None:
    buffer = ReplayBuffer(ACTIONS, ACTIONS, 8, 1, num_steps=2)
    one, no, yes = np.ones(1, int), np.zeros(1, bool), np.ones(1, bool)
    for begins in (yes, no, yes):
        buffer.add(one, one, one, no, no, one, yes, begins=begins)
    batch = buffer.sample(draws(), MANY)
    sums = dict(zip(batch["indices"].tolist(), batch["rewards"].tolist(), strict=True))
    assert sums == {0: pytest.approx(1.99), 1: 1.0, 2: 1.0}


@settings(max_examples=50)
@given(lives(memory=MEMORY), st.integers(1, 6))
def test_sequences_are_pieces_of_one_life(life: Life, length: int) -> None:
    assume(life.kept)
    pieces = life.buffer.sample_sequences(draws(), MANY, length)
    assert pieces.memory is not None
    for row in range(MANY):
        step: Step | None = life.kept[pieces.observations["number"][0, row]]
        assert step is not None
        assert pieces.memory[0][row] == step.number
        for at in range(length):
            assert pieces.valid[at, row] == (step is not None)
            if step is None:
                assert pieces.rewards[at, row] == pieces.observations["number"][at + 1, row] == 0
                assert not (pieces.terminated | pieces.truncated)[at, row]
                continue
            assert pieces.rewards[at, row] == step.number
            assert pieces.observations["number"][at + 1, row] == step.after
            assert pieces.terminated[at, row] == step.terminated
            assert pieces.truncated[at, row] == step.truncated
            step = step.following


@given(lives())
def test_only_an_episodes_first_step_begins_a_sequence_anew(life: Life) -> None:
    assume(life.kept)
    pieces = life.buffer.sample_sequences(draws(), MANY, 2)
    followers = {step.following.number for step in life.steps if step.following}
    begins = [number not in followers for number in pieces.observations["number"][0].tolist()]
    assert pieces.begins[0].tolist() == begins
    assert not pieces.begins[1:].any()
    assert pieces.memory is None


@settings(max_examples=25)
@given(life=lives(num_steps=2, memory=MEMORY))
def test_a_buffer_that_was_loaded_goes_on_like_the_one_that_was_saved(
    life: Life, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("replay") / "buffer.npz"
    life.buffer.save(path)
    saved = life.buffer
    life.buffer = ReplayBuffer(OBSERVATIONS, ACTIONS, saved.capacity, saved.num_rows, num_steps=2, memory=MEMORY)
    life.buffer.load(path)
    assert_same_batch(life.buffer.state(), saved.state())
    for _ in range(saved.capacity):
        life.play(("goes on",) * saved.num_rows)
        assert set(life.buffer.sample(draws(), MANY)["observations"]["number"]) <= set(life.kept)


def test_saving_replaces_the_file_and_if_it_fails_leaves_it_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "archive.npz"
    write_archive(path, {"first": True}, {})
    with path.open("rb") as old:
        write_archive(path, {}, {})
        before = path.read_bytes()
        assert old.read() != before  # the first file was replaced, and not written into
    with pytest.raises(TypeError):
        write_archive(path, {"not json": object()}, {})
    with pytest.raises(Exception, match="unreadable"):
        write_archive(path, {}, {"array": Unreadable()})  # type: ignore[dict-item]
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


class Unreadable:
    def __array__(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("unreadable")


def test_a_thread_may_draw_while_another_stores() -> None:
    life, torn = a_life(capacity=8, num_rows=2, steps=4), list[Any]()

    def draw() -> None:
        generator = draws()
        while not done.is_set():
            batch = life.buffer.sample(generator, 8)
            numbers = batch["observations"]["number"]
            if not np.array_equal(numbers.astype(np.float32), batch["rewards"]):
                torn.append(batch)

    done = threading.Event()
    thread = threading.Thread(target=draw)
    thread.start()
    for _ in range(400):
        life.play(("goes on", "goes on"))
    done.set()
    thread.join()
    assert torn == []


def test_settings_that_make_no_sense_are_refused() -> None:
    for options in (
        *({"capacity": 1}, {"capacity": 8.5}, {"num_rows": 0}, {"num_rows": "2"}),
        *({"num_steps": 0}, {"num_steps": 1.5}, {"discount": 1.1}, {"discount": "x"}),
    ):
        ((name, value),) = options.items()
        with pytest.raises((TypeError, ValueError), match=f"^{name}={value!r} "):
            ReplayBuffer(OBSERVATIONS, ACTIONS, **{"capacity": 8, "num_rows": 2, **options})  # type: ignore[arg-type]


def test_draws_that_cannot_be_are_refused() -> None:
    life = a_life()
    for draw in (lambda: life.buffer.sample(draws(), 2), lambda: life.buffer.sample_sequences(draws(), 2, 3)):
        with pytest.raises(ValueError, match="empty buffer"):
            draw()
    life.play(("goes on", "goes on"))
    for batch_size, length, kind in ((0, 2, ValueError), (2.5, 2, TypeError), (2, 0, ValueError), (2, "3", TypeError)):
        with pytest.raises(kind, match=r"(batch_size|length)="):
            life.buffer.sample_sequences(draws(), batch_size, length)  # type: ignore[arg-type]  # what this is about
    with pytest.raises(TypeError, match=r"^generator=3 is not one of NumPy's"):
        life.buffer.sample(3, 2)  # type: ignore[arg-type]  # likewise


def test_batches_that_do_not_fit_are_refused() -> None:
    buffer = ReplayBuffer(spaces.Box(0, 1, (2,)), ACTIONS, 8, 2)
    seen = np.zeros((2, 2))
    good: list[Any] = [seen, *[np.zeros(2, kind) for kind in ("i", "f", "?", "?")], seen, np.ones(2, "?")]
    buffer.add(*good)
    worse: list[tuple[int, Any]] = [(0, np.zeros((2, 3))), (1, np.zeros((2, 1))), (6, np.ones(3, "?")), (6, np.ones(2))]
    worse += [(2, np.zeros((2, 1))), (2, 1.0), (3, np.zeros(3, "?")), (5, np.zeros((2, 3)))]
    before = buffer.state()
    for place, bad in worse:
        with pytest.raises(ValueError, match=r"wanted|valid="):
            buffer.add(*[bad if place == position else fine + 1 for position, fine in enumerate(good)])
    assert_same_batch(buffer.state(), before)


def linked(state: dict[str, Any], place: int) -> dict[str, Any]:
    links = state["arrays"]["following"].copy()
    links[1] = place
    return {**state, "arrays": {**state["arrays"], "following": links}}


def test_what_is_no_state_is_refused_and_nothing_is_changed() -> None:
    buffer = a_life(steps=3).buffer
    state = buffer.state()
    arrays = state["arrays"]
    wrong: list[tuple[Any, str]] = [
        (5, "^5 is no state of a buffer"),
        ({}, "is no state of a buffer"),
        ({"counters": state["counters"]}, "is no state of a buffer"),
        ({**state, "counters": 5}, "is no state of a buffer"),
        ({**state, "arrays": [1]}, "is no state of a buffer"),
        ({**state, "arrays": {**arrays, "rewards": [0.0]}}, "rewards is stored as list"),
        ({**state, "arrays": {**arrays, 3: np.zeros(6)}}, r"The stored buffer holds \["),
        (linked(state, 777), "following leads to the place 777, and 6 steps"),
        (linked(state, 6), "following leads to the place 6, and 6 steps"),
        (linked(state, -2), "following leads to the place -2"),
    ]
    for changed, words in wrong:
        with pytest.raises(ValueError, match=words):
            buffer.load_state(changed)
    assert_same_batch(buffer.state(), state)


def test_draws_are_uniform_copies() -> None:
    buffer = a_life(steps=5).buffer
    before = buffer.sample(draws(), 10_000)
    assert np.bincount(before["indices"]).min() > 850
    buffer.sample(draws(), 8)["observations"]["number"][:] = 0
    assert_same_batch(buffer.sample(draws(), 10_000), before)
    assert_same_batch(pickle.loads(cloudpickle.dumps(buffer)).sample(draws(), 10_000), before)


def test_files_that_do_not_fit_or_are_damaged_are_refused(tmp_path: Path) -> None:
    path, buffer = tmp_path / "buffer.npz", a_life(steps=3).buffer
    state = buffer.state()
    a_life(steps=5, memory=MEMORY).buffer.save(path)
    with pytest.raises(ValueError, match=r"buffer\.npz does not fit this buffer.*memory0"):
        buffer.load(path)
    with pytest.raises(ValueError, match="capacity=20, this one capacity=4"):
        a_life(capacity=4).buffer.load(path)
    for change in ({"size": 99}, {"position": -1}, {"last": [7, 7]}, {"last": None}, {"size": "1"}):
        write_archive(path, {**state["counters"], **change}, state["arrays"])
        with pytest.raises(ValueError, match="does not fit"):
            buffer.load(path)
    np.savez(path, anything=np.array([Step], object))  # pickled content is never loaded
    with pytest.raises(ValueError, match="damaged, or is not"):
        buffer.load(path)
    a_life(steps=9).buffer.save(path)
    whole = path.read_bytes()
    for damaged in (b"", b"text", whole[:-10], whole[: len(whole) // 2], whole.replace(b"capacity", b"CAPACITY")):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"buffer\.npz is damaged"):
            buffer.load(path)
    assert_same_batch(buffer.state(), state)


@pytest.mark.parametrize("kind", [ReplayBuffer, PrioritizedReplayBuffer])
def test_memory_that_is_not_given_is_zeros_and_one_that_does_not_fit_changes_nothing(kind: type[ReplayBuffer]) -> None:
    buffer = kind(OBSERVATIONS, ACTIONS, 4, 2, memory={"h": np.ones(3, np.float32)})
    no, seen = np.zeros(2, np.bool_), observed([1.0, 2.0])
    step = (seen, np.arange(2), np.ones(2), no, no, seen)
    buffer.add(*step, ~no, memory={"h": np.full((2, 3), 7.0)})
    buffer.add(*step, np.array([True, False]))
    before = buffer.state()
    for bad in ({"h": np.ones((1, 3))}, {"h": np.ones((2, 4))}, {"x": np.ones((2, 3))}, np.ones((2, 3))):
        with pytest.raises(ValueError, match="wanted"):
            buffer.add(*step, ~no, memory=bad)
    assert_same_batch(buffer.state(), before)
    assert before["arrays"]["memory0"].tolist() == [[7.0] * 3, [7.0] * 3, [0.0] * 3]
    pieces: Any = buffer.sample_sequences(draws(), MANY, 1).memory
    assert set(pieces["h"][:, 0].tolist()) == {0.0, 7.0}
    with pytest.raises(ValueError, match="where None is wanted"):
        kind(OBSERVATIONS, ACTIONS, 4, 2).add(*step, ~no, memory=np.ones((2, 3)))
