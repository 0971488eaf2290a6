"""Replay of one agent's steps: `ReplayBuffer`, `PrioritizedReplayBuffer`, and the files that they are saved in.

The buffer is a ring. Each stored step has a link to the step that followed it in the same episode and environment row,
if any. The ring overwrites the oldest steps first, so links never lead to overwritten steps. A chain of links never
crosses the end of an episode, a gap in the agent's life, or the border between two environments.
"""

from __future__ import annotations

import importlib
import json
import reprlib
import threading
import zipfile
import zlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.checks import check_count, check_share, check_whole, choice, is_number
from parallel_envs.choices import Sampler, words
from parallel_envs.extras import require
from parallel_envs.files import write_whole
from parallel_envs.rollouts.rollout import check_fits, map_tree, put_rows, space_tree, take_rows, tree_leaves
from parallel_envs.rollouts.trajectories import Trajectory

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]
Indices = npt.NDArray[np.int64]
Weights = npt.NDArray[np.float32]
Tree = Any

NONE = -1
"""Index that means no step."""


class ReplayBuffer:
    """The newest steps of one agent, from which batches are sampled uniformly.

        buffer = ReplayBuffer(observation_space, action_space, capacity=100_000, num_rows=8, num_steps=3, discount=0.99)
        buffer.add(observations, actions, rewards, terminated, truncated, next_observations, valid)
        batch = buffer.sample(generator, 256)                      # a dict, see `sample`

    Threads: any thread may call any method; calls wait for one another, so one thread may store while another samples.
    Copy a buffer by `state()` while others store.

    Args:
        observation_space: Of one row. Box, discrete and binary spaces, nested in dicts and tuples.
        action_space: The same for actions.
        capacity: Number of steps to keep, of all rows together; at least one for each row.
        num_rows: Number of environment rows that `add` is given.
        num_steps: Number of rewards to sum up (n-step returns), fewer where the episode ends earlier.
        discount: Weight of a reward relative to the reward one step earlier.
        memory: Memory of a recurrent policy for one row: a tree of arrays, of which only the form and dtypes are used.
            If given, memory is stored with each step.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        capacity: int,
        num_rows: int,
        *,
        num_steps: int = 1,
        discount: float = 0.99,
        memory: Tree = None,
    ) -> None:
        check_count("num_steps", num_steps)
        check_share("discount", discount)
        check_count("num_rows", num_rows)
        check_whole("capacity", capacity)
        if capacity < num_rows:
            raise ValueError(f"capacity={capacity} cannot hold a step of {num_rows} rows. Give at least {num_rows}.")
        self.observation_space, self.action_space = observation_space, action_space
        self.capacity, self.num_rows = capacity, num_rows
        self.num_steps, self.discount = num_steps, discount
        self._arrays: dict[str, Array] = {}
        """All stored arrays, by name: the arrays of `state`."""
        spaces = {"observations": observation_space, "next_observations": observation_space, "actions": action_space}
        self._columns: dict[str, Tree] = {name: self._column(name, space) for name, space in spaces.items()}
        """Trees of arrays of all steps, by the names of the arguments of `add`."""
        for name, dtype in {"rewards": np.float32, "terminated": np.bool_, "truncated": np.bool_}.items():
            self._columns[name] = self._array(name, dtype)
        self._rewards, self._terminated, self._truncated = (self._arrays[name] for name in list(self._columns)[3:])
        self._begins = self._array("begins", np.bool_)
        self._following = self._array("following", np.int64)
        """Index of the step that came after each step; -1: none, or none yet."""
        self._no_memory = map_tree(lambda leaf: np.zeros((num_rows, *np.shape(leaf)), np.asarray(leaf).dtype), memory)
        forms = enumerate(tree_leaves(self._no_memory))
        stored = iter([self._array(f"memory{number}", leaf.dtype, leaf.shape[1:]) for number, leaf in forms])
        self._columns["memory"] = map_tree(lambda _: next(stored), memory)
        self._last: Indices = np.full(num_rows, NONE)
        """Index of the last step of each row, if the next step of the row will follow it."""
        self._position = self._size = 0
        self.num_added = 0
        """Number of steps stored so far; `load_state` counts as one step in every place."""
        self._lock = threading.Lock()
        """Held while steps are stored or sampled: a learner's thread may sample while collection stores."""

    def _array(self, name: str, dtype: Any, shape: tuple[int, ...] = ()) -> Array:
        self._arrays[name] = np.zeros((self.capacity, *shape), dtype)
        return self._arrays[name]

    def _column(self, name: str, space: Space[Any]) -> Tree:
        return space_tree(space, name, lambda number, dtype, shape: self._array(f"{name}{number}", dtype, shape))

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

        A row's step follows the step that was added for the row just before, unless that step ended the episode or was
        not valid, or `begins` marks this one as an episode's first. If any step was left out between, call `cut` first.

        `next_observations` come after the step, also where the episode ended. `valid` marks the rows that are real
        steps of a living agent; other rows are not stored. `begins` marks the observations that are the first of an
        episode (None: those that follow no stored step). `memory` is that of a recurrent policy before it saw
        `observations` (None: zeros). Returns the indices of the steps, in the order of the rows.
        """
        flags = np.asarray(valid)
        if flags.shape != (self.num_rows,) or flags.dtype != np.bool_:
            raise ValueError(f"valid={valid!r} does not say of {self.num_rows} rows whether they are valid.")
        rows: Indices = np.flatnonzero(flags)
        is_whole = len(rows) == self.num_rows
        given = {
            "observations": observations,
            "next_observations": next_observations,
            "actions": actions,
            "rewards": rewards,
            "terminated": terminated,
            "truncated": truncated,
            "memory": self._no_memory if memory is None else memory,
        }
        for name, values in given.items():  # all, before any is stored
            check_fits(self._columns[name], values, self.num_rows, name)
        with self._lock:
            before = self._last[rows]
            if begins is not None:
                before = np.where(np.asarray(begins)[rows], NONE, before)
            places: Indices = (self._position + np.arange(len(rows))) % self.capacity
            for name, values in given.items():
                put_rows(self._columns[name], places, values if is_whole else take_rows(values, rows))
            self._begins[places] = before == NONE if begins is None else np.asarray(begins)[rows]
            self._link(before, places, rows)
        return places

    def _link(self, before: Indices, places: Indices, rows: Indices) -> None:
        """Link the steps at `before` to these steps, and these steps to the next steps of their rows."""
        known = before != NONE
        self._following[before[known]] = places[known]
        self._following[places] = NONE  # after the line above: a step may overwrite the step that it follows
        self._last[:] = NONE
        ended = self._terminated[places] | self._truncated[places]
        self._last[rows] = np.where(ended, NONE, places)
        self._position = (self._position + len(rows)) % self.capacity
        self._size = min(self._size + len(rows), self.capacity)
        self.num_added += len(rows)

    def cut(self, rows: Indices | None = None) -> None:
        """Let the next steps of these rows (None: all) follow no stored step: environments were reset from outside."""
        with self._lock:
            self._last[slice(None) if rows is None else rows] = NONE

    # ---- sampling ---------------------------------------------------------------------------------------------------

    def sample(self, generator: np.random.Generator, batch_size: int) -> dict[str, Any]:
        """Sample steps, each equally likely, with replacement. All random numbers come from `generator`.

        Returns:
            A dict of arrays of `batch_size` rows (observations and actions in the form of their spaces), copies:
            `observations`, `actions`, `rewards` (float32, discounted sums of up to `num_steps` rewards), `discounts`
            (float32, weight of the value of `next_observations`: discount ** k, 0 if the episode terminated there),
            `next_observations` (after the last reward of the sum), `weights` (float32, ones), and `indices`.
        """
        check_generator(generator)
        with self._lock:
            indices, weights = self._draw(generator, batch_size)
            last, rewards = indices, self._rewards[indices].astype(np.float64)
            factors = np.full(len(indices), self.discount)
            for _ in range(self.num_steps - 1):
                following = self._following[last]
                goes_on = following != NONE
                last = np.where(goes_on, following, last)
                rewards += np.where(goes_on, factors * self._rewards[last], 0.0)
                factors = np.where(goes_on, factors * self.discount, factors)
            discounts = np.where(self._terminated[last], 0.0, factors)
            return {
                "observations": take_rows(self._columns["observations"], indices),
                "actions": take_rows(self._columns["actions"], indices),
                "rewards": rewards.astype(np.float32),
                "discounts": discounts.astype(np.float32),
                "next_observations": take_rows(self._columns["next_observations"], last),
                "weights": weights,
                "indices": indices,
            }

    def sample_sequences(self, generator: np.random.Generator, batch_size: int, length: int) -> Trajectory:
        """Sample pieces of up to `length` steps for recurrent agents, as a `Trajectory` of `batch_size` rows. A piece
        begins at any stored step, each equally likely, and ends with its episode (or with the last stored step of it):
        the rest of its row is zeros with `valid` False. `observations[t + 1]` is the observation after step t; `begins`
        marks the first observations of episodes; `memory` was stored with the first step.
        """
        check_count("length", length)
        check_generator(generator)
        with self._lock:
            first, _ = self._draw(generator, batch_size)
            places, valid = np.tile(first, (length, 1)), np.ones((length, len(first)), np.bool_)
            for step in range(1, length):
                following = self._following[places[step - 1]]
                valid[step] = valid[step - 1] & (following != NONE)
                places[step] = np.where(valid[step], following, places[step - 1])
            begins = np.zeros((length + 1, batch_size), np.bool_)
            begins[0] = self._begins[first]
            padding = ~valid
            return Trajectory(
                observations=map_tree(
                    lambda start, rest: np.concatenate([start[None], rest]),
                    take_rows(self._columns["observations"], first),
                    _zeroed(take_rows(self._columns["next_observations"], places), padding),
                ),
                actions=_zeroed(take_rows(self._columns["actions"], places), padding),
                rewards=_zeroed(self._rewards[places], padding),
                terminated=self._terminated[places] & valid,
                truncated=self._truncated[places] & valid,
                valid=valid,
                begins=begins,
                memory=take_rows(self._columns["memory"], first),
            )

    def _draw(self, generator: np.random.Generator, batch_size: int) -> tuple[Indices, Weights]:
        """Return indices of stored steps and the weight of each."""
        self._check_not_empty(batch_size)
        return generator.integers(self._size, size=batch_size), np.ones(batch_size, np.float32)

    def _check_not_empty(self, batch_size: int) -> None:
        check_count("batch_size", batch_size)
        if not self._size:
            raise ValueError(f"A batch of {batch_size} was to be drawn from an empty buffer. Add steps first.")

    # ---- saving -----------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return `{"counters": json-able, "arrays": {name: array}}` for `load_state`: all contents, copied at once."""
        with self._lock:
            arrays = {name: array[: self._size].copy() for name, array in self._arrays.items()}
            return {"counters": self._counters(), "arrays": arrays}

    def _counters(self) -> dict[str, Any]:
        return {
            "position": self._position,
            "size": self._size,
            "last": self._last.tolist(),
            "capacity": self.capacity,
            "num_rows": self.num_rows,
        }

    def load_state(self, state: Any) -> None:
        """Take over a state of a buffer of the same form. Raise ValueError for any other form."""
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
        names = "counters", "arrays"
        if not isinstance(state, Mapping) or not all(isinstance(state.get(name), Mapping) for name in names):
            raise ValueError(
                f"{reprlib.repr(state)} is no state of a buffer. Give what `state()` has returned: a dict with "
                "'counters' and 'arrays', each a dict."
            )
        counters, arrays = state["counters"], state["arrays"]
        for name, own in (("capacity", self.capacity), ("num_rows", self.num_rows)):
            if counters.get(name) != own:
                raise ValueError(f"The stored buffer has {name}={counters.get(name)}, this one {name}={own}.")
        size: Any = counters.get("size")
        if not isinstance(size, int) or not 0 <= size <= self.capacity:
            raise ValueError(f"size={size!r} is not the size of a buffer of {self.capacity} steps.")
        position, last = counters.get("position"), counters.get("last")
        is_next = position in (range(self.capacity) if size == self.capacity else (size,))
        is_last = isinstance(last, list) and len(last) == self.num_rows and all(one in range(-1, size) for one in last)
        for name, fits in (("position", is_next), ("last", is_last)):
            if not fits:
                raise ValueError(f"{name}={counters.get(name)!r} does not belong to a buffer of {self.capacity} steps.")
        if arrays.keys() != self._arrays.keys():
            raise ValueError(f"The stored buffer holds {sorted(arrays, key=str)}, this one {sorted(self._arrays)}.")
        for name, array in self._arrays.items():
            given: Any = arrays[name]
            wanted = (array.dtype, (size, *array.shape[1:]))
            form = (given.dtype, given.shape) if isinstance(given, np.ndarray) else (type(given).__name__, "no shape")
            if form != wanted:
                raise ValueError(f"{name} is stored as {form[0]}, {form[1]} where {wanted[0]}, {wanted[1]} is wanted.")
        links = arrays["following"]
        if len(odd := links[(links < NONE) | (links >= size)]):
            raise ValueError(f"following leads to the place {odd[0]}, and {size} steps are stored.")

    def save(self, path: str | Path) -> None:
        """Write the buffer into one file, without pickle. If writing fails, the file is not there or unchanged."""
        state = self.state()
        write_archive(path, state["counters"], state["arrays"])

    def load(self, path: str | Path) -> None:
        """Read a file of `save`. Raise ValueError if the file is damaged, foreign, or of another form."""
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


def check_generator(generator: Any) -> None:
    """Raise TypeError for anything but a NumPy generator."""
    if not isinstance(generator, np.random.Generator):
        raise TypeError(f"generator={generator!r} is not one of NumPy's. Give np.random.default_rng(seed).")


def _zeroed(tree: Tree, where: Flags) -> Tree:
    """Write zeros into the arrays of a tree, and return the tree."""

    def zero(array: Array) -> Array:
        array[where] = 0
        return array

    return map_tree(zero, tree)


# ---- prioritized replay (Schaul et al., 2016, proportional variant) -------------------------------------------------

_BRANCHES = 64
_LEAST_PRIORITY = 1e-4  # added to each priority, so that a step with error 0 may be sampled again


class SumTree:
    """Priorities of the places of a ring: a place is sampled in proportion to its `(priority + 1e-4) ** alpha`. A tree
    over the places holds sums, to sample from, and minima, to scale weights by. Each node has 64 branches in a row of
    an array, so there are few levels, with a few operations for a whole batch.

    Threads: one thread at a time; a buffer calls it while it holds its own lock.
    """

    def __init__(self, capacity: int, alpha: float) -> None:
        self._alpha = alpha
        shapes = [(-(-capacity // _BRANCHES), _BRANCHES)]  # nodes and their branches on each level, leaves first
        while shapes[-1][0] > 1:
            shapes.append((-(-shapes[-1][0] // _BRANCHES), _BRANCHES))
        self._sums = [np.zeros(shape) for shape in shapes]
        self._least = [np.full(shape, np.inf) for shape in shapes]

    def update(self, places: Indices, priorities: Array) -> None:
        """Set the priorities of places."""
        total = least = (priorities + _LEAST_PRIORITY) ** self._alpha
        for sums, lows in zip(self._sums, self._least, strict=True):
            places, branches = np.divmod(places, _BRANCHES)
            sums[places, branches], lows[places, branches] = total, least
            total, least = sums[places].sum(1), lows[places].min(1)

    extend = update  # for the next places of the ring

    def sample(self, generator: np.random.Generator, batch_size: int, beta: float) -> tuple[Indices, Weights]:
        """Sample places. Return them with their importance weights, to the power of beta, scaled to at most 1."""
        # One sample in each of equal parts of the total sum: the same probabilities with less variance.
        rest = (np.arange(batch_size) + generator.random(batch_size)) * (self._sums[-1].sum() / batch_size)
        places, shares = np.zeros(batch_size, np.int64), rest
        for sums in reversed(self._sums):
            branches, rest, shares = _branch(sums[places], rest)
            places = places * _BRANCHES + branches
        return places, ((shares / self._least[-1].min()) ** -beta).astype(np.float32)


def _branch(sums: Array, rest: Array) -> tuple[Indices, Array, Array]:
    """Find in each row of sums the branch at `rest`. Return the branches, the rests within them, and their sums."""
    ends, rows = sums.cumsum(1), np.arange(len(sums))
    rest = np.minimum(rest, np.nextafter(ends[:, -1], 0.0))  # rounding may leave more than there is
    branches = (ends <= rest[:, None]).sum(1)
    begins = np.where(branches > 0, ends[rows, branches - 1], 0.0)
    return branches, rest - begins, sums[rows, branches]


class CpprbPriorities:
    """A `SumTree` of the library cpprb, faster with large rings. Its samples come from a generator of its own, which
    cannot be seeded.
    """

    def __init__(self, capacity: int, alpha: float) -> None:
        require('sampler="cpprb" (the other choice is "tree")', "cpprb")
        cpprb = importlib.import_module("cpprb")
        columns = {"place": {"dtype": np.int64}}
        self._ring = cpprb.PrioritizedReplayBuffer(capacity, columns, alpha=alpha, eps=_LEAST_PRIORITY)

    def extend(self, places: Indices, priorities: Array) -> None:
        if len(places):
            self._ring.add(place=places, priorities=priorities)

    def update(self, places: Indices, priorities: Array) -> None:
        if len(places):
            self._ring.update_priorities(places, priorities)

    def sample(self, generator: np.random.Generator, batch_size: int, beta: float) -> tuple[Indices, Weights]:
        drawn = self._ring.sample(batch_size, beta)
        return drawn["indexes"].astype(np.int64), drawn["weights"].astype(np.float32)


class PrioritizedReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` from which steps are sampled in proportion to their priorities.

    A new step has the highest priority so far. Update the priorities after each batch:

        batch = buffer.sample(generator, 256)
        ...                                                        # multiply each loss by `batch["weights"]`
        buffer.update_priorities(batch["indices"], abs(errors))

    Threads: as `ReplayBuffer`: any thread may call any method.

    Args:
        *arguments, **options: As for `ReplayBuffer`.
        alpha: Exponent of the priorities, from 0 (uniform sampling) to 1.
        beta: Exponent of the importance weights, from 0 (no correction of the bias) to 1. May be changed later.
        sampler: `"tree"`, which can be repeated, or `"cpprb"` (installed separately), which cannot.
    """

    def __init__(
        self,
        observation_space: Space[Any],
        action_space: Space[Any],
        capacity: int,
        num_rows: int,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        sampler: Sampler = "tree",
        **options: Any,
    ) -> None:
        super().__init__(observation_space, action_space, capacity, num_rows, **options)
        choice("sampler", sampler, words(Sampler))
        check_share("alpha", alpha)
        check_share("beta", beta)
        self.alpha, self.beta = alpha, beta
        self._stored = self._array("priorities", np.float64)
        self._highest = 1.0
        self._new_priorities = partial(
            SumTree if sampler == "tree" else CpprbPriorities, capacity=self.capacity, alpha=alpha
        )
        self._priorities = self._new_priorities()

    def update_priorities(self, indices: Indices, priorities: Array, *, drawn_at: int | None = None) -> None:
        """Set the priorities of sampled steps: numbers from 0 up, such as the sizes of their errors. `drawn_at`: the
        value of `num_added` when they were sampled, if steps may have been stored since. Overwritten steps are skipped:
        the new steps in their places keep the priority of new steps.
        """
        given = np.asarray(priorities, np.float64)
        if given.shape != np.shape(indices) or not np.all(np.isfinite(given)) or np.any(given < 0):
            raise ValueError("Priorities must be one finite number from 0 up for each index.")
        with self._lock:
            if drawn_at is not None:
                indices = np.asarray(indices)
                age = (self._position - 1 - indices) % self.capacity  # number of steps stored after each
                still_there = age >= self.num_added - drawn_at
                indices, given = indices[still_there], given[still_there]
            self._stored[indices] = given
            self._priorities.update(indices, self._stored[indices])
            self._highest = max(self._highest, float(given.max(initial=0.0)))

    def _link(self, before: Indices, places: Indices, rows: Indices) -> None:
        super()._link(before, places, rows)
        self._stored[places] = self._highest
        self._priorities.extend(places, self._stored[places])

    def _draw(self, generator: np.random.Generator, batch_size: int) -> tuple[Indices, Weights]:
        self._check_not_empty(batch_size)
        return self._priorities.sample(generator, batch_size, self.beta)

    def _counters(self) -> dict[str, Any]:
        return {**super()._counters(), "highest": self._highest, "beta": self.beta}

    def check_state(self, state: Any) -> None:
        super().check_state(state)
        counters, priorities = state["counters"], state["arrays"]["priorities"]
        for name in ("highest", "beta"):
            if not is_number(counters.get(name)) or counters[name] < 0:
                raise ValueError(f"{name}={counters.get(name)!r} is not a number from 0 up.")
        if not np.all(np.isfinite(priorities) & (priorities >= 0)):
            raise ValueError("priorities are stored that are not finite numbers from 0 up.")

    def _take_over(self, counters: dict[str, Any], arrays: dict[str, Array]) -> None:
        super()._take_over(counters, arrays)
        self._highest, self.beta = float(counters["highest"]), float(counters["beta"])
        self._priorities = self._new_priorities()
        places = np.arange(len(self))
        self._priorities.extend(places, self._stored[places])
        if len(self) == self.capacity:  # add once more, until cpprb's next place is the ring's next place
            again = places[: self._position]
            self._priorities.extend(again, self._stored[again])


# ---- archives -------------------------------------------------------------------------------------------------------

_HEADER = "header.json"  # contains a dot, so it is the name of no array
_DAMAGED = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError),
    *(MemoryError, SyntaxError, zipfile.BadZipFile, zlib.error),
)
"""Errors that zipfile, NumPy and JSON raise for foreign bytes."""


def write_archive(path: str | Path, header: dict[str, Any], arrays: dict[str, Array]) -> None:
    """Write an npz file of a JSON header and arrays, without pickle. It replaces an earlier file in one moment."""
    write_whole(Path(path), archive_writer(header, arrays))


def archive_writer(header: dict[str, Any], arrays: dict[str, Array]) -> Callable[[IO[bytes]], None]:
    """Return a function that writes such an archive into an open file."""
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    entries: dict[str, Any] = {_HEADER: text, **arrays}
    return lambda file: np.savez(file, **entries)


def read_archive(path: str | Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Return header and arrays. Raise ValueError if the file is damaged or was not written by `write_archive`."""
    try:
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            entries = {name: file[name] for name in file.files}
        return dict(json.loads(entries.pop(_HEADER).tobytes())), entries
    except FileNotFoundError:
        raise
    except _DAMAGED as error:
        raise ValueError(f"{path} is damaged, or is not a file of stored arrays: {error}") from error
