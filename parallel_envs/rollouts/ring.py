"""A ring of steps that one agent lived through, in several environments side by side.

Each stored step knows the place of the step that followed it in the same episode and environment row, if any. A ring
forgets the oldest first, so these links never lead to what has been forgotten, and whoever follows them never crosses
the end of an episode, a gap in the agent's life, or the border between two environments.
"""

from __future__ import annotations

import reprlib
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.rollouts import trees
from parallel_envs.rollouts.archives import read_archive, write_archive
from parallel_envs.rollouts.value_arrays import ValueArrays
from parallel_envs.vector.checks import check_whole

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]
Tree = Any

NONE = -1
"""In the place of a place: no step."""

_PARTS = "counters", "arrays"
"""Of a state."""


class StepRing:
    """The newest steps, as many as there is room for. `ReplayBuffer` says what the arguments are."""

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        capacity: int,
        num_rows: int,
        *,
        memory: Tree = None,
    ) -> None:
        check_whole("num_rows", num_rows)
        check_whole("capacity", capacity)
        if num_rows < 1:
            raise ValueError(f"num_rows={num_rows} leaves nothing to store. Give at least 1.")
        if capacity < num_rows:
            raise ValueError(f"capacity={capacity} cannot hold a step of {num_rows} rows. Give at least {num_rows}.")
        self.observation_space, self.action_space = observation_space, action_space
        self.capacity, self.num_rows = capacity, num_rows
        self._arrays: dict[str, Array] = {}
        """Everything that is stored, by name: what `state` returns."""
        self._observations = self._values("observations", observation_space)
        self._next_observations = self._values("next_observations", observation_space)
        self._actions = self._values("actions", action_space)
        self._rewards = self._array("rewards", np.float32)
        self._terminated, self._truncated = self._array("terminated", np.bool_), self._array("truncated", np.bool_)
        self._begins = self._array("begins", np.bool_)
        self._following = self._array("following", np.int64)
        """The place of the step that came after this one; -1: none, or none yet."""
        numbers = iter(range(len(trees.leaves(memory))))
        self._memory = trees.mapped(lambda leaf: self._like(f"memory{next(numbers)}", leaf), memory)
        self._last: Indices = np.full(num_rows, NONE)
        """Where the last step of each row lies, if the next one will follow it."""
        self._position = self._size = 0
        self.num_added = 0
        """Steps that have been stored here; `load_state` counts as one in every place."""
        self._lock = threading.Lock()
        """Held while steps are stored or drawn: a learner's thread may draw while collection stores."""

    def _values(self, name: str, space: Space[Any]) -> ValueArrays:
        def make(number: int, dtype: Any, shape: tuple[int, ...]) -> Array:
            return self._array(f"{name}{number}", dtype, shape)

        return ValueArrays(space, make, name)

    def _array(self, name: str, dtype: Any, shape: tuple[int, ...] = ()) -> Array:
        self._arrays[name] = np.zeros((self.capacity, *shape), dtype)
        return self._arrays[name]

    def _like(self, name: str, leaf: Any) -> Array:
        example = np.asarray(leaf)
        return self._array(name, example.dtype, example.shape)

    def __len__(self) -> int:
        return self._size

    # ---- storing ----------------------------------------------------------------------------------------------------

    def add(
        self,
        observations: Tree,
        actions: Tree,
        rewards: Array,
        terminated: Flags,
        truncated: Flags,
        next_observations: Tree,
        valid: Flags,
        begins: Flags | None = None,
        memory: Tree = None,
    ) -> Indices:
        """Store one step of each row that is valid; all arguments are batches of `num_rows`.

        A row's step follows the one that was added for it just before, unless that one ended the episode or was not
        valid, or `begins` says that this one is an episode's first. If anything has come between, call `cut` first.

        Args:
            observations: What the agent saw.
            actions: What it did.
            rewards: What it got.
            terminated: The episode ended: nothing follows.
            truncated: The episode was cut off: what would have followed is worth something.
            next_observations: What it saw then, also where the episode ended.
            valid: Which rows are real steps of an agent that was alive. The others are not stored.
            begins: Which observations are the first of an episode. None: those that follow no stored step.
            memory: What a recurrent policy remembered before it saw `observations`.

        Returns:
            Where the steps lie, in the order of the valid rows.
        """
        rows = self._valid_rows(valid)
        gains, ends, cuts = (
            self._column(name, values)
            for name, values in (("rewards", rewards), ("terminated", terminated), ("truncated", truncated))
        )
        with self._lock:
            before = self._last[rows]
            if begins is not None:
                before = np.where(np.asarray(begins)[rows], NONE, before)
            places: Indices = (self._position + np.arange(len(rows))) % self.capacity
            given = (
                (self._observations, observations),
                (self._next_observations, next_observations),
                (self._actions, actions),
            )
            fitting = [(arrays, arrays.parts(places, values, rows)) for arrays, values in given]  # before any is put
            for arrays, parts in fitting:
                arrays.put(places, parts)
            trees.put(self._memory, places, self._memory_of(memory, rows))
            self._begins[places] = before == NONE if begins is None else np.asarray(begins)[rows]
            self._rewards[places] = gains[rows]
            self._terminated[places] = ends[rows]
            self._truncated[places] = cuts[rows]
            self._link(before, places, rows)
        return places

    def _valid_rows(self, valid: Flags) -> Indices:
        flags = np.asarray(valid)
        if flags.shape != (self.num_rows,) or flags.dtype != np.bool_:
            raise ValueError(f"valid={valid!r} does not say of {self.num_rows} rows whether they are valid.")
        return np.flatnonzero(flags)

    def _column(self, name: str, values: Any) -> Array:
        array = np.asarray(values)
        if array.shape != (self.num_rows,):
            raise ValueError(
                f"{name} have the shape {array.shape} where {(self.num_rows,)} is wanted. Give one for each "
                "environment."
            )
        return array

    def _memory_of(self, memory: Tree, rows: Indices) -> Tree:
        """These rows of what was remembered, zeros if nothing was given."""
        if memory is None:
            return trees.mapped(lambda leaf: np.zeros((len(rows), *leaf.shape[1:]), leaf.dtype), self._memory)
        return trees.take(memory, rows)

    def _link(self, before: Indices, places: Indices, rows: Indices) -> None:
        """Have these steps follow those before them, and be what the next ones of their rows follow."""
        known = before != NONE
        self._following[before[known]] = places[known]
        self._following[places] = NONE  # after the line above: a step may lie where the one that it follows lay
        self._last[:] = NONE
        ended = self._terminated[places] | self._truncated[places]
        self._last[rows] = np.where(ended, NONE, places)
        self._position = (self._position + len(rows)) % self.capacity
        self._size = min(self._size + len(rows), self.capacity)
        self.num_added += len(rows)

    def cut(self, rows: Indices | None = None) -> None:
        """What is added next for these rows (None: all) follows nothing: environments were reset from outside."""
        with self._lock:
            self._last[slice(None) if rows is None else rows] = NONE

    # ---- keeping ----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """`{"counters": json-able, "arrays": {name: array}}`: everything, for `load_state`, copied at one moment."""
        with self._lock:
            arrays = {name: array[: self._size].copy() for name, array in self._arrays.items()}
            return {"counters": self._counters(), "arrays": arrays}

    def _counters(self) -> dict[str, Any]:
        return {"position": self._position, "size": self._size, "last": self._last.tolist(), **self._form()}

    def _form(self) -> dict[str, Any]:
        return {"capacity": self.capacity, "num_rows": self.num_rows}

    def load_state(self, state: Any) -> None:
        """Become what a buffer of the same form was when `state` was called. Raises ValueError for any other form."""
        self.check_state(state)
        with self._lock:
            self._take_over(state["counters"], state["arrays"])

    def _take_over(self, counters: dict[str, Any], arrays: dict[str, Array]) -> None:
        self._position, self._size = counters["position"], counters["size"]
        self.num_added += self.capacity
        self._last[:] = counters["last"]
        for name, array in self._arrays.items():
            array[: self._size] = arrays[name]

    def check_state(self, state: Any) -> None:
        """Raise ValueError for a state that does not fit this buffer."""
        if not isinstance(state, Mapping) or not all(isinstance(state.get(one), Mapping) for one in _PARTS):
            raise ValueError(
                f"{reprlib.repr(state)} is no state of a buffer. Give what `state()` has returned: a dict with "
                "'counters' and 'arrays', each a dict."
            )
        self._check_state(state["counters"], state["arrays"])

    def _check_state(self, counters: dict[str, Any], arrays: dict[str, Array]) -> None:
        for name, own in self._form().items():
            if counters.get(name) != own:
                raise ValueError(f"The stored buffer has {name}={counters.get(name)}, this one {name}={own}.")
        size = _checked_size(counters, self.capacity, self.num_rows)
        if arrays.keys() != self._arrays.keys():
            raise ValueError(f"The stored buffer holds {sorted(arrays, key=str)}, this one {sorted(self._arrays)}.")
        for name, own in self._arrays.items():
            given, wanted = arrays[name], (size, *own.shape[1:])
            if not isinstance(given, np.ndarray):
                raise ValueError(f"{name} is stored as {type(given).__name__}, where an array is wanted.")
            if given.shape != wanted or given.dtype != own.dtype:
                told = f"{given.dtype} of the shape {given.shape} where {own.dtype} of {wanted} is wanted"
                raise ValueError(f"{name} is stored as {told}.")
        links = arrays["following"]
        if len(odd := links[(links < NONE) | (links >= size)]):
            raise ValueError(f"following leads to the place {odd[0]}, and {size} steps are stored.")

    def save(self, path: str | Path) -> None:
        """Write everything into one file, without pickle. The file is whole or not there."""
        state = self.state()
        write_archive(path, state["counters"], state["arrays"])

    def load(self, path: str | Path) -> None:
        """Read what `save` wrote. Raises ValueError if the file is damaged, foreign, or of another form."""
        counters, arrays = read_archive(path)
        try:
            self.load_state({"counters": counters, "arrays": arrays})
        except ValueError as error:
            raise ValueError(f"{path} does not fit this buffer. {error}") from error

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _checked_size(counters: dict[str, Any], capacity: int, num_rows: int) -> int:
    size, position, last = (counters.get(name) for name in ("size", "position", "last"))
    if not isinstance(size, int) or not 0 <= size <= capacity:
        raise ValueError(f"size={size!r} is not the size of a buffer.")
    if not isinstance(position, int) or position not in (range(capacity) if size == capacity else (size,)):
        raise ValueError(f"position={position!r} is not a place to write to next.")
    if not isinstance(last, list) or len(last) != num_rows or any(place not in range(-1, size) for place in last):
        raise ValueError(f"last={last!r} does not name a step of each of {num_rows} rows.")
    return size
