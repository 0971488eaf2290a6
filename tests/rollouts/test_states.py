"""What a policy remembers belongs to one rollout, in whatever tree it lies, and is neither shared nor leaked."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from parallel_envs import ParallelEnvManager, collect
from parallel_envs.rollouts.rollout import map_tree
from tests.rollouts.players import Acting, scripted, zeros

torch = pytest.importorskip("torch")


class Pair(NamedTuple):
    first: Any
    second: Any


SHARED = np.zeros((1, 2))
KEPT = np.zeros((20, 2))


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
    "inference": torch.inference_mode()(lambda num_rows: torch.zeros(num_rows, 2)),
}


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        tree = list(tree.values())
    if isinstance(tree, tuple | list):
        return [leaf for part in tree for leaf in leaves(part)]
    return [] if tree is None else [np.asarray(tree)]


def counting(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
    for number, leaf in enumerate(leaves(state)):
        rows.record(**{f"leaf {number}": leaf.reshape(len(rows), -1)[:, -1].astype(np.int64)})
    return zeros(observations, state, resets, rows), map_tree(lambda leaf: leaf + 1, state)


@pytest.mark.parametrize("exact", [False, True])
def test_a_state_never_leaks_into_the_next_rollout(exact: bool) -> None:
    with ParallelEnvManager([scripted] * 3, num_workers=2, backend="serial") as envs:
        for tree in TREES.values():
            both = [collect(envs, Acting(counting, tree), 5, exact=exact) for _ in range(2)]
            for rollout in (*both[0], *both[1]):
                assert rollout.records
                for column in rollout.records.values():
                    assert column.tolist() == list(range(len(rollout)))
    assert not KEPT.any()  # the policy's own arrays are not written to
    assert not SHARED.any()


class Odd(Acting):
    """Named in errors."""


BAD_STATES: list[tuple[Callable[[int], Any], Callable[[Any], Any], str]] = [
    (lambda n: np.zeros((n, 2)), lambda state: state[:, :1], r"\(\d, 1\)"),
    (lambda n: np.zeros((n, 2)), lambda state: state[:-1], "rows"),
    (lambda n: np.zeros((n, 2)), lambda state: np.concatenate([state, state]), "rows"),
    (lambda n: np.zeros((n, 2)), lambda state: None, "None"),
    (lambda n: {"a": np.zeros(n)}, lambda state: {"b": state["a"]}, "'b'"),
    (lambda n: (np.zeros(n),), lambda state: (), "1 parts"),
    (np.zeros, lambda state: (state,), "array"),
    (lambda n: np.zeros(n, np.int64), lambda state: state + 0.5, "int64"),
    (lambda n: np.zeros(n, np.int8), lambda state: np.full(len(state), 200), r"200.*int8"),
    (lambda n: (), lambda state: np.zeros(2), "0 parts"),
    (lambda n: (None, np.zeros(n)), lambda state: (state[1], state[1]), "None"),
]


def test_a_state_that_is_not_like_the_initial_one_is_refused() -> None:
    with ParallelEnvManager([scripted] * 2, backend="serial") as envs:
        for initial, change, word in BAD_STATES:
            act = partial(lambda change, seen, state, resets, rows: (np.zeros(len(rows), int), change(state)), change)
            with pytest.raises(ValueError, match=f"Odd.*{word}"):
                collect(envs, Odd(act, initial), 4)


def test_an_initial_state_without_rows_is_refused() -> None:
    with ParallelEnvManager([scripted] * 2, backend="serial") as envs:
        for state in (0, np.zeros(()), np.zeros((3, 1)), {"a": [1.0]}, "text"):
            initial: Callable[[int], Any] = partial(lambda state, num_rows: state, state)
            with pytest.raises(ValueError, match=r"Odd.*initial_state\(2\)"):
                collect(envs, Odd(zeros, initial), 4)
        assert envs.get_attr("episode") == (-1, -1)


def test_a_policy_may_use_its_arrays_again_and_write_into_those_it_is_given() -> None:
    buffer = np.zeros(8, np.int64)

    def act(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        observations[...] = 99
        buffer[: len(rows)] = (state[:, 0] % 3).astype(np.int64)
        rows.record(action=buffer[: len(rows)], before=state[:, 0].copy())
        state += 1
        return buffer[: len(rows)], state

    def act_alone(observation: Any) -> int:
        observation[...] = 99
        return 0

    with ParallelEnvManager([scripted] * 3, backend="serial") as envs:
        rollouts = collect(envs, Acting(act, lambda num_rows: np.zeros((num_rows, 1))), 9)
        alone = collect(envs, act_alone, 5)
    for rollout in rollouts:
        assert rollout.records["before"].tolist() == list(range(len(rollout)))
        assert rollout.actions.tolist() == [step % 3 for step in range(len(rollout))]
        assert rollout.records["action"].tolist() == rollout.actions.tolist()
    assert max(np.abs(rollout.chain).max() for rollout in (*rollouts, *alone)) <= 1.0
