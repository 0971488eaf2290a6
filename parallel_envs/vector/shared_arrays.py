"""The leaves of spaces, and the arrays that the caller and the workers share: how values get into them and out of them.

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
import math
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Space, Text, Tuple
from gymnasium.spaces import Sequence as SequenceSpace
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from parallel_envs.checks import hint
from parallel_envs.engine import ArrayLayout, SharedBlock, dump_reply, load_reply
from parallel_envs.vector.env_errors import env_names

_FIXED = (Box, Discrete, MultiDiscrete, MultiBinary)
_KNOWN = (*_FIXED, Dict, Tuple, Graph, OneOf, SequenceSpace, Text)

SpacePair = tuple[Space[Any], Space[Any]]
"""The space of one env, and the space of the batch."""


# ---- the leaves of a space -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of a space that has no parts itself. `path` leads from the root of the space to the leaf. `dtype` is None
    if values have no fixed shape: such values cannot lie in an array and travel by pipe. A leaf with a fixed shape
    travels by pipe too if it is `piped`; the shape of its values is checked all the same.
    """

    path: tuple[str | int, ...]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...] = ()
    piped: bool = False

    @property
    def fixed(self) -> bool:
        """Return whether values of the leaf lie in an array."""
        return self.dtype is not None and not self.piped

    @property
    def name(self) -> str:
        """Return the path as it is written in code, such as `['camera'][0]`."""
        return "".join(f"[{step!r}]" for step in self.path)

    def of(self, value: Any) -> Any:
        """Return the part of a value of the whole space that belongs to this leaf."""
        for step in self.path:
            value = value[step]
        return value


def _parts(space: Space[Any]) -> Iterable[tuple[str | int, Space[Any]]] | None:
    """Return the parts of a space by key, or None if it has no parts."""
    if isinstance(space, Dict):
        return space.spaces.items()
    return enumerate(space.spaces) if isinstance(space, Tuple) else None


def leaves(space: Space[Any], path: tuple[str | int, ...] = ()) -> tuple[Leaf, ...]:
    """Return the leaves of `space`, in the order in which the function made by `assembler` takes them."""
    if (parts := _parts(space)) is not None:
        return tuple(leaf for key, part in parts for leaf in leaves(part, (*path, key)))
    if isinstance(space, _FIXED) and space.shape is not None:
        return (Leaf(path, np.dtype(space.dtype), tuple(space.shape)),)
    return (Leaf(path, None),)


def only_leaf(parts: Sequence[Leaf]) -> Leaf | None:
    """Return the leaf that is the whole value, if the value is a single array or number, else None."""
    return parts[0] if len(parts) == 1 and parts[0].fixed and not parts[0].path else None


def unknown_parts(space: Space[Any]) -> list[Space[Any]]:
    """Return the parts of `space` whose class Gymnasium does not know."""
    if (parts := _parts(space)) is None:
        return [] if isinstance(space, _KNOWN) else [space]
    return [unknown for _, part in parts for unknown in unknown_parts(part)]


def assembler(space: Space[Any]) -> Callable[[Sequence[Any]], Any]:
    """Return a function that makes a value of `space` from one value for each leaf."""
    if not isinstance(space, Dict | Tuple):
        return lambda values: values[0]
    build = _builder(space)
    return lambda values: build(iter(values))


def _builder(space: Space[Any]) -> Callable[[Iterator[Any]], Any]:
    """Return a function that takes as many values as `space` has leaves. The space itself is read only once, here."""
    if (parts := _parts(space)) is None:
        return next
    named = [(key, _builder(part)) for key, part in parts]
    if isinstance(space, Dict):
        return lambda values: {key: build(values) for key, build in named}
    return lambda values: tuple([build(values) for _, build in named])


# ---- the spaces of a batch -------------------------------------------------------------------------------------------


def batched_observation_space(spaces: Sequence[Space[Any]], mode: Any) -> SpacePair:
    """Return the observation spaces of a batch of envs that have these spaces. Raise if they do not fit `mode`."""
    single = spaces[0]
    is_same = isinstance(mode, str) and mode == "same"
    if is_same:
        batch = batch_space(single, len(spaces))
    elif isinstance(mode, str) and mode == "different":
        try:
            batch = batch_differing_spaces(list(spaces))
        except (TypeError, ValueError) as error:
            raise RuntimeError(
                f"The observation spaces {list(dict.fromkeys(map(str, spaces)))} cannot be batched: {error} "
                "With observation_mode='different' only the bounds of spaces may differ."
            ) from error
    elif isinstance(mode, Space):
        single, batch = mode, batch_space(mode, len(spaces))
    elif isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            raise TypeError(f"observation_mode={mode!r} is a pair of which not both are spaces.")
        batch, single = mode
    else:
        raise ValueError(
            f"observation_mode={mode!r} is unknown. Choose 'same', 'different', a space for one environment, or a pair "
            f"of the batched space and the space for one.{hint(mode, ('same', 'different'))} (Invalid "
            "`observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation space, "
            f"actual got {mode})"
        )
    for env, space in enumerate(spaces):
        if space == single and (is_same or type(space) is type(single)):
            continue
        if is_same:
            raise RuntimeError(
                f"Env {env} has the observation space {space}, env 0 has {single}: the sub-environments observation "
                "spaces are not equivalent. With observation_mode='same' they must be equal. If this is intentional, "
                "use `observation_mode='different'` instead. With that, only their bounds may differ."
            )
        try:
            is_alike = bool(is_space_dtype_shape_equiv(space, single))
        except Exception:  # noqa: BLE001  # spaces that Gymnasium cannot compare
            is_alike = False
        if not is_alike:
            raise RuntimeError(
                f"Env {env} has the observation space {space}, which has another shape or dtype than {single}. Such "
                "environments cannot be batched: make their spaces alike."
            )
    return single, batch


def batched_action_space(spaces: Sequence[Space[Any]]) -> SpacePair:
    """Return the action spaces of a batch of envs that have these spaces. Raise if the spaces differ."""
    single = spaces[0]
    for env, space in enumerate(spaces):
        if space != single:
            raise RuntimeError(
                f"Env {env} has the action space {space}, env 0 has {single}. To batch actions, the action spaces of "
                "all environments must be equal."
            )
    return single, batch_space(single, len(spaces))


# ---- the arrays ------------------------------------------------------------------------------------------------------

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


class SharedArrays:
    """All arrays, in one block of shared memory. A copy in a worker, sent in a request, has the same block.

    Args:
        observation: The leaves of an observation. `num_sets` sets of observations are made.
        action: The leaves of an action.
    """

    def __init__(
        self,
        observation: tuple[Leaf, ...],
        action: tuple[Leaf, ...],
        num_envs: int,
        num_workers: int,
        num_sets: int,
        block: SharedBlock | None = None,
    ) -> None:
        self._given = observation, action, num_envs, num_workers, num_sets
        self.observation, self.action, self.num_envs = observation, action, num_envs
        wanted: dict[Any, tuple[Any, tuple[int, ...]]] = {
            "rows": (ROW, (num_envs,)),
            "info_rows": ("u1", (num_envs, INFO_BYTES)),
            "counters": ("f8", (num_workers, COUNTERS)),
            "action_dtypes": ("u1", (num_envs, len(action))),
        }
        for position, leaf in enumerate(action):
            wanted["action", position] = "u1", (num_envs, max(math.prod(leaf.shape), 1) * _WIDEST)
        for which in range(num_sets):
            for position, leaf in enumerate(observation):
                if leaf.fixed:
                    wanted["observation", position, which] = leaf.dtype, (num_envs, *leaf.shape)
        layout = ArrayLayout(wanted)
        self.block = SharedBlock.create(layout.num_bytes) if block is None else block
        arrays = layout.views(self.block)
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
        for position, leaf in enumerate(action):
            rows = arrays["action", position]
            shape, strides = (len(rows), *leaf.shape), rows.strides[:1]  # a row has room for the widest dtype
            self.actions.append(
                [
                    np.ndarray(shape, dtype, rows.data, strides=(*strides, *np.empty(leaf.shape, dtype).strides))
                    for dtype in ACTION_DTYPES
                ]
            )
        self.observations = [
            [arrays.get(("observation", position, which)) for position in range(len(observation))]
            for which in range(num_sets)
        ]
        """For each set and each leaf, its array, or None for a leaf that travels by pipe."""

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedArrays, (*self._given, self.block)


def cells(array: npt.NDArray[Any]) -> memoryview[Any]:
    """Return the items of an array for reading and writing one at a time, which is quicker than through NumPy."""
    return memoryview(array.data)


# ---- the caller's side -----------------------------------------------------------------------------------------------


class ActionWriter:
    """Writes batches of actions into shared memory, in the dtype in which they were given. Actions of a Dict or Tuple
    space have two forms: batched, as in Gymnasium (a dict or a tuple with one batch for each part of the space), or a
    list with one action for each env (see `_is_one_by_one`). Everything is checked before anything is written.
    """

    def __init__(self, arrays: SharedArrays, action_space: Space[Any]) -> None:
        self._arrays, self._leaves, self._num_envs = arrays, arrays.action, arrays.num_envs
        self._single_type = (
            dict if isinstance(action_space, Dict) else tuple if isinstance(action_space, Tuple) else None
        )
        self._usual: tuple[Any, int, Any] = (None, 0, None)

    def write(self, actions: Any, envs: Sequence[int] | None = None) -> tuple[int, dict[int, list[Any]] | None]:
        """Write the actions of `envs` (None: of all envs). Returns the place of the dtype in `ACTION_DTYPES`, if
        actions have a single leaf; and by env the leaves without a fixed shape, which must be sent by pipe (None: there
        are none).
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
        count, one_by_one = len(envs), self._is_one_by_one(actions)
        if one_by_one and len(actions) != count:
            were = "1 action was" if len(actions) == 1 else f"{len(actions)} actions were"
            raise ValueError(
                f"{were} given for {count} environments ({env_names(envs)}): {_shown(actions)}. Give one for each."
            )
        checked: list[Any] = []
        for leaf in self._leaves:
            if one_by_one:
                values: Any = [_part(leaf, action, f"Action {row} has") for row, action in enumerate(actions)]
            else:
                values = _part(leaf, actions, "The actions have")
            if not leaf.fixed:
                if isinstance(values, str | bytes) or not isinstance(values, Iterable):
                    raise TypeError(f"The actions{leaf.name} are not a sequence of {count} items: {_shown(values)}.")
                checked.append(list(values))
                if len(checked[-1]) != count:
                    raise ValueError(
                        f"{len(checked[-1])} actions{leaf.name} were given for {count} environments. Give one for each."
                    )
                continue
            try:
                array = np.asarray(values)
            except Exception as error:
                raise ValueError(f"The actions{leaf.name} are not an array: {_shown(values)} ({error}).") from error
            if array.shape != (count, *leaf.shape):
                raise (ValueError if array.ndim else TypeError)(  # of a single value the type is wrong, as in Gymnasium
                    f"Actions{leaf.name} of shape {array.shape} were given for {count} environments, whose actions "
                    f"have shape {leaf.shape}: {_shown(values)}. Give an array of shape {(count, *leaf.shape)}."
                )
            array = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
            if array.dtype not in _CODE_OF:
                raise TypeError(
                    f"Actions{leaf.name} of dtype {array.dtype} were given: {_shown(values)}. "
                    f"Give numbers, such as {leaf.dtype}."
                )
            checked.append(array)
        return checked

    def _is_one_by_one(self, actions: Any) -> bool:
        """Return whether `actions` is a list with one action for each env of a Dict or Tuple space. The types alone
        decide, never the lengths: a list of dicts for a Dict space, a list of tuples for a Tuple space. A list of
        arrays and a tuple of tuples are therefore the batched form of a Tuple space. For a Dict space one dict in the
        list is enough, since the batched form is never a list; other items are refused by their number.
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


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


# ---- the worker's side -----------------------------------------------------------------------------------------------


class ActionReader:
    """Reads the action of one env at a time, as the caller gave it. If an action is a single leaf of a fixed shape,
    `views` holds the same memory once for each of `ACTION_DTYPES`, and `shaped` says that an item of it is an array,
    which must be copied before an env may keep it. Otherwise `views` is None and `compose` must be called. `parts`
    holds, by env, the leaves without a fixed shape.
    """

    def __init__(self, arrays: SharedArrays, action_space: Space[Any]) -> None:
        self.parts: Mapping[int, Sequence[Any]] = {}
        self._leaves, self._actions = arrays.action, arrays.actions
        self._dtypes = cells(arrays.action_dtypes)
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
    """Writes the leaves of an observation into their arrays. If an observation is a single leaf of a fixed shape,
    `arrays` (one for each set) and `shape` say where it goes and which shape it must have. Otherwise `shape` is None,
    which no observation has, and `write` must be called.
    """

    def __init__(self, arrays: SharedArrays) -> None:
        self._sets = [list(zip(arrays.observation, columns, strict=True)) for columns in arrays.observations]
        only = only_leaf(arrays.observation)
        self.shape = None if only is None else only.shape
        self.arrays: list[Any] = [None if only is None else columns[0] for columns in arrays.observations]

    def write(self, which_set: int, env: int, observation: Any) -> list[Any] | None:
        """Write the leaves that have an array. Return the other leaves in their order, or None if there are none. A
        value of another shape than the leaf's is an error; it is never broadcast.
        """
        loose: list[Any] = []
        for leaf, array in self._sets[which_set]:
            value = leaf.of(observation)
            if leaf.dtype is None:
                loose.append(value)
                continue
            if type(value) is not np.ndarray or value.shape != leaf.shape:
                value = np.asarray(value)
                if value.shape != leaf.shape:
                    raise ValueError(
                        f"The environment returned an observation{leaf.name} of shape {value.shape}, but its "
                        f"observation space says {leaf.shape}. Correct the environment or its observation_space."
                    )
            if array is None:
                loose.append(value.astype(leaf.dtype, copy=False))
            else:
                array[env] = value
        return loose or None


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


class Packed(NamedTuple):
    """The pickle of a value, made at once by `packed`, so that nothing done later changes the value."""

    data: bytes


def packed(value: Any) -> Packed:
    """Pickle a value. One that cannot be pickled raises here, as an error of its own env, and not when the reply of the
    worker is pickled as a whole.
    """
    return Packed(dump_reply(value))


def unpacked(value: Any) -> Any:
    """Return the value of a `Packed`. Any other value is returned as it is."""
    return load_reply(value.data) if isinstance(value, Packed) else value
