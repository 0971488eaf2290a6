"""What a policy remembers belongs to one rollout, in whatever tree it lies, and is neither shared nor leaked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

from parallel_envs import ParallelEnvManager, collect
from parallel_envs.rollouts import Rollouts
from parallel_envs.rollouts.rollout import map_tree
from tests.rollouts.players import Acting, scripted, zeros

torch = pytest.importorskip("torch")


class Pair(NamedTuple):
    first: Any
    second: Any


SHARED = np.zeros((1, 2))
KEPT = np.zeros((20, 2))


def inference_zeros(num_rows: int) -> Any:
    with torch.inference_mode():
        return torch.zeros(num_rows, 2)


# Each counts steps in every leaf.
TREES: dict[str, Callable[[int], Any]] = {
    "array": lambda num_rows: np.zeros((num_rows, 2)),
    "tensor": lambda num_rows: torch.zeros(num_rows, 2),
    "dict": lambda num_rows: {"a": np.zeros(num_rows), "b": {"c": torch.zeros(num_rows, 1)}},
    "tuple": lambda num_rows: (np.zeros(num_rows), (), torch.zeros(num_rows)),
    "list": lambda num_rows: [np.zeros((num_rows, 1)), [torch.zeros(num_rows, 2, 2)]],
    "named tuple": lambda num_rows: Pair(np.zeros(num_rows), {"x": None, "y": torch.zeros(num_rows)}),
    "broadcast": lambda num_rows: np.broadcast_to(SHARED, (num_rows, 2)),
    "expanded": lambda num_rows: torch.zeros(1, 2).expand(num_rows, -1),
    "kept": lambda num_rows: KEPT[:num_rows],
    "objects": lambda num_rows: np.array([0] * num_rows, object),
    "inference": inference_zeros,
}


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return [] if tree is None else [np.asarray(tree)]


def mapped(tree: Any) -> Any:
    return map_tree(lambda leaf: leaf + 1, tree)


def counting(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
    for number, leaf in enumerate(leaves(state)):
        rows.record(**{f"leaf {number}": leaf.reshape(len(rows), -1)[:, -1].astype(np.int64)})
    return zeros(observations, state, resets, rows), mapped(state)


def assert_each_counts_its_own(rollouts: Rollouts) -> None:
    for rollout in rollouts:
        assert rollout.records
        for column in rollout.records.values():
            assert column.tolist() == list(range(len(rollout)))


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", TREES)
def test_a_state_never_leaks_into_the_next_rollout(name: str, exact: bool) -> None:
    with ParallelEnvManager([scripted] * 3, num_workers=2, backend="serial") as envs:
        for _ in range(2):
            assert_each_counts_its_own(collect(envs, Acting(counting, TREES[name]), 9, exact=exact))


def test_the_arrays_of_the_policy_itself_are_not_written_to() -> None:
    collect(scripted(), Acting(counting, TREES["kept"]), 3)
    collect(scripted(), Acting(counting, TREES["broadcast"]), 3)
    assert not KEPT.any()
    assert not SHARED.any()


def test_a_state_that_is_written_in_place_is_as_good() -> None:
    def act(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        rows.record(before=state[:, 0].copy())
        state += 1
        return zeros(observations, state, resets, rows), state

    with ParallelEnvManager([scripted] * 3, backend="serial") as envs:
        for rollout in collect(envs, Acting(act, lambda num_rows: np.zeros((num_rows, 1))), 9):
            assert rollout.records["before"].tolist() == list(range(len(rollout)))


def test_a_policy_may_use_its_arrays_again() -> None:
    buffer = np.zeros(8, np.int64)

    def act(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        buffer[: len(rows)] = (state[:, 0] % 3).astype(np.int64)
        rows.record(action=buffer[: len(rows)])
        return buffer[: len(rows)], state + 1

    with ParallelEnvManager([scripted] * 3, backend="serial") as envs:
        for rollout in collect(envs, Acting(act, lambda num_rows: np.zeros((num_rows, 1))), 6):
            assert rollout.actions.tolist() == [step % 3 for step in range(len(rollout))]
            assert rollout.records["action"].tolist() == rollout.actions.tolist()


@pytest.mark.parametrize("single", [False, True])
def test_a_policy_that_writes_into_its_observations_spoils_nothing(single: bool) -> None:
    def act(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        observations[...] = 99
        return zeros(observations, state, resets, rows)

    def act_alone(observation: Any) -> int:
        observation[...] = 99
        return 0

    with ParallelEnvManager([scripted] * 3, backend="serial") as envs:
        rollouts = collect(envs, act_alone if single else Acting(act), 5)
    assert max(np.abs(rollout.chain).max() for rollout in rollouts) <= 1.0


# ---- states that do not fit ----------------------------------------------------------------------


class Odd(Acting):
    """Named in errors."""


BAD_STATES: dict[str, tuple[Callable[[int], Any], Callable[[Any], Any], str]] = {
    "another shape": (lambda n: np.zeros((n, 2)), lambda state: state[:, :1], r"\(\d, 1\)"),
    "too few rows": (lambda n: np.zeros((n, 2)), lambda state: state[:-1], "rows"),
    "too many rows": (lambda n: np.zeros((n, 2)), lambda state: np.concatenate([state, state]), "rows"),
    "no array": (lambda n: np.zeros((n, 2)), lambda state: None, "None"),
    "another key": (lambda n: {"a": np.zeros(n)}, lambda state: {"b": state["a"]}, "'b'"),
    "another length": (lambda n: (np.zeros(n),), lambda state: (), "1 parts"),
    "a tuple for an array": (np.zeros, lambda state: (state,), "array"),
    "floats for integers": (lambda n: np.zeros(n, np.int64), lambda state: state + 0.5, "int64"),
    "more than fits": (lambda n: np.zeros(n, np.int8), lambda state: np.full(len(state), 200), r"200.*int8"),
    "something out of nothing": (lambda n: (), lambda state: np.zeros(2), "initial_state was empty"),
    "something out of None": (lambda n: (None, np.zeros(n)), lambda state: (state[1], state[1]), "None"),
}


@pytest.mark.parametrize("name", BAD_STATES)
def test_a_state_that_is_not_like_the_initial_one_is_refused(name: str) -> None:
    initial, change, word = BAD_STATES[name]
    policy = Odd(lambda observations, state, resets, rows: (np.zeros(len(rows), np.int64), change(state)), initial)
    with ParallelEnvManager([scripted] * 2, backend="serial") as envs, pytest.raises(ValueError, match=f"Odd.*{word}"):
        collect(envs, policy, 4)


@pytest.mark.parametrize("state", [0, np.zeros(()), np.zeros((3, 1)), {"a": [1.0]}, "text"])
def test_an_initial_state_without_rows_is_refused(state: Any) -> None:
    with ParallelEnvManager([scripted] * 2, backend="serial") as envs:
        with pytest.raises(ValueError, match=r"Odd.*initial_state\(2\)"):
            collect(envs, Odd(zeros, lambda num_rows: state), 4)
        assert envs.get_attr("episode") == (-1, -1)
