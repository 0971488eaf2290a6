"""Steps of one agent in shared memory, which a learner in another process reads without a copy.

A `TrajectoryStore` has two halves that take turns: while collection writes one, learners read the other. Each finished
half has a number, its *turn*. Turn 3 can be read until turn 4 is finished. Then its half is overwritten for turn 5:
`trajectory(3)` raises, and `holds(3)` tells a slow reader whether the arrays it has read were whole.
"""

from __future__ import annotations

import functools
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.checks import check_count
from parallel_envs.engine import ArrayLayout, SharedBlock
from parallel_envs.rollouts.rollout import (
    check_fits,
    check_rows,
    map_tree,
    put_rows,
    space_tree,
    take_rows,
    tree_leaves,
)

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

        def array(shape: tuple[int, ...], dtype: Any) -> Array:  # says how large the array is, and takes no memory
            return np.broadcast_to(np.zeros((), dtype), shape)

        form = {
            "observations": space_tree(observation_space, "observations", lambda _, t, s: array((*seen, *s), t)),
            "actions": space_tree(action_space, "actions", lambda _, t, s: array((*done, *s), t)),
            "rewards": array(done, np.float32),
            **{name: array(done, np.bool_) for name in ("terminated", "truncated", "valid")},
            "begins": array(seen, np.bool_),
            "memory": self._no_memory,
        }
        wanted: dict[str, Any] = {
            str(place): (one.dtype, one.shape) for place, one in enumerate(tree_leaves([form, form]))
        }
        layout = ArrayLayout({"header": (np.int64, (2, 2)), **wanted})
        self._block = SharedBlock.create(layout.num_bytes) if _block is None else _block
        weakref.finalize(self, self._block.close)
        arrays = iter(layout.views(self._block).values())
        self._header: npt.NDArray[np.int64] = next(arrays)
        """Turn and number of steps of each half."""
        self._halves = [Trajectory(**map_tree(lambda _: next(arrays), form)) for _ in range(2)]
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
        remembered = self._no_memory if memory is None else memory
        check_fits(half.observations, observations, self.num_rows, "observations", num_axes=2)
        check_fits(half.memory, remembered, self.num_rows, "memories")
        put_rows(half.observations, 0, observations)
        put_rows(half.memory, slice(None), remembered)
        half.begins[0] = True if begins is None else begins

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
        check_fits(half.actions, actions, self.num_rows, "actions", num_axes=2)
        check_fits(half.observations, observations, self.num_rows, "observations", num_axes=2)
        put_rows(half.actions, step, actions)
        put_rows(half.observations, step + 1, observations)
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
        self.begin(take_rows(half.observations, step), half.begins[step], memory)
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
            take_rows(half.observations, np.s_[: num_steps + 1]),
            take_rows(half.actions, np.s_[:num_steps]),
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
