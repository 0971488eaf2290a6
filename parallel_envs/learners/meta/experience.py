"""From rollouts to what algorithms learn from: trajectories for PPO, replay buffers for DQN and SAC.

A rollout is all that was played on one task, so an inner episode's end is a step like others; the rollout's end is
final (nothing counts that would come after), unless it was cut off and `end_is_final` is False.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.rollouts import Rollouts, Sequences
from parallel_envs.rollouts.replay import ReplayBuffer
from parallel_envs.rollouts.trajectories import Trajectory

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Lesson:
    """How rollouts are told to an algorithm."""

    reward_scale: float = 1.0
    end_is_final: bool = True

    def trajectory(self, rollouts: Rollouts) -> Trajectory:
        """All rollouts side by side, a row each, filled up to the longest."""
        told = rollouts.sequences()
        terminated, truncated = self._ends(told)
        begins = np.zeros((told.mask.shape[1] + 1, len(told)), np.bool_)
        begins[0] = True
        return Trajectory(
            observations=_time_first(_chain(told)),
            actions=_time_first(told.actions),
            rewards=_time_first(told.rewards * self.reward_scale).astype(np.float32),
            terminated=_time_first(terminated),
            truncated=_time_first(truncated),
            valid=_time_first(told.mask),
            begins=begins,
        )

    def store(self, rollouts: Rollouts, buffer: ReplayBuffer) -> None:
        """Add rollouts to a buffer, as many at once as it has rows."""
        for first in range(0, len(rollouts), buffer.num_rows):
            self._store_beside(rollouts[first : first + buffer.num_rows], buffer)

    def _store_beside(self, rollouts: Rollouts, buffer: ReplayBuffer) -> None:
        told = rollouts.sequences()
        terminated, truncated = self._ends(told)
        columns = (
            told.observations,
            told.actions,
            told.rewards * self.reward_scale,
            terminated,
            truncated,
            told.next_observations,
            told.mask,
        )
        filled = [_time_first(_filled(column, buffer.num_rows)) for column in columns]
        buffer.cut()
        for step in range(told.mask.shape[1]):
            buffer.add(*(column[step] for column in filled))

    def _ends(self, told: Sequences) -> tuple[Array, Array]:
        if not self.end_is_final:
            return told.terminated, told.truncated
        return told.terminated | told.truncated, np.zeros_like(told.truncated)


def _chain(told: Sequences) -> Array:
    """What was seen before each step and, at the end, after the last."""
    chain = np.concatenate([told.observations, told.next_observations[:, -1:]], 1)
    rows, lengths = np.arange(len(told)), told.lengths
    chain[rows, lengths] = told.next_observations[rows, lengths - 1]
    return np.asarray(chain)


def _time_first(array: Array) -> Array:
    return np.ascontiguousarray(np.swapaxes(array, 0, 1))


def _filled(array: Array, num_rows: int) -> Array:
    """Rows of zeros behind those there are."""
    missing = np.zeros((num_rows - len(array), *array.shape[1:]), array.dtype)
    return np.concatenate([array, missing]) if len(missing) else array
