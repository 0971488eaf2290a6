"""What one agent lived through, step by step, in memory that a learner in another process reads without a copy.

A `TrajectoryStore` is two halves that take turns: while collection writes one, learners read the other. Each finished
half has a number, its *turn*. What turn 3 left can be read until turn 4 is finished, when its half is written over for
turn 5, and says so: `trajectory(3)` then raises, and `holds(3)` tells a slow reader whether what it read was whole.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.engine import SharedBlock
from parallel_envs.rollouts import trees
from parallel_envs.rollouts.value_arrays import ValueArrays, fixed_leaves
from parallel_envs.vector.checks import check_count
from parallel_envs.vector.shared_arrays import Field, plan

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Tree = Any


@dataclass(frozen=True, slots=True)
class Trajectory:
    """T steps of one agent in N environment rows. Arrays have time first, then the row.

    A row of a step is *valid* if the agent was alive before it and the step was a real one: neither the reset of an
    environment whose episode had ended nor that of one whose worker was restarted. Everything else there is filler.
    """

    observations: Tree
    """`[T + 1, N, ...]`: what the agent saw before step t, and so, at t + 1, what step t returned."""
    actions: Tree
    """`[T, N, ...]`."""
    rewards: npt.NDArray[np.float32]
    """`[T, N]`."""
    terminated: Flags
    """`[T, N]`: the agent's episode ended there, and nothing follows."""
    truncated: Flags
    """`[T, N]`: it was cut off there."""
    valid: Flags
    """`[T, N]`."""
    begins: Flags
    """`[T + 1, N]`: the observation is the first of an episode, and what a recurrent policy remembers starts anew."""
    memory: Tree = None
    """What a recurrent policy remembered before step 0: a tree of arrays `[N, ...]`, or None."""

    @property
    def num_steps(self) -> int:
        return int(self.rewards.shape[0])

    @property
    def num_rows(self) -> int:
        return int(self.rewards.shape[1])

    def copy(self) -> Trajectory:
        """The same in memory of its own."""
        return Trajectory(*(trees.mapped(np.copy, getattr(self, name)) for name in self.__slots__))


_FLAGS = ("terminated", "truncated", "valid")
_NEVER, _BEING_WRITTEN = -1, -2


class TrajectoryStore:
    """Room for two trajectories of one agent, in anonymous shared memory.

        store = TrajectoryStore(observation_space, action_space, horizon=128, num_rows=8)
        store.begin(observations)                                  # after a reset
        while not store.full:
            ...                                                    # act and step
            store.add(actions, rewards, terminated, truncated, next_observations, valid, begins)
        turn = store.finish()                                      # the other half goes on where this one ended
        trajectory = store.trajectory(turn)                        # views, here or in any process the store was sent to

    One process writes (`begin`, `add`, `finish`), any may read. A store sent to a worker in an engine request is the
    same store there; once `close` has been called it can be sent to nobody else.

    Args:
        observation_space: Of one row. Boxes, discrete and binary spaces, in dicts and tuples at will.
        action_space: The same for actions.
        horizon: The most steps of a trajectory (T).
        num_rows: How many environment rows (N).
        memory: What a recurrent policy remembers of N rows, as a tree of arrays: for form and dtype only.
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
        self._memory_form = trees.mapped(lambda leaf: np.zeros_like(np.asarray(leaf)), memory)
        trees.check(self._memory_form, num_rows)
        fields, num_bytes = plan(_wanted(observation_space, action_space, horizon, num_rows, self._memory_form))
        self._block = SharedBlock.create(num_bytes) if _block is None else _block
        weakref.finalize(self, self._block.close)
        arrays = {field.name: _view(self._block, field) for field in fields}
        self._header: npt.NDArray[np.int64] = arrays["header"]
        self._halves = [_Half(arrays, which, self._spaces, self._memory_form) for which in (0, 1)]
        if _block is None:
            self._header[:] = _NEVER
        self._turn, self._step, self._begun = 0, 0, False

    def __reduce__(self) -> tuple[Any, ...]:
        return _attached, (*self._spaces, self.horizon, self.num_rows, self._memory_form, self._block)

    # ---- writing ----------------------------------------------------------------------------------------------------

    @property
    def full(self) -> bool:
        """Whether `horizon` steps have been added since the last `finish`."""
        return self._step == self.horizon

    @property
    def num_steps(self) -> int:
        """How many steps have been added since the last `finish`."""
        return self._step

    def begin(self, observations: Tree, begins: Flags | None = None, memory: Tree = None) -> None:
        """Start with these observations, after a reset. Steps that were added but not finished are dropped.

        Args:
            observations: Of all rows.
            begins: Which of them are the first of an episode. None: all.
            memory: What a recurrent policy remembers before it has seen them. None: zeros.
        """
        self._open()
        half = self._half
        half.observations.write(0, observations)
        half.begins[0] = True if begins is None else begins
        half.remember(self._memory_form if memory is None else memory)

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
        """One step of all rows: what was done, and what came of it. `begins` is about these new observations."""
        if not self._begun:
            raise RuntimeError("A step was added before `begin`. Give the observations after the reset first.")
        if self.full:
            raise RuntimeError(f"{self.horizon} steps have been added: call `finish` before the next.")
        half, step = self._half, self._step
        half.actions.write(step, actions)
        half.observations.write(step + 1, observations)
        half.rewards[step] = rewards
        half.terminated[step], half.truncated[step], half.valid[step] = terminated, truncated, valid
        half.begins[step + 1] = begins
        self._step = step + 1

    def finish(self, memory: Tree = None) -> int:
        """End this trajectory, full or not, and turn to the other half, which goes on with the last observations.

        Args:
            memory: What a recurrent policy remembers by now: the next trajectory's. None: zeros.

        Returns:
            The number of this turn, for `trajectory`.
        """
        if not self._step:
            raise RuntimeError("A trajectory of no steps was to be finished. Add a step first.")
        done, half, step = self._turn, self._half, self._step
        self._header[done % 2] = done, step
        self._turn = done + 1
        self.begin(half.observations.at(step), half.begins[step], memory)
        return done

    def _open(self) -> None:
        """Say of the half in writing, before anything in it changes, that its old contents are gone."""
        self._header[self._turn % 2] = _BEING_WRITTEN
        self._step, self._begun = 0, True

    @property
    def _half(self) -> _Half:
        return self._halves[self._turn % 2]

    # ---- reading ----------------------------------------------------------------------------------------------------

    def holds(self, turn: int) -> bool:
        """Whether the trajectory of this turn is still there, and whole."""
        return turn >= 0 and int(self._header[turn % 2, 0]) == turn

    def trajectory(self, turn: int) -> Trajectory:
        """The trajectory of a finished turn: views of the store, which stay as they are until the next `finish`.

        Raises LookupError if it is not there any more, or not yet.
        """
        if not self.holds(turn):
            raise LookupError(
                f"The trajectory of turn {turn} is not in the store: it has been written over, or is not finished. "
                "Read a turn before the next one is finished."
            )
        return self._halves[turn % 2].first(int(self._header[turn % 2, 1]))

    def close(self) -> None:
        """Give up the descriptor: the store can be sent to nobody any more. It can still be written and read here."""
        self._block.close()


class _Half:
    """The arrays of one half."""

    def __init__(self, arrays: dict[str, Array], which: int, spaces: tuple[Space[Any], Space[Any]], form: Tree) -> None:
        def named(name: str) -> Array:
            return arrays[f"{name}.{which}"]

        self.observations = ValueArrays(spaces[0], lambda number, *_: named(f"observations{number}"), "observations")
        self.actions = ValueArrays(spaces[1], lambda number, *_: named(f"actions{number}"), "actions")
        self.rewards, self.begins = named("rewards"), named("begins")
        self.terminated, self.truncated, self.valid = (named(name) for name in _FLAGS)
        numbers = iter(range(len(trees.leaves(form))))
        self.memory = trees.mapped(lambda _: named(f"memory{next(numbers)}"), form)
        self._all_rows = np.arange(self.rewards.shape[1])

    def remember(self, memory: Tree) -> None:
        trees.put(self.memory, self._all_rows, memory)

    def first(self, num_steps: int) -> Trajectory:
        """The trajectory of so many steps from the first on."""
        return Trajectory(
            self.observations.at(np.s_[: num_steps + 1]),
            self.actions.at(np.s_[:num_steps]),
            self.rewards[:num_steps],
            self.terminated[:num_steps],
            self.truncated[:num_steps],
            self.valid[:num_steps],
            self.begins[: num_steps + 1],
            self.memory,
        )


def _wanted(
    observation_space: Space[Any], action_space: Space[Any], horizon: int, num_rows: int, form: Tree
) -> list[tuple[str, Any, tuple[int, ...]]]:
    """Name, dtype and shape of every array of a store."""
    wanted: list[tuple[str, Any, tuple[int, ...]]] = [("header", "i8", (2, 2))]
    for which in (0, 1):
        seen, done = (horizon + 1, num_rows), (horizon, num_rows)
        for number, leaf in enumerate(fixed_leaves(observation_space, "observations")):
            wanted.append((f"observations{number}.{which}", leaf.dtype, (*seen, *leaf.shape)))
        for number, leaf in enumerate(fixed_leaves(action_space, "actions")):
            wanted.append((f"actions{number}.{which}", leaf.dtype, (*done, *leaf.shape)))
        for number, array in enumerate(trees.leaves(form)):
            wanted.append((f"memory{number}.{which}", array.dtype, array.shape))
        wanted += [(f"rewards.{which}", "f4", done), (f"begins.{which}", "?", seen)]
        wanted += [(f"{name}.{which}", "?", done) for name in _FLAGS]
    return wanted


def _view(block: SharedBlock, field: Field) -> Array:
    return block.array(field.dtype, field.shape, field.offset)


def _attached(
    observation_space: Space[Any],
    action_space: Space[Any],
    horizon: int,
    num_rows: int,
    memory: Tree,
    block: SharedBlock,
) -> TrajectoryStore:
    return TrajectoryStore(observation_space, action_space, horizon, num_rows, memory=memory, _block=block)
