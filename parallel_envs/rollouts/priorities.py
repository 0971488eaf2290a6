"""Replay in which steps that taught more are drawn more often (Schaul et al., 2016, proportional variant).

SumTree            in NumPy; draws come from the generator that `sample` is given, so a run can be repeated
CpprbPriorities    through the library cpprb; draws come from a generator of its own, which cannot be seeded
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
from parallel_envs.rollouts.replay import ReplayBuffer, check_generator
from parallel_envs.rollouts.ring import Indices
from parallel_envs.vector.checks import check_share, is_number

Array = npt.NDArray[Any]
Weights = npt.NDArray[np.float32]

_BRANCHES = 64
_LEAST_PRIORITY = 1e-4  # added to each, so that a step that taught nothing may be drawn again


class Priorities(ABC):
    """How important each place of a ring is. A place is drawn in proportion to its `(priority + 1e-4) ** alpha`.

    Threads: one thread at a time; a buffer calls it while it holds its own lock.
    """

    @abstractmethod
    def extend(self, places: Indices, priorities: Array) -> None:
        """The next places of the ring are filled."""

    @abstractmethod
    def update(self, places: Indices, priorities: Array) -> None:
        """These places, filled before, are as important as that from now on."""

    @abstractmethod
    def draw(self, generator: np.random.Generator, batch_size: int, beta: float) -> tuple[Indices, Weights]:
        """Places, and for each how often a uniform draw would have met it, to the power of beta; the most is 1."""


class SumTree(Priorities):
    """A tree over the places, of sums to draw from and of least values to scale weights by.

    Each node has 64 branches, in a row of an array: few levels, and on each a few operations for a whole batch.
    """

    def __init__(self, capacity: int, alpha: float) -> None:
        self._alpha = alpha
        shapes = _levels(capacity)
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

    def draw(self, generator: np.random.Generator, batch_size: int, beta: float) -> tuple[Indices, Weights]:
        # One draw in each of equal parts of the whole: as likely as before, and less scattered.
        rest = (np.arange(batch_size) + generator.random(batch_size)) * (self._sums[-1].sum() / batch_size)
        places, shares = np.zeros(batch_size, np.int64), rest
        for sums in reversed(self._sums):
            branches, rest, shares = _branch(sums[places], rest)
            places = places * _BRANCHES + branches
        return places, ((shares / self._least[-1].min()) ** -beta).astype(np.float32)


def _levels(capacity: int) -> list[tuple[int, int]]:
    """How many nodes there are on each level, leaves first, and their branches."""
    shapes = [(-(-capacity // _BRANCHES), _BRANCHES)]
    while shapes[-1][0] > 1:
        shapes.append((-(-shapes[-1][0] // _BRANCHES), _BRANCHES))
    return shapes


def _branch(sums: Array, rest: Array) -> tuple[Indices, Array, Array]:
    """For each row of sums the branch that `rest` leads to, what is left of it there, and that branch's sum."""
    ends, rows = sums.cumsum(1), np.arange(len(sums))
    rest = np.minimum(rest, np.nextafter(ends[:, -1], 0.0))  # rounding may leave more than there is
    branches = (ends <= rest[:, None]).sum(1)
    begins = np.where(branches > 0, ends[rows, branches - 1], 0.0)
    return branches, rest - begins, sums[rows, branches]


class CpprbPriorities(Priorities):
    """The same in cpprb's segment trees, quicker with large rings. What it draws does not depend on the generator."""

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

    def draw(self, generator: np.random.Generator, batch_size: int, beta: float) -> tuple[Indices, Weights]:
        drawn = self._ring.sample(batch_size, beta)
        return drawn["indexes"].astype(np.int64), drawn["weights"].astype(np.float32)


class PrioritizedReplayBuffer(ReplayBuffer):
    """A `ReplayBuffer` from which steps are drawn in proportion to how much they taught.

    A new step is as important as the most important one so far. After each batch, tell what it taught:

        batch = buffer.sample(generator, 256)
        ...                                                        # count each loss `batch["weights"]` times
        buffer.update_priorities(batch["indices"], abs(errors))

    Threads: as `ReplayBuffer`: any thread may call any method.

    Args:
        observation_space, action_space, capacity, num_rows, **options: As for `ReplayBuffer`.
        alpha: How much priorities count: 0 not at all, 1 in full.
        beta: How much of the bias that they bring the weights take back: 0 nothing, 1 all. May be changed later.
        sampler: `"tree"`, whose draws can be repeated, or `"cpprb"` (to be installed apart), whose draws cannot.
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
        self._priorities = self._fresh()

    def _fresh(self) -> Priorities:
        kind = SumTree if self._sampler == "tree" else CpprbPriorities
        return kind(self.capacity, self.alpha)

    def update_priorities(self, indices: Indices, priorities: Array, *, drawn_at: int | None = None) -> None:
        """Steps that were drawn are as important as that: numbers from 0 up, such as the size of their errors.

        `drawn_at`: what `num_added` was when they were drawn, if steps may have been stored since. What lies in their
        places by now is other steps, of which nothing has been learnt yet: they stay as important as new ones are.
        """
        given = np.asarray(priorities, np.float64)
        if given.shape != np.shape(indices) or not np.all(np.isfinite(given)) or np.any(given < 0):
            raise ValueError("Priorities must be one finite number from 0 up for each index.")
        with self._lock:
            if drawn_at is not None:
                indices, still_there = np.asarray(indices), self._lie_there_since(np.asarray(indices), drawn_at)
                indices, given = indices[still_there], given[still_there]
            self._stored[indices] = given
            self._priorities.update(indices, self._stored[indices])
            self._highest = max(self._highest, float(given.max(initial=0.0)))

    def _lie_there_since(self, places: Indices, num_added: int) -> npt.NDArray[np.bool_]:
        """In which places nothing has been stored since so many steps had been."""
        age: Indices = (self._position - 1 - places) % self.capacity  # steps that have been stored after it
        return np.asarray(age >= self.num_added - num_added)

    def _link(self, before: Indices, places: Indices, rows: Indices) -> None:
        super()._link(before, places, rows)
        self._stored[places] = self._highest
        self._priorities.extend(places, self._stored[places])

    def _draw(self, generator: np.random.Generator, batch_size: int) -> tuple[Indices, Weights]:
        check_generator(generator)
        self._check_not_empty(batch_size)
        return self._priorities.draw(generator, batch_size, self.beta)

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
        self._priorities = self._fresh()
        places = np.arange(len(self))
        self._priorities.extend(places, self._stored[places])
        if len(self) == self.capacity:  # go round the ring until the next place is the one to be written next
            again = places[: self._position]
            self._priorities.extend(again, self._stored[again])
