"""Results of `collect`: whole rollouts, single transitions, or padded sequences; and operations on batches.

A rollout is one episode on one task. Nothing in any of these forms crosses the end of an episode. `Columns` batches
values of a space. The functions on trees (`take_rows`, `put_rows`, ...) work on dicts, tuples and lists of arrays, such
as states of policies, in which every array (NumPy or torch) has the rows along its first axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.vector.shared_arrays import assembler, leaves, only_leaf, snapshot

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """An episode of `len(rollout)` steps. The environment was reset with `seed`; `episode_index` counts the earlier
    rollouts on the same task. Dict and Tuple spaces give dicts and tuples of arrays; values without a fixed shape are a
    tuple with one item a step.
    """

    id: int
    task: Any
    task_id: int
    seed: int
    episode_index: int
    chain: Any
    """All observations, from the first to the last: one more than steps."""
    actions: Any
    rewards: Floats
    terminated: Flags
    truncated: Flags
    records: dict[str, npt.NDArray[Any]]
    """Arrays that the policy recorded, with a row for each step."""
    infos: dict[str, list[Any]]
    """The infos named by `info_keys`, one for each step; None where a step had no info of that name."""
    _columns: Columns = field(repr=False)
    _action_columns: Columns = field(repr=False)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def observations(self) -> Any:
        """The observation before each step."""
        return self._columns.apply(self.chain, lambda part: part[:-1])

    @property
    def next_observations(self) -> Any:
        """The observation after each step: in the last row the final one of the episode."""
        return self._columns.apply(self.chain, lambda part: part[1:])

    @property
    def total_reward(self) -> float:
        return float(self.rewards.sum())

    @property
    def previous_actions(self) -> Any:
        """The action before each step; at the first step zeros, or None where an action has no fixed shape."""
        return self._action_columns.apply(
            self.actions, lambda part: joined([np.zeros_like(part[:1]) if _is_array(part) else (None,), part[:-1]])
        )

    @property
    def previous_rewards(self) -> Floats:
        """The reward before each step, 0 at the first."""
        return np.concatenate([[0.0], self.rewards[:-1]])

    def __repr__(self) -> str:
        return f"Rollout({self.id}, task {self.task_id}, {len(self)} steps, total reward {self.total_reward:.6g})"


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """Single steps, one a row, for Markov agents to learn from."""

    observations: Any
    actions: Any
    rewards: Floats
    terminated: Flags
    truncated: Flags
    next_observations: Any
    rollout_ids: npt.NDArray[np.int64]
    task_ids: npt.NDArray[np.int64]
    records: dict[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.rewards)


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Whole episodes, one a row, padded with zeros (or None), for Memory agents to learn from. Shapes are (rollouts,
    longest, ...). `mask` marks the entries that are steps.
    """

    observations: Any
    previous_actions: Any
    previous_rewards: Floats
    actions: Any
    rewards: Floats
    terminated: Flags
    truncated: Flags
    next_observations: Any
    mask: Flags
    lengths: npt.NDArray[np.int64]
    task_ids: npt.NDArray[np.int64]
    records: dict[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.lengths)


class Rollouts(Sequence[Rollout]):
    """Rollouts in the order of their ids.

    Threads: a value; nothing here changes it once it has been returned.
    """

    def __init__(self, rollouts: Iterable[Rollout] = ()) -> None:
        self._rollouts = sorted(rollouts, key=lambda rollout: rollout.id)

    @overload
    def __getitem__(self, index: int) -> Rollout: ...
    @overload
    def __getitem__(self, index: slice) -> Rollouts: ...
    def __getitem__(self, index: int | slice) -> Rollout | Rollouts:
        return Rollouts(self._rollouts[index]) if isinstance(index, slice) else self._rollouts[index]

    def __len__(self) -> int:
        return len(self._rollouts)

    def __repr__(self) -> str:
        return f"Rollouts({len(self)} rollouts, {self.num_steps} steps)"

    @property
    def num_steps(self) -> int:
        return sum(map(len, self))

    @property
    def total_rewards(self) -> Floats:
        """The sum of rewards of each rollout."""
        return np.array([rollout.total_reward for rollout in self])

    def transitions(self) -> Transitions:
        """Return every step of every rollout."""
        lengths = [len(one) for one in self]
        return Transitions(
            **self._combined(Transitions, joined),
            rollout_ids=np.repeat(np.array([one.id for one in self], np.int64), lengths),
            task_ids=np.repeat(np.array([one.task_id for one in self], np.int64), lengths),
        )

    def sequences(self) -> Sequences:
        """Return every rollout as a row, padded to the longest."""
        lengths = np.array([len(one) for one in self], np.int64)
        longest = int(lengths.max(initial=0))
        return Sequences(
            **self._combined(Sequences, lambda parts: _padded(parts, longest)),
            mask=np.arange(longest) < lengths[:, None],
            lengths=lengths,
            task_ids=np.array([one.task_id for one in self], np.int64),
        )

    def _combined(self, form: Any, combine: Callable[[Sequence[Any]], Any]) -> dict[str, Any]:
        """Return the fields of `form` that a rollout has too. `combine` makes each of the parts of all rollouts."""
        if not self._rollouts:
            raise ValueError("There are no rollouts to make arrays of. Collect at least one.")
        first, fields = self[0], {}
        for name in form.__slots__:
            if hasattr(first, name) and name not in ("task_id", "records"):
                columns = first._columns if "observations" in name else first._action_columns
                parts = [getattr(one, name) for one in self]
                is_space = name.endswith(("observations", "actions"))
                fields[name] = columns.combine(parts, combine) if is_space else combine(parts)
        fields["records"] = {name: combine([one.records[name] for one in self]) for name in first.records}
        return fields


# ---- batches of a space's values ------------------------------------------------------------------------------------


class Columns:
    """Batches values of a space. Parts without a fixed shape are a tuple with one item a row."""

    def __init__(self, space: Space[Any]) -> None:
        self._space, self._leaves, self._assemble = space, leaves(space), assembler(space)
        first = self._leaves[0]
        self.is_array = only_leaf(self._leaves) is not None
        """True if a batch is a single array."""
        self.dtype, self.shape = first.dtype, first.shape

    def __reduce__(self) -> tuple[type[Columns], tuple[Space[Any]]]:
        """Pickle the space alone: the assembler is a function that cannot be pickled."""
        return Columns, (self._space,)

    def row(self, batch: Any, row: int) -> Any:
        """Copy one value of a batch: a policy may write into the batches that it gets and returns."""
        if self.is_array:
            return batch[row].copy()
        return self._assemble([snapshot(leaf.of(batch)[row]) for leaf in self._leaves])

    def fitted(self, value: Any) -> Any:
        """Return a value as a row of a batch would be: in the types of the space, whatever the environment returned."""
        parts = [(leaf, leaf.of(value)) for leaf in self._leaves]
        return self._assemble(
            [np.asarray(part).astype(leaf.dtype)[()] if leaf.fixed else snapshot(part) for leaf, part in parts]
        )

    def checked(self, batch: Any, num_rows: int) -> Any:
        """Return a batch of so many rows as arrays in the types of the space. Raise ValueError for anything else."""
        parts: list[Any] = []
        for leaf in self._leaves:
            try:
                values = leaf.of(batch)
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(f"there is no part{leaf.name}") from error
            if not leaf.fixed:
                is_sequence = isinstance(values, Sequence | np.ndarray) and not isinstance(values, str | bytes)
                if not is_sequence or len(values) != num_rows:
                    raise ValueError(f"{values!r}{leaf.name} is not a sequence of {num_rows} items")
                parts.append(tuple(values))
                continue
            given = np.asarray(values)
            if given.dtype.kind not in "biuf":
                raise ValueError(f"the values{leaf.name} are of type {given.dtype} where numbers are wanted")
            if given.shape != (num_rows, *leaf.shape):
                raise ValueError(f"the shape{leaf.name} is {given.shape} where {(num_rows, *leaf.shape)} is wanted")
            if given.dtype == leaf.dtype:
                parts.append(given)
                continue
            with np.errstate(over="ignore", invalid="ignore"):
                typed = given.astype(leaf.dtype)
            if typed.dtype.kind in "biu" and not np.array_equal(typed, given):
                raise ValueError(
                    f"the values{leaf.name} are not whole numbers, or do not all fit into {typed.dtype}: "
                    f"{given.tolist()}"
                )
            parts.append(typed)
        return self._assemble(parts)

    def take(self, batch: Any, rows: Sequence[int]) -> Any:
        """Return a batch of some rows."""
        if self.is_array:
            return batch[rows]
        return self.apply(batch, lambda part: part[rows] if _is_array(part) else tuple(part[row] for row in rows))

    def stack(self, rows: Sequence[Any]) -> Any:
        """Return a batch of these values, at least one."""
        if self.is_array:
            return np.stack(rows)
        columns = [[leaf.of(row) for row in rows] for leaf in self._leaves]
        return self._assemble(
            [
                np.stack(values) if leaf.fixed else tuple(values)
                for leaf, values in zip(self._leaves, columns, strict=True)
            ]
        )

    def apply(self, batch: Any, function: Callable[[Any], Any]) -> Any:
        """Return the batch with `function(part)` in the place of each part."""
        return self._assemble([function(leaf.of(batch)) for leaf in self._leaves])

    def combine(self, batches: Sequence[Any], function: Callable[[Sequence[Any]], Any]) -> Any:
        """Return the batch whose parts are `function(the parts of all batches)`."""
        return self._assemble([function([leaf.of(batch) for batch in batches]) for leaf in self._leaves])


def _is_array(part: Any) -> bool:
    return isinstance(part, np.ndarray)


def joined(parts: Sequence[Any]) -> Any:
    """Return one array, or one tuple of items, of all the rows of these parts."""
    return np.concatenate(parts) if _is_array(parts[0]) else tuple(item for part in parts for item in part)


def _padded(parts: Sequence[Any], length: int) -> Any:
    """Return parts of different lengths as rows of one, padded with zeros (or None)."""
    if not _is_array(parts[0]):
        return tuple((*part, *[None] * (length - len(part))) for part in parts)
    rows = np.zeros((len(parts), length, *parts[0].shape[1:]), parts[0].dtype)
    for row, part in zip(rows, parts, strict=True):
        row[: len(part)] = part
    return rows


# ---- trees of arrays ------------------------------------------------------------------------------------------------


def space_tree(space: Space[Any], what: str, make: Callable[[int, np.dtype[Any], tuple[int, ...]], Any]) -> Any:
    """Return a tree of arrays in the form of a space. `make` gets the number, dtype and shape of each leaf. Raise
    TypeError if values of some leaf have no fixed shape.
    """
    arrays = []
    for number, leaf in enumerate(leaves(space)):
        if leaf.dtype is None:
            raise TypeError(
                f"{what}{leaf.name} of {space} has no fixed shape, so it cannot be stored in an array. Store parts "
                "made of Box, Discrete, MultiDiscrete and MultiBinary only."
            )
        arrays.append(make(number, leaf.dtype, leaf.shape))
    return assembler(space)(arrays)


_NODES = dict, tuple, list  # made once: `map_tree` is called many times a step


def map_tree(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """Return a tree of `function(leaf, *leaves)`, where `leaves` are from other trees of the same form. Raises
    ValueError if the trees have different forms.
    """
    if tree is None:
        if any(other is not None for other in others):
            raise ValueError(f"there is {others[0]!r} where None is wanted")
        return None
    if not isinstance(tree, _NODES):
        return function(tree, *others)
    for other in others:
        if not isinstance(other, dict if isinstance(tree, dict) else tuple | list) or len(other) != len(tree):
            raise ValueError(f"there is {other!r} where a {type(tree).__name__} of {len(tree)} parts is wanted")
    if isinstance(tree, dict):
        if any(other.keys() != tree.keys() for other in others):
            raise ValueError(f"the keys are {list(others[0])} where {list(tree)} are wanted")
        return {key: map_tree(function, part, *(other[key] for other in others)) for key, part in tree.items()}
    parts = [map_tree(function, *group) for group in zip(tree, *others, strict=True)]
    return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)


def tree_leaves(tree: Any) -> list[Any]:
    """Return the leaves of a tree, in the order in which `map_tree` visits them."""
    found: list[Any] = []
    map_tree(found.append, tree)
    return found


def take_rows(tree: Any, rows: Any) -> Any:
    """Return these rows of every leaf: a copy, or a view if `rows` is a slice."""
    return map_tree(lambda leaf: leaf[rows], tree)


def check_rows(tree: Any, num_rows: int) -> None:
    """Raise ValueError unless every leaf is an array of so many rows."""
    for leaf in tree_leaves(tree):
        _check_leaf(leaf, num_rows)


def _check_leaf(leaf: Any, num_rows: int) -> None:
    shape = getattr(leaf, "shape", None)
    if not shape or shape[0] != num_rows:
        raise ValueError(f"there is {_described(leaf)} where an array of {num_rows} rows is wanted")


def check_fits(tree: Any, values: Any, num_rows: int, what: str = "", *, num_axes: int = 1) -> None:
    """Raise ValueError unless `values` is a tree of the same form with so many rows. In `tree` the shape of one value
    follows after `num_axes` axes. Values are not broadcast, and a number may change only by the precision of floats:
    anything else is a mistake. The error names `what`.
    """
    if type(tree) is type(values) is np.ndarray:
        wanted = tree.dtype, (num_rows, *tree.shape[num_axes:])
        if (values.dtype, values.shape) == wanted:  # nearly all are, and each step has some
            return

    def check(leaf: Any, value: Any) -> None:
        shape = leaf.shape[num_axes:]
        if getattr(value, "shape", None) != (num_rows, *shape):
            _check_leaf(value, num_rows)
            raise ValueError(f"there is {_described(value)} where rows of the shape {tuple(shape)} are wanted")
        if leaf.dtype != value.dtype and all(isinstance(one.dtype, np.dtype) for one in (leaf, value)):
            if not np.can_cast(value.dtype, leaf.dtype, "same_kind"):
                raise ValueError(f"there is {_described(value)} where {leaf.dtype} is wanted")
            is_whole = leaf.dtype.kind in "iu" and value.dtype.kind in "iu"
            if is_whole and not np.array_equal(value.astype(leaf.dtype), value):
                raise ValueError(f"there is {value.tolist()}, which does not all fit into {leaf.dtype}")

    try:
        map_tree(check, tree, values)
    except ValueError as error:
        if not what:
            raise
        raise ValueError(f"The {what} do not fit: {error}.") from error


def put_rows(tree: Any, rows: Any, values: Any) -> Any:
    """Replace these rows of a tree (or one index of all rows) in place and return the tree. See `check_fits`."""
    if type(tree) is type(values) is np.ndarray:
        tree[rows] = values
        return tree

    def write(leaf: Any, value: Any) -> Any:
        leaf[rows] = value
        return leaf

    return map_tree(write, tree, values)


def _described(leaf: Any) -> str:
    shape = getattr(leaf, "shape", None)
    return repr(leaf) if shape is None else f"an array of {leaf.dtype} with the shape {tuple(shape)}"
