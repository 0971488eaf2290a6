"""What a policy answers, checked and brought into one form before anything is done with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.policies import BatchPolicy, FunctionPolicy
from parallel_envs.policies.base import NETWORK_HINT, is_network
from parallel_envs.rollouts import trees
from parallel_envs.rollouts.columns import Columns


def initial_state(policy: BatchPolicy, num_rows: int) -> Any:
    """The state of rows that are about to begin: a copy, since the policy may give the same arrays each time."""
    state = policy.initial_state(num_rows)
    try:
        trees.check(state, num_rows)
    except ValueError as error:
        raise ValueError(
            f"{policy!r} gave an initial_state({num_rows}) that is no tree of arrays with {num_rows} rows: {error}."
        ) from error
    return trees.take(state, np.arange(num_rows))


def parted(policy: BatchPolicy, answer: Any) -> tuple[Any, Any]:
    """The actions and the state that `act` has returned."""
    if not isinstance(answer, tuple) or len(answer) != 2:
        raise TypeError(f"{policy!r} returned {answer!r} from act. Return the pair (actions, state).")
    return answer


def put_state(policy: BatchPolicy, state: Any, rows: npt.NDArray[np.intp], values: Any) -> Any:
    """The state with these rows replaced by what the policy returned for them."""
    if trees.is_empty(state):
        if trees.is_empty(values):
            return state
        raise ValueError(
            f"{policy!r} returned a state of rows whose initial_state was empty, so there is no place to keep it. "
            "Have initial_state return a tree of the same form."
        )
    try:
        return trees.put(state, rows, values)
    except ValueError as error:
        raise ValueError(
            f"{policy!r} returned a state for {len(rows)} rows that is not of the form of its initial_state: {error}."
        ) from error


def actions(policy: BatchPolicy, given: Any, columns: Columns, num_rows: int) -> Any:
    """The actions of so many rows as a batch, in the types of the space: who shares a batch decides nothing."""
    try:
        batch = columns.checked(columns.stack(given) if isinstance(given, list) and given else given, num_rows)
        return columns.typed(batch)
    except (ValueError, TypeError, KeyError, IndexError, RuntimeError) as error:
        is_bare = isinstance(policy, FunctionPolicy) and is_network(policy.function)
        help_ = NETWORK_HINT if is_bare else "Return a batch with a row for each, or a list of one action for each."
        raise ValueError(
            f"{policy!r} returned actions for {num_rows} rows that do not fit the action space: {error}. {help_}"
        ) from error


def records(
    policy: BatchPolicy, given: Mapping[str, Any], num_rows: int, before: Mapping[str, Any] | None
) -> dict[str, npt.NDArray[Any]]:
    """What the policy has recorded: copies, since it may use its arrays again. `before` is what it recorded last."""
    columns = {name: np.array(column) for name, column in given.items()}
    if before is not None and columns.keys() != before.keys():
        raise ValueError(
            f"{policy!r} recorded {sorted(columns)}, and {sorted(before)} in the call before. Record the same at each."
        )
    for name, column in columns.items():
        if column.shape[:1] != (num_rows,):
            raise ValueError(
                f"{policy!r} recorded {name!r} with the shape {column.shape} for {num_rows} rows. "
                "Record a row for each."
            )
    return columns
