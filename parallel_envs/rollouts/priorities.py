"""Prioritized replay (Schaul et al., 2016, proportional variant): steps with larger errors are sampled more often.

SumTree            in NumPy; samples come from the generator that is given to `sample`, so a run can be repeated
CpprbPriorities    with the library cpprb; samples come from cpprb's own generator, which cannot be seeded
"""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.choices import Sampler
from parallel_envs.extras import require
from parallel_envs.rollouts.replay import Array, Indices, ReplayBuffer, check_generator
from parallel_envs.vector.checks import check_share, is_number

Weights = npt.NDArray[np.float32]

_BRANCHES = 64
_LEAST_PRIORITY = 1e-4  # added to each priority, so that a step with error 0 may be sampled again


class Priorities(ABC):
    """Priorities of the places of a ring. A place is sampled in proportion to its `(priority + 1e-4) ** alpha`.

    Threads: one thread at a time; a buffer calls it while it holds its own lock.
    """

    @abstractmethod
    def extend(self, places: Indices, priorities: Array) -> None:
        """Add the next places of the ring."""

    @abstractmethod
    def update(self, places: Indices, priorities: Array) -> None:
        """Set the priorities of places that were added before."""

    @abstractmethod
    def sample(self, generator: np.random.Generator, batch_size: int, beta: float) -> tuple[Indices, Weights]:
        """Sample places. Return them with their importance weights, to the power of beta, scaled to at most 1."""


class SumTree(Priorities):
    """Tree over the places that holds sums, to sample from, and minima, to scale weights by.

    Each node has 64 branches in a row of an array, so there are few levels, with a few operations for a whole batch.
    """

    def __init__(self, capacity: int, alpha: float) -> None:
        self._alpha = alpha
        shapes = [(-(-capacity // _BRANCHES), _BRANCHES)]  # nodes and their branches on each level, leaves first
        while shapes[-1][0] > 1:
            shapes.append((-(-shapes[-1][0] // _BRANCHES), _BRANCHES))
        self._sums = [np.zeros(shape) for shape in shapes]
        self._least = [np.full(shape, np.inf) for shape in shapes]

    def extend(self, places: Indices, priorities: Array) -> None:
        self.update(places, priorities)

    def update(self, places: Indices, priorities: Array) -> None:
        total = least = (priorities + _LEAST_PRIORITY) ** self._alpha
        for sums, lows in zip(self._sums, self._least, strict=True):
            places, branches = np.divmod(places, _BRANCHES)
            sums[places, branches], lows[places, branches] = total, least
            total, least = sums[places].sum(1), lows[places].min(1)

    def sample(self, generator: np.random.Generator, batch_size: int, beta: float) -> tuple[Indices, Weights]:
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


class CpprbPriorities(Priorities):
    """Priorities in cpprb's segment trees, faster with large rings. Samples do not depend on the given generator."""

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
        observation_space, action_space, capacity, num_rows, **options: As for `ReplayBuffer`.
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
        if sampler not in ("tree", "cpprb"):
            raise ValueError(f'sampler={sampler!r} is unknown. Give "tree" or "cpprb".')
        check_share("alpha", alpha)
        check_share("beta", beta)
        self.alpha, self.beta, self._sampler = alpha, beta, sampler
        self._stored = self._array("priorities", np.float64)
        self._highest = 1.0
        self._priorities = self._empty_priorities()

    def _empty_priorities(self) -> Priorities:
        kind = SumTree if self._sampler == "tree" else CpprbPriorities
        return kind(self.capacity, self.alpha)

    def update_priorities(self, indices: Indices, priorities: Array, *, drawn_at: int | None = None) -> None:
        """Set the priorities of sampled steps: numbers from 0 up, such as the sizes of their errors.

        `drawn_at`: the value of `num_added` when they were sampled, if steps may have been stored since. Overwritten
        steps are skipped: the new steps in their places keep the priority of new steps.
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
        check_generator(generator)
        self._check_not_empty(batch_size)
        return self._priorities.sample(generator, batch_size, self.beta)

    def _counters(self) -> dict[str, Any]:
        return {**super()._counters(), "highest": self._highest, "beta": self.beta}

    def _check_state(self, counters: dict[str, Any], arrays: dict[str, Array]) -> None:
        super()._check_state(counters, arrays)
        for name in ("highest", "beta"):
            if not is_number(counters.get(name)) or counters[name] < 0:
                raise ValueError(f"{name}={counters.get(name)!r} is not a number from 0 up.")
        if not np.all(np.isfinite(arrays["priorities"]) & (arrays["priorities"] >= 0)):
            raise ValueError("priorities are stored that are not finite numbers from 0 up.")

    def _take_over(self, counters: dict[str, Any], arrays: dict[str, Array]) -> None:
        super()._take_over(counters, arrays)
        self._highest, self.beta = float(counters["highest"]), float(counters["beta"])
        self._priorities = self._empty_priorities()
        places = np.arange(len(self))
        self._priorities.extend(places, self._stored[places])
        if len(self) == self.capacity:  # add once more, until cpprb's next place is the ring's next place
            again = places[: self._position]
            self._priorities.extend(again, self._stored[again])
