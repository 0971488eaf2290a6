"""What one agent lived through, from which past steps are drawn again."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.rollouts import trees
from parallel_envs.rollouts.ring import NONE, Array, Flags, Indices, StepRing, Tree
from parallel_envs.rollouts.trajectories import Trajectory
from parallel_envs.vector.checks import check_count, check_share

__all__ = ["ReplayBuffer"]


class ReplayBuffer(StepRing):
    """A ring of steps, from which batches are drawn uniformly.

        buffer = ReplayBuffer(observation_space, action_space, capacity=100_000, num_rows=8, num_steps=3, discount=0.99)
        buffer.add(observations, actions, rewards, terminated, truncated, next_observations, valid)
        batch = buffer.sample(generator, 256)                      # a dict, see `sample`

    Threads: any thread may call any method; calls wait for one another, so one thread may store while another draws.
    Copy one by `state()` while others store.

    Args:
        observation_space: Of one row. Boxes, discrete and binary spaces, in dicts and tuples at will.
        action_space: The same for actions.
        capacity: How many steps are kept, of all rows together; at least one for each row.
        num_rows: How many environment rows `add` is given.
        num_steps: Rewards of so many steps are summed up (n-step returns), fewer where the episode ends before.
        discount: What the reward of the next step counts, in that of the one before.
        memory: What a recurrent policy remembers of one row, as a tree of arrays without the axis of rows, for form and
            dtype only. Stored beside each step if given.
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
        super().__init__(observation_space, action_space, capacity, num_rows, memory=memory)
        self.num_steps, self.discount = num_steps, discount

    def sample(self, generator: np.random.Generator, batch_size: int) -> dict[str, Any]:
        """Draw steps, each equally likely, with replacement; all that is drawn comes from `generator`.

        Returns:
            A dict of arrays of `batch_size` rows (observations and actions in the form of their spaces), copies:
            `observations`, `actions`, `rewards` (float32, discounted sums of up to `num_steps` rewards), `discounts`
            (float32, what the value of `next_observations` counts: discount ** k, 0 if the episode terminated there),
            `next_observations` (after the last reward of the sum), `weights` (float32, ones), and `indices`.
        """
        with self._lock:
            indices, weights = self._draw(generator, batch_size)
            last, rewards, discounts = self._summed(indices)
            return {
                "observations": self._observations.at(indices),
                "actions": self._actions.at(indices),
                "rewards": rewards,
                "discounts": discounts,
                "next_observations": self._next_observations.at(last),
                "weights": weights,
                "indices": indices,
            }

    def _draw(self, generator: np.random.Generator, batch_size: int) -> tuple[Indices, npt.NDArray[np.float32]]:
        """Places of stored steps, and what each is to count."""
        check_generator(generator)
        self._check_not_empty(batch_size)
        return generator.integers(self._size, size=batch_size), np.ones(batch_size, np.float32)

    def _check_not_empty(self, batch_size: int) -> None:
        check_count("batch_size", batch_size)
        if not self._size:
            raise ValueError(f"A batch of {batch_size} was to be drawn from an empty buffer. Add steps first.")

    def _summed(self, indices: Indices) -> tuple[Indices, Array, Array]:
        """For each step the last of its sum, the sum of rewards, and what the value after it counts."""
        last, rewards = indices, self._rewards[indices].astype(np.float64)
        factors = np.full(len(indices), self.discount)
        for _ in range(self.num_steps - 1):
            following = self._following[last]
            goes_on = following != NONE
            last = np.where(goes_on, following, last)
            rewards += np.where(goes_on, factors * self._rewards[last], 0.0)
            factors = np.where(goes_on, factors * self.discount, factors)
        discounts = np.where(self._terminated[last], 0.0, factors)
        return last, rewards.astype(np.float32), discounts.astype(np.float32)

    def sample_sequences(self, generator: np.random.Generator, batch_size: int, length: int) -> Trajectory:
        """Draw pieces of up to `length` steps for recurrent agents, as a `Trajectory` of `batch_size` rows.

        A piece begins at any stored step, each equally likely, and ends with its episode (or what is known of it):
        what is left of its row is zeros with `valid` False. `observations[t + 1]` is what the agent saw after step t;
        `begins` marks episodes' first observations, and `memory` is what was stored with the first step.
        """
        check_count("length", length)
        with self._lock:
            first, _ = self._draw(generator, batch_size)
            places, valid = self._pursued(first, length)
            begins = np.zeros((length + 1, batch_size), np.bool_)
            begins[0] = self._begins[first]
            return Trajectory(
                observations=self._seen(places, valid),
                actions=_blanked(self._actions.at(places), valid),
                rewards=_blanked(self._rewards[places], valid),
                terminated=self._terminated[places] & valid,
                truncated=self._truncated[places] & valid,
                valid=valid,
                begins=begins,
                memory=trees.take(self._memory, first),
            )

    def _pursued(self, first: Indices, length: int) -> tuple[Indices, Flags]:
        """The places of the steps that follow one another from these on, and which of them are any."""
        places, valid = np.tile(first, (length, 1)), np.ones((length, len(first)), np.bool_)
        for step in range(1, length):
            following = self._following[places[step - 1]]
            valid[step] = valid[step - 1] & (following != NONE)
            places[step] = np.where(valid[step], following, places[step - 1])
        return places, valid

    def _seen(self, places: Indices, valid: Flags) -> Tree:
        """The first observations, and behind them those after each step."""
        after = _blanked(self._next_observations.at(places), valid)
        return trees.mapped(
            lambda first, rest: np.concatenate([first[None], rest]), self._observations.at(places[0]), after
        )


def check_generator(generator: Any) -> None:
    """Raise TypeError for what is no generator of NumPy's."""
    if not isinstance(generator, np.random.Generator):
        raise TypeError(f"generator={generator!r} is not one of NumPy's. Give np.random.default_rng(seed).")


def _blanked(tree: Tree, valid: Flags) -> Tree:
    """Copies with zeros where there is nothing."""

    def blank(leaf: Array) -> Array:
        leaf[~valid] = 0
        return leaf

    return trees.mapped(blank, tree)
