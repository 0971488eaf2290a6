"""Steps of one agent in shared memory, which a learner in another process reads without a copy.

A `TrajectoryStore` has two halves that take turns: while collection writes one, learners read the other. Each finished
half has a number, its *turn*. Turn 3 can be read until turn 4 is finished. Then its half is overwritten for turn 5:
`trajectory(3)` raises, and `holds(3)` tells a slow reader whether the arrays it has read were whole.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.checks import check_count
from parallel_envs.engine import ArrayLayout, SharedBlock
from parallel_envs.rollouts.rollout import check_rows, map_tree, put_rows, tree_leaves
from parallel_envs.vector.shared_arrays import Leaf, assembler, leaves

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Tree = Any


@dataclass(frozen=True, slots=True)
class Trajectory:
    """T steps of one agent in N environment rows. Arrays have time first, then the row. A row of a step is *valid* if
    the agent was alive before it and the step was a real one: neither the reset of an environment whose episode had
    ended nor that of one whose worker was restarted. All other values are filler.
    """

    observations: Tree
    """`[T + 1, N, ...]`: the observation before step t, and at t + 1 the observation that step t returned."""
    actions: Tree
    """`[T, N, ...]`."""
    rewards: npt.NDArray[np.float32]
    """`[T, N]`."""
    terminated: Flags
    """`[T, N]`: the agent's episode ended there, and nothing follows."""
    truncated: Flags
    """`[T, N]`: the agent's episode was cut off there."""
    valid: Flags
    """`[T, N]`."""
    begins: Flags
    """`[T + 1, N]`: the observation is the first of an episode, and the memory of a recurrent policy is reset."""
    memory: Tree = None
    """Memory of a recurrent policy before step 0: a tree of arrays `[N, ...]`, or None."""

    @property
    def num_steps(self) -> int:
        return int(self.rewards.shape[0])

    @property
    def num_rows(self) -> int:
        return int(self.rewards.shape[1])

    def copy(self) -> Trajectory:
        """Return a copy in memory of its own."""
        return Trajectory(*(map_tree(np.copy, getattr(self, name)) for name in self.__slots__))


_FLAGS = ("terminated", "truncated", "valid")
_NEVER, _BEING_WRITTEN = -1, -2


class TrajectoryStore:
    """Two trajectories of one agent, in anonymous shared memory.

        store = TrajectoryStore(observation_space, action_space, horizon=128, num_rows=8)
        store.begin(observations)                                  # after a reset
        while not store.full:
            ...                                                    # act and step
            store.add(actions, rewards, terminated, truncated, next_observations, valid, begins)
        turn = store.finish()                                      # the other half goes on where this one ended
        trajectory = store.trajectory(turn)                        # views, here or in any process the store was sent to

    One process writes (`begin`, `add`, `finish`), any may read. A store sent to a worker in an engine request is the
    same store there. After `close` it cannot be sent to further processes.

    Args:
        observation_space: Of one row. Box, discrete and binary spaces, nested in dicts and tuples.
        action_space: The same for actions.
        horizon: The most steps of a trajectory (T).
        num_rows: Number of environment rows (N).
        memory: Memory of a recurrent policy for N rows: a tree of arrays, of which only the form and dtypes are used.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        horizon: int,
        num_rows: int,
        *,
        memory: Tree = None,
        _block: SharedBlock | None = None,
    ) -> None:
        check_count("horizon", horizon)
        check_count("num_rows", num_rows)
        self._spaces = observation_space, action_space
        self.horizon, self.num_rows = horizon, num_rows
        self._no_memory = map_tree(lambda leaf: np.zeros_like(np.asarray(leaf)), memory)
        check_rows(self._no_memory, num_rows)
        seen, done = (horizon + 1, num_rows), (horizon, num_rows)
        wanted: dict[str, tuple[Any, tuple[int, ...]]] = {"header": ("i8", (2, 2))}
        for half in (0, 1):
            for number, leaf in enumerate(_fixed_leaves(observation_space, "observations")):
                wanted[f"observations{number}.{half}"] = leaf.dtype, (*seen, *leaf.shape)
            for number, leaf in enumerate(_fixed_leaves(action_space, "actions")):
                wanted[f"actions{number}.{half}"] = leaf.dtype, (*done, *leaf.shape)
            for number, array in enumerate(tree_leaves(self._no_memory)):
                wanted[f"memory{number}.{half}"] = array.dtype, array.shape
            wanted |= {f"rewards.{half}": ("f4", done), f"begins.{half}": ("?", seen)}
            wanted |= {f"{name}.{half}": ("?", done) for name in _FLAGS}
        layout = ArrayLayout(wanted)
        self._block = SharedBlock.create(layout.num_bytes) if _block is None else _block
        weakref.finalize(self, self._block.close)
        arrays = layout.views(self._block)
        self._header: npt.NDArray[np.int64] = arrays["header"]
        """Turn and number of steps of each half."""
        self._halves = [_Half(arrays, half, self._spaces, self._no_memory) for half in (0, 1)]
        if _block is None:
            self._header[:] = _NEVER
        self._turn, self._step, self._begun = 0, 0, False

    def __reduce__(self) -> tuple[Any, ...]:
        attach = functools.partial(TrajectoryStore, memory=self._no_memory, _block=self._block)
        return attach, (*self._spaces, self.horizon, self.num_rows)

    # ---- writing ----------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """True if `horizon` steps have been added since the last `finish`."""
        return self._step == self.horizon

    @property
    def num_steps(self) -> int:
        """Number of steps added since the last `finish`."""
        return self._step

    def begin(self, observations: Tree, begins: Flags | None = None, memory: Tree = None) -> None:
        """Start with these observations of all rows, after a reset. Steps that are not finished are dropped. `begins`
        marks the observations that are the first of an episode (None: all). `memory` is that of a recurrent policy
        before it has seen them (None: zeros).
        """
        self._header[self._turn % 2] = _BEING_WRITTEN  # before anything changes: readers see that the turn is gone
        self._step, self._begun = 0, True
        half = self._halves[self._turn % 2]
        half.observations.write(0, observations)
        half.begins[0] = True if begins is None else begins
        put_rows(half.memory, np.arange(self.num_rows), self._no_memory if memory is None else memory)

    def add(
        self,
        actions: Tree,
        rewards: Array,
        terminated: Flags,
        truncated: Flags,
        observations: Tree,
        valid: Flags,
        begins: Flags,
    ) -> None:
        """Add a step of all rows: actions and their results. `begins` belongs to these new observations."""
        if not self._begun:
            raise RuntimeError("A step was added before `begin`. Give the observations after the reset first.")
        if self.full:
            raise RuntimeError(f"{self.horizon} steps have been added: call `finish` before the next.")
        half, step = self._halves[self._turn % 2], self._step
        half.actions.write(step, actions)
        half.observations.write(step + 1, observations)
        half.rewards[step] = rewards
        half.terminated[step], half.truncated[step], half.valid[step] = terminated, truncated, valid
        half.begins[step + 1] = begins
        self._step = step + 1

    def finish(self, memory: Tree = None) -> int:
        """End this trajectory, full or not, and return its turn, for `trajectory`. The other half goes on with the last
        observations and `memory`, that of a recurrent policy before it has seen them (None: zeros).
        """
        if not self._step:
            raise RuntimeError("A trajectory of no steps was to be finished. Add a step first.")
        done, half, step = self._turn, self._halves[self._turn % 2], self._step
        self._header[done % 2] = done, step
        self._turn = done + 1
        self.begin(half.observations.at(step), half.begins[step], memory)
        return done

    # ---- reading ----------------------------------------------------------------------------------------------------

    def holds(self, turn: int) -> bool:
        """Return whether the trajectory of this turn is still complete in the store."""
        return turn >= 0 and int(self._header[turn % 2, 0]) == turn

    def trajectory(self, turn: int) -> Trajectory:
        """Return the trajectory of a finished turn: views of the store, unchanged until the next `finish`. Raises
        LookupError if the turn has been overwritten or is not finished.
        """
        if not self.holds(turn):
            raise LookupError(
                f"The trajectory of turn {turn} is not in the store: it has been written over, or is not finished. "
                "Read a turn before the next one is finished."
            )
        half, num_steps = self._halves[turn % 2], int(self._header[turn % 2, 1])
        return Trajectory(
            half.observations.at(np.s_[: num_steps + 1]),
            half.actions.at(np.s_[:num_steps]),
            half.rewards[:num_steps],
            half.terminated[:num_steps],
            half.truncated[:num_steps],
            half.valid[:num_steps],
            half.begins[: num_steps + 1],
            half.memory,
        )

    def close(self) -> None:
        """Close the file descriptor: the store can no longer be sent. It can still be written and read here."""
        self._block.close()


class _Half:
    """The arrays of one half."""

    def __init__(self, arrays: dict[str, Array], half: int, spaces: tuple[Space[Any], Space[Any]], form: Tree) -> None:
        own = {name.removesuffix(f".{half}"): array for name, array in arrays.items()}
        self.observations = ValueArrays(spaces[0], lambda number, *_: own[f"observations{number}"], "observations")
        self.actions = ValueArrays(spaces[1], lambda number, *_: own[f"actions{number}"], "actions")
        self.rewards, self.begins = own["rewards"], own["begins"]
        self.terminated, self.truncated, self.valid = (own[name] for name in _FLAGS)
        remembered = iter([own[f"memory{number}"] for number, _ in enumerate(tree_leaves(form))])
        self.memory = map_tree(lambda _: next(remembered), form)


def _fixed_leaves(space: Space[Any], what: str) -> tuple[Leaf, ...]:
    """Return the leaves of a space. Raise TypeError if values of some leaf have no fixed shape."""
    found = leaves(space)
    for leaf in found:
        if not leaf.fixed:
            raise TypeError(
                f"{what}{leaf.name} of {space} has no fixed shape, so it cannot be stored in an array. Store parts "
                "made of Box, Discrete, MultiDiscrete and MultiBinary only."
            )
    return found


class ValueArrays:
    """Many values of a space in arrays that were made elsewhere: one array for each leaf, with further axes in front.

    Args:
        space: Made of Box, Discrete, MultiDiscrete and MultiBinary, nested in dicts and tuples.
        make: Called with each leaf's number, dtype and shape (without the axes in front); returns its array.
        what: Name of the values, for errors.
    """

    def __init__(self, space: Space[Any], make: Callable[[int, Any, tuple[int, ...]], Array], what: str) -> None:
        self.leaves, self._assemble, self._what = _fixed_leaves(space, what), assembler(space), what
        self.arrays = [make(number, leaf.dtype, leaf.shape) for number, leaf in enumerate(self.leaves)]
        """One array for each leaf, in the order of `leaves`."""

    def write(self, where: int, values: Any) -> None:
        """Write a batch of values at one index of the first axis. Raise ValueError if they do not fit."""
        self.put(where, self.parts(values, len(self.arrays[0][0]) if self.arrays else 0))

    def parts(self, values: Any, num_rows: int, rows: Array | None = None) -> list[Array]:
        """Return the arrays that `put` writes, of these rows (None: all `num_rows`). Raise ValueError if one does not
        fit.
        """
        parts: list[Array] = []
        for leaf in self.leaves:
            try:
                part = np.asarray(leaf.of(values))
            except (KeyError, IndexError, TypeError) as error:
                raise ValueError(f"{self._what}{leaf.name} are missing. Give values of the whole space.") from error
            if part.shape != (num_rows, *leaf.shape):  # NumPy would broadcast
                raise ValueError(
                    f"{self._what}{leaf.name} have the shape {part.shape} where {(num_rows, *leaf.shape)} is wanted. "
                    "Give one row for each environment."
                )
            parts.append(part if rows is None else part[rows])
        return parts

    def put(self, where: int | Array, parts: list[Array]) -> None:
        """Write parts at one index of the first axis, or at many."""
        for array, part in zip(self.arrays, parts, strict=True):
            array[where] = part

    def at(self, where: Any) -> Any:
        """Return the values at an index, in the form of the space: views or copies, as NumPy's indexing gives them."""
        return self._assemble([array[where] for array in self.arrays])
