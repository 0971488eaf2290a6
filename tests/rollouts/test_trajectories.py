"""Trajectories in shared memory: what is written is what is read, here and in a worker, and no later than it may be."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.engine import HOST, open_pool
from parallel_envs.rollouts.trajectories import Trajectory, TrajectoryStore
from parallel_envs.testing import assert_same_batch
from tests.strategies import fixed_shape_leaves, names

NUM_ROWS = 3
READER = 1
OBSERVATIONS = spaces.Box(-1, 1, (2,))
ACTIONS = spaces.Discrete(4)


nested = st.recursive(
    fixed_shape_leaves(),
    lambda parts: (
        st.lists(parts, min_size=1, max_size=2).map(spaces.Tuple)
        | st.dictionaries(names, parts, min_size=1, max_size=2).map(spaces.Dict)
    ),
    max_leaves=3,
)


class Life:
    """A random life of NUM_ROWS rows: what a store is given, and what it must return."""

    def __init__(self, store: TrajectoryStore, observations: Any, actions: Any, memory: bool = False) -> None:
        self.store, self.with_memory = store, memory
        self.draws = np.random.default_rng(5)
        self.observations, self.actions = batch_space(observations, NUM_ROWS), batch_space(actions, NUM_ROWS)
        self.observations.seed(1)
        self.actions.seed(2)
        self.seen, self.begins = self.observations.sample(), self.flags()
        self.memory = self.remembered()
        store.begin(self.seen, self.begins, self.memory)

    def flags(self) -> Any:
        return self.draws.random(NUM_ROWS) < 0.5

    def remembered(self) -> Any:
        return (self.draws.random((NUM_ROWS, 4)),) if self.with_memory else None

    def blank(self, number: int) -> None:
        """A step of nothing but this number."""
        flags = np.full(NUM_ROWS, number, bool)
        numbers = np.full(NUM_ROWS, number)
        self.store.add(numbers, numbers, flags, flags, self.seen, flags, flags)

    def play(self, num_steps: int) -> tuple[int, dict[str, Any]]:
        """A turn, and its columns as lists."""
        told: dict[str, Any] = {"observations": [self.seen], "begins": [self.begins], "memory": self.memory}
        columns: list[list[Any]] = [[] for _ in range(5)]
        for _ in range(num_steps):
            step = (self.actions.sample(), self.draws.random(NUM_ROWS), self.flags(), self.flags(), self.flags())
            for column, value in zip(columns, step, strict=True):
                column.append(value)
            self.seen, self.begins = self.observations.sample(), self.flags()
            told["observations"].append(self.seen)
            told["begins"].append(self.begins)
            self.store.add(*step[:4], self.seen, step[4], self.begins)
        self.memory = self.remembered()
        names = ("actions", "rewards", "terminated", "truncated", "valid")
        return self.store.finish(self.memory), {**told, **dict(zip(names, columns, strict=True))}


def assert_told(trajectory: Trajectory, told: dict[str, Any]) -> None:
    for name in ("observations", "actions"):
        stored = getattr(trajectory, name)
        for step, value in enumerate(told[name]):
            assert_same_batch(at(stored, step), value)
    assert np.array_equal(trajectory.rewards, np.array(told["rewards"], np.float32))
    for name in ("terminated", "truncated", "valid", "begins"):
        assert np.array_equal(getattr(trajectory, name), told[name])
    if told["memory"] is None:
        assert trajectory.memory is None
    else:
        assert np.array_equal(trajectory.memory[0], told["memory"][0])


def at(tree: Any, step: int) -> Any:
    if isinstance(tree, dict):
        return {key: at(part, step) for key, part in tree.items()}
    return tuple(at(part, step) for part in tree) if isinstance(tree, tuple) else tree[step]


def a_store(horizon: int = 4, **options: Any) -> TrajectoryStore:
    return TrajectoryStore(OBSERVATIONS, ACTIONS, horizon, NUM_ROWS, **options)


@settings(max_examples=40)
@given(nested, nested, st.booleans(), st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_what_is_written_is_what_is_read(observations: Any, actions: Any, memory: bool, turns: list[int]) -> None:
    form = (np.zeros((NUM_ROWS, 4)),) if memory else None
    store = TrajectoryStore(observations, actions, 4, NUM_ROWS, memory=form)
    life = Life(store, observations, actions, memory)
    for number, num_steps in enumerate(turns):
        turn, told = life.play(num_steps)
        assert turn == number
        assert_told(store.trajectory(turn), told)


def test_beginning_anew_drops_what_was_not_finished() -> None:
    store = a_store()
    life = Life(store, OBSERVATIONS, ACTIONS)
    for _ in range(2):
        life.blank(0)
    observations = np.full((NUM_ROWS, 2), 0.5, np.float32)
    store.begin(observations)
    assert store.num_steps == 0
    life.play(4)
    trajectory = store.trajectory(0)
    assert np.array_equal(trajectory.observations[0], observations)
    assert trajectory.begins[0].all()


def test_a_trajectory_stays_whole_while_the_next_one_is_written() -> None:
    store = a_store()
    life = Life(store, OBSERVATIONS, ACTIONS)
    turn, told = life.play(4)
    read = store.trajectory(turn)
    for _ in range(4):
        life.blank(1)
        assert store.holds(turn)
        assert_told(read, told)


class Reader:
    """In a worker: reads a store that it was given once."""

    def __init__(self) -> None:
        self.store: TrajectoryStore | None = None

    def attach(self, store: TrajectoryStore) -> None:
        self.store = store

    def read(self, turn: int) -> Trajectory | None:
        assert self.store is not None
        return self.store.trajectory(turn).copy() if self.store.holds(turn) else None


def test_a_worker_reads_what_is_written_later() -> None:
    store = a_store(memory=(np.zeros((NUM_ROWS, 4)),))
    with contextlib.closing(open_pool(1)) as pool:
        pool.wait(pool.call(0, HOST, "build", READER, Reader))
        answer(pool, pool.call(0, READER, "attach", store))
        store.close()
        life = Life(store, OBSERVATIONS, ACTIONS, memory=True)
        for _ in range(3):
            turn, told = life.play(3)
            assert_told(answer(pool, pool.call(0, READER, "read", turn)), told)
        assert answer(pool, pool.call(0, READER, "read", turn - 1)) is None


def answer(pool: Any, ticket: Any) -> Any:
    pool.wait(ticket)
    return ticket.replies[0].value if ticket.replies else None


def test_what_does_not_fit_is_refused() -> None:
    store, flags, text = a_store(), np.zeros(NUM_ROWS, bool), spaces.Dict({"text": spaces.Text(3)})
    step: Any = np.zeros(NUM_ROWS, int), np.zeros(NUM_ROWS), flags, flags, np.zeros((NUM_ROWS, 2)), flags, flags
    calls: list[tuple[Any, Any, str]] = [
        (lambda: store.add(*step), RuntimeError, "begin"),
        (store.finish, RuntimeError, "no steps"),
        (
            lambda: store.begin(np.zeros((1, 2), np.float32)),
            ValueError,
            "observations do not fit: .* of 3 rows",
        ),
        (lambda: store.begin(step[4], memory=np.zeros((NUM_ROWS, 4))), ValueError, "where None is wanted"),
        (lambda: TrajectoryStore(text, ACTIONS, 4, NUM_ROWS), TypeError, r"observations\['text'\]"),
        (lambda: TrajectoryStore(OBSERVATIONS, spaces.Sequence(ACTIONS), 4, NUM_ROWS), TypeError, "actions"),
        (lambda: TrajectoryStore(OBSERVATIONS, ACTIONS, 0, 1), ValueError, "at least 1"),
        (lambda: TrajectoryStore(OBSERVATIONS, ACTIONS, 1, 0), ValueError, "at least 1"),
    ]
    for call, error, words in calls:
        with pytest.raises(error, match=words):
            call()
    assert not store.full
    with pytest.raises(RuntimeError, match="4 steps"):
        Life(store, OBSERVATIONS, ACTIONS).play(5)
    assert store.full


def test_a_trajectory_begins_where_the_last_one_ended_and_is_no_copy() -> None:
    store = a_store()
    life = Life(store, OBSERVATIONS, ACTIONS)
    first = store.trajectory(life.play(4)[0]).copy()
    turn = life.play(4)[0]
    second = store.trajectory(turn)
    assert np.array_equal(second.observations[0], first.observations[-1])
    assert np.array_equal(second.begins[0], first.begins[-1])
    second.rewards[0, 0] = 7
    copied = store.trajectory(turn).copy()
    copied.rewards[0, 0] = 8
    assert store.trajectory(turn).rewards[0, 0] == 7


def test_a_trajectory_that_is_not_finished_or_written_over_is_not_read() -> None:
    store = a_store()
    life = Life(store, OBSERVATIONS, ACTIONS)
    for turn in (-2, -1, 0, 1):
        with pytest.raises(LookupError):
            store.trajectory(turn)
    (turn, _), (later, _) = life.play(4), life.play(4)
    assert not store.holds(turn)
    assert store.holds(later)
    with pytest.raises(LookupError, match="turn 0"):
        store.trajectory(turn)
