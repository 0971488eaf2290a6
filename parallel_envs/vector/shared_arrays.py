"""The arrays that the caller and the workers share: where they lie, and how values get into them and out of them.

| array | written by | read by | when written; when read |
|---|---|---|---|
| actions, and the dtype of each env's action | caller | worker | before the bell; after it |
| observations (two sets in turn if they are not copied) | worker | caller | before the completion; after it |
| rows (reward, flags, schema of the info), numeric infos | worker | caller | before the completion; after it |
| counters | worker | caller | at any time |

Each row belongs to one env and has one writer, which never changes. The bell and the completion order the accesses, so
no lock is needed.
"""

from __future__ import annotations

import copy
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Dict, Space, Tuple

from parallel_envs.engine import SharedBlock, dump_reply, load_reply
from parallel_envs.vector.checks import env_names
from parallel_envs.vector.spaces import Leaf, assembler, leaves, only_leaf

INFO_BYTES = 1024
"""Bytes for the numeric infos of one env."""

ACTION_DTYPES = tuple(map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")))
"""The dtypes that an action may have in shared memory. An action reaches the env in the dtype that the caller gave."""

_CODE_OF = {dtype: code for code, dtype in enumerate(ACTION_DTYPES)}
_WIDEST = max(dtype.itemsize for dtype in ACTION_DTYPES)

ROW = np.dtype(
    {
        "names": ["reward", "info", "terminated", "truncated", "task_id", "episode_index"],
        "formats": ["f8", "i8", "?", "?", "i8", "i8"],
        "offsets": [0, 8, 16, 17, 24, 32],
        "itemsize": 64,  # a cache line: workers on different cores do not write to the same one
    }
)
"""Everything a step returns besides the observation (see `infos` for `info`), and the task and episode of the env."""

TASK_OFFSET = 24

pack_row = struct.Struct("=dq??").pack_into
"""Write the fields that a step changes at once: `pack_row(buffer, offset, reward, info, terminated, truncated)`."""

NOT_STEPPED, RESET_SECONDS, AUTORESET_SECONDS, MESSAGE_STEP_SECONDS, COUNTERS = 0, 1, 2, 3, 8
"""Columns of the counters of a worker, and the number of columns.

`NOT_STEPPED` counts envs that were asked to step but were reset instead, or raised. The others are seconds: in resets
that were asked for, in autoresets, and in steps that were asked for by message.
"""

_ALIGNMENT = 64  # a cache line, so that no two arrays share one


# ---- where the arrays lie --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Field:
    """An array in a block: its name, its dtype and shape, and the offset where it starts."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int


def plan(arrays: Sequence[tuple[str, Any, tuple[int, ...]]]) -> tuple[tuple[Field, ...], int]:
    """Return places in one block for arrays of (name, dtype, shape), and the bytes that the block needs."""
    fields, end = [], 0
    for name, dtype, shape in arrays:
        field = Field(name, np.dtype(dtype), shape, end)
        fields.append(field)
        num_bytes = field.dtype.itemsize * int(np.prod(shape))
        end += -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
    return tuple(fields), end


@dataclass(frozen=True, slots=True)
class ArrayPlan:
    """The places of all arrays. The caller makes the plan once and sends it to every worker."""

    num_envs: int
    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    fields: tuple[Field, ...]
    num_bytes: int
    num_sets: int

    @classmethod
    def of(
        cls,
        observation: tuple[Leaf, ...],
        action_space: Space[Any],
        num_envs: int,
        num_workers: int,
        num_sets: int,
    ) -> ArrayPlan:
        """Return a plan with `num_sets` sets of observations."""
        action = leaves(action_space)
        arrays: list[tuple[str, Any, tuple[int, ...]]] = [
            ("rows", ROW, (num_envs,)),
            ("info_rows", "u1", (num_envs, INFO_BYTES)),
            ("counters", "f8", (num_workers, COUNTERS)),
            ("action_dtypes", "u1", (num_envs, len(action))),
        ]
        arrays += [
            (f"action{position}", "u1", (num_envs, max(leaf.size, 1) * _WIDEST)) for position, leaf in enumerate(action)
        ]
        arrays += [
            (f"observation{position}.{which}", leaf.dtype, (num_envs, *leaf.shape))
            for which in range(num_sets)
            for position, leaf in enumerate(observation)
            if leaf.fixed
        ]
        fields, num_bytes = plan(arrays)
        return cls(num_envs, observation, action, fields, num_bytes, num_sets)


class SharedArrays:
    """The arrays of an `ArrayPlan`, in a block of shared memory."""

    def __init__(self, plan: ArrayPlan, block: SharedBlock) -> None:
        self.plan, self.block = plan, block
        arrays = {field.name: block.array(field.dtype, field.shape, field.offset) for field in plan.fields}
        self.rows: npt.NDArray[np.void] = arrays["rows"]
        self.rewards: npt.NDArray[np.float64] = self.rows["reward"]
        self.terminated: npt.NDArray[np.bool_] = self.rows["terminated"]
        self.truncated: npt.NDArray[np.bool_] = self.rows["truncated"]
        self.info_schemas: npt.NDArray[np.int64] = self.rows["info"]
        self.info_rows: npt.NDArray[np.uint8] = arrays["info_rows"]
        self.counters: npt.NDArray[np.float64] = arrays["counters"]
        self.action_dtypes: npt.NDArray[np.uint8] = arrays["action_dtypes"]
        self.actions: list[list[npt.NDArray[Any]]] = []
        """For each leaf, the same memory once for each of `ACTION_DTYPES`."""
        for position, leaf in enumerate(plan.action):
            rows = arrays[f"action{position}"]
            shape, strides = (len(rows), *leaf.shape), rows.strides[:1]  # a row has room for the widest dtype
            self.actions.append(
                [
                    np.ndarray(shape, dtype, rows.data, strides=(*strides, *np.empty(leaf.shape, dtype).strides))
                    for dtype in ACTION_DTYPES
                ]
            )
        self.observations = [
            [arrays.get(f"observation{position}.{which}") for position in range(len(plan.observation))]
            for which in range(plan.num_sets)
        ]
        """For each set and each leaf, its array, or None for a leaf that travels by pipe."""


def cells(array: npt.NDArray[Any]) -> memoryview[Any]:
    """Return the items of an array for reading and writing one at a time, which is quicker than through NumPy."""
    return memoryview(array.data)


# ---- the caller's side -----------------------------------------------------------------------------------------------


class ActionWriter:
    """Writes batches of actions into shared memory, in the dtype in which they were given.

    Actions of a Dict or Tuple space have two forms: batched, as in Gymnasium (a dict or a tuple with one batch for each
    part of the space), or a list with one action for each env (see `_is_one_by_one`). Everything is checked before
    anything is written.
    """

    def __init__(self, arrays: SharedArrays, action_space: Space[Any]) -> None:
        self._arrays = arrays
        self._single_type = (
            dict if isinstance(action_space, Dict) else tuple if isinstance(action_space, Tuple) else None
        )
        self._leaves = arrays.plan.action
        self._num_envs = arrays.plan.num_envs
        self._usual: tuple[Any, int, Any] = (None, 0, None)

    def write(self, actions: Any, envs: Sequence[int] | None = None) -> tuple[int, dict[int, list[Any]] | None]:
        """Write the actions of `envs` (None: of all envs).

        Returns the place of the dtype in `ACTION_DTYPES`, if actions have a single leaf; and by env the leaves without
        a fixed shape, which must be sent by pipe (None: there are none).
        """
        dtype, code, view = self._usual
        if envs is None and type(actions) is np.ndarray and actions.dtype is dtype and actions.shape == view.shape:
            view[...] = actions  # dtype and shape are those of the last batch: nothing to check
            return code, None
        numbers = range(self._num_envs) if envs is None else envs
        checked = self._checked(actions, numbers)
        rows: Any = slice(None) if envs is None else envs
        codes = []
        for position, (leaf, values) in enumerate(zip(self._leaves, checked, strict=True)):
            if leaf.fixed:
                codes.append(_CODE_OF[values.dtype])
                self._arrays.actions[position][codes[-1]][rows] = values
                self._arrays.action_dtypes[rows, position] = codes[-1]
        if len(codes) < len(self._leaves):
            loose = [values for leaf, values in zip(self._leaves, checked, strict=True) if not leaf.fixed]
            return 0, {env: [values[row] for values in loose] for row, env in enumerate(numbers)}
        if len(codes) == 1 and envs is None:
            self._usual = checked[0].dtype, codes[0], self._arrays.actions[0][codes[0]]
        return codes[0] if codes else 0, None

    def _checked(self, actions: Any, envs: Sequence[int]) -> list[Any]:
        """Return the values of each leaf for these envs, as an array or, without a fixed shape, as a list."""
        one_by_one = self._is_one_by_one(actions)
        if one_by_one and len(actions) != len(envs):
            were = "1 action was" if len(actions) == 1 else f"{len(actions)} actions were"
            raise ValueError(
                f"{were} given for {len(envs)} environments ({env_names(envs)}): {_shown(actions)}. Give one for each."
            )
        checked = []
        for leaf in self._leaves:
            if one_by_one:
                values: Any = [_part(leaf, action, f"Action {row} has") for row, action in enumerate(actions)]
            else:
                values = _part(leaf, actions, "The actions have")
            checked.append((_checked_array if leaf.fixed else _checked_items)(leaf, values, len(envs)))
        return checked

    def _is_one_by_one(self, actions: Any) -> bool:
        """Return whether `actions` is a list with one action for each env of a Dict or Tuple space.

        The types alone decide, never the lengths: a list of dicts for a Dict space, a list of tuples for a Tuple space.
        A list of arrays and a tuple of tuples are therefore the batched form of a Tuple space. For a Dict space one
        dict in the list is enough, since the batched form is never a list; other items are refused by their number.
        """
        kind = self._single_type
        if kind is None or type(actions) is not list:
            return False
        return not actions or (any if kind is dict else all)(isinstance(action, kind) for action in actions)


def _part(leaf: Leaf, value: Any, subject: str) -> Any:
    """Return the part of an action, or of a batch of actions, that belongs to the leaf."""
    try:
        return leaf.of(value)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(f"{subject} no part{leaf.name}, which the action space asks for: {_shown(value)}.") from error


def _checked_array(leaf: Leaf, values: Any, count: int) -> npt.NDArray[Any]:
    try:
        array = np.asarray(values)
    except Exception as error:
        raise ValueError(f"The actions{leaf.name} are not an array: {_shown(values)} ({error}).") from error
    if array.shape != (count, *leaf.shape):
        raise (ValueError if array.ndim else TypeError)(  # of a single value the type is wrong, as in Gymnasium
            f"Actions{leaf.name} of shape {array.shape} were given for {count} environments, whose actions have shape "
            f"{leaf.shape}: {_shown(values)}. Give an array of shape {(count, *leaf.shape)}."
        )
    array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    if array.dtype not in _CODE_OF:
        raise TypeError(
            f"Actions{leaf.name} of dtype {array.dtype} were given: {_shown(values)}. "
            f"Give numbers, such as {leaf.dtype}."
        )
    return array


def _checked_items(leaf: Leaf, values: Any, count: int) -> list[Any]:
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise TypeError(f"The actions{leaf.name} are not a sequence of {count} items: {_shown(values)}.")
    items = list(values)
    if len(items) != count:
        raise ValueError(f"{len(items)} actions{leaf.name} were given for {count} environments. Give one for each.")
    return items


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# ---- the worker's side -----------------------------------------------------------------------------------------------


class ActionReader:
    """Reads the action of one env at a time, as the caller gave it.

    If an action is a single leaf of a fixed shape, `views` holds the same memory once for each of `ACTION_DTYPES`, and
    `shaped` says that an item of it is an array, which must be copied before an env may keep it. Otherwise `views` is
    None and `compose` must be called. `parts` holds, by env, the leaves without a fixed shape.
    """

    def __init__(self, arrays: SharedArrays, action_space: Space[Any]) -> None:
        self.parts: Mapping[int, Sequence[Any]] = {}
        self._leaves = arrays.plan.action
        self._dtypes = cells(arrays.action_dtypes)
        self._actions = arrays.actions
        self._assemble = assembler(action_space)
        only = only_leaf(self._leaves)
        self.shaped = only is not None and only.shape != ()
        self.views = None if only is None else arrays.actions[0]

    def compose(self, env: int) -> Any:
        """Return an action that has several leaves, or a leaf without a fixed shape."""
        loose = iter(self.parts.get(env, ()))
        values = []
        for position, leaf in enumerate(self._leaves):
            if leaf.fixed:
                value = self._actions[position][self._dtypes[env, position]][env]
                values.append(value.copy() if leaf.shape else value)
            else:
                values.append(next(loose))
        return self._assemble(values)


class ObservationWriter:
    """Writes the leaves of an observation into their arrays.

    If an observation is a single leaf of a fixed shape, `arrays` (one for each set) and `shape` say where it goes and
    which shape it must have. Otherwise `shape` is None, which no observation has, and `write` must be called.
    """

    def __init__(self, arrays: SharedArrays) -> None:
        parts = arrays.plan.observation
        self._sets = [list(zip(parts, columns, strict=True)) for columns in arrays.observations]
        only = only_leaf(parts)
        self.shape = None if only is None else only.shape
        self.arrays: list[Any] = [None if only is None else columns[0] for columns in arrays.observations]

    def write(self, which_set: int, env: int, observation: Any) -> list[Any] | None:
        """Write the leaves that have an array. Return the other leaves in their order, or None if there are none."""
        loose: list[Any] = []
        for leaf, array in self._sets[which_set]:
            value = leaf.of(observation)
            if array is None:
                loose.append(value if leaf.dtype is None else _fitting(value, leaf).astype(leaf.dtype, copy=False))
            elif type(value) is np.ndarray and value.shape == leaf.shape:
                array[env] = value
            else:
                array[env] = _fitting(value, leaf)
        return loose or None


def _fitting(value: Any, leaf: Leaf) -> npt.NDArray[Any]:
    """Return the value as an array. A value of another shape than the leaf's is an error; it is never broadcast."""
    array = np.asarray(value)
    if array.shape != leaf.shape:
        raise ValueError(
            f"The environment returned an observation{leaf.name} of shape {array.shape}, but its observation space "
            f"says {leaf.shape}. Correct the environment or its observation_space."
        )
    return array


_OF_SEVERAL = (
    " Environments of several agents are for MultiAgentEnvManager; those of Gymnasium that keep agents in tuples can "
    "be given to it by parallel_envs.tuple_agents."
)


def as_float(reward: Any, of_one: bool = False) -> float:
    """Return a reward as a float. Arrays of one item are accepted. `of_one`: the env is said to have one agent."""
    try:
        return float(reward) if not isinstance(reward, np.ndarray) else float(reward.reshape(()))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"The environment returned the reward {reward!r} of type {type(reward).__name__}. "
            f"A reward is a single number.{_OF_SEVERAL if of_one and isinstance(reward, list | tuple) else ''}"
        ) from error


# ---- values that leave an env by reference ---------------------------------------------------------------------------

_CONSTANT = frozenset((int, float, bool, str, bytes, type(None)))


def snapshot(value: Any) -> Any:
    """Return a copy that later changes of the original do not touch, or the original if it cannot be copied."""
    if type(value) is np.ndarray and value.dtype != object:
        return value.copy()
    if type(value) is dict and not value:
        return {}
    if type(value) in _CONSTANT:
        return value
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  # deepcopy runs user code; sharing is what plain Gymnasium does
        return value


class Packed:
    """A value that was pickled at once, so that nothing done later changes it.

    A value that cannot be pickled raises here, as an error of its own env, and not when the reply of the worker is
    pickled as a whole.
    """

    __slots__ = ("data",)

    def __init__(self, value: Any) -> None:
        self.data = dump_reply(value)

    def __reduce__(self) -> tuple[Any, ...]:
        return _repacked, (self.data,)


def _repacked(data: bytes) -> Packed:
    packed = Packed.__new__(Packed)
    packed.data = data
    return packed


def unpacked(value: Any) -> Any:
    """Return the value of a `Packed`. Any other value is returned as it is."""
    return load_reply(value.data) if isinstance(value, Packed) else value
