"""What collecting gives: whole rollouts, as they are, as single transitions, or as padded sequences.

A rollout is one episode on one task. Nothing in any of these forms crosses an episode's end.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from parallel_envs.rollouts.columns import Columns, padded

Floats = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Rollout:
    """One episode of `len(rollout)` steps.

    `seed` is what the environment was reset with; `episode_index` counts the rollouts on the same task before this one.
    Dict and Tuple spaces give dicts and tuples of arrays; what has no fixed shape is a tuple with one item a step.
    """

    id: int
    task: Any
    task_id: int
    seed: int
    episode_index: int
    chain: Any
    """All observations, from the first to the last: one more than steps."""
    actions: Any
    rewards: Floats
    terminated: Flags
    truncated: Flags
    records: dict[str, npt.NDArray[Any]]
    """What the policy recorded at each step."""
    infos: dict[str, list[Any]]
    """The infos that were asked for, of each step; None where a step had none of that name."""
    _columns: Columns = field(repr=False)
    _action_columns: Columns = field(repr=False)

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def observations(self) -> Any:
        """What each action was chosen on."""
        return self._columns.cut(self.chain, 0, len(self))

    @property
    def next_observations(self) -> Any:
        """What each action led to: at the end of the episode its very last observation."""
        return self._columns.cut(self.chain, 1, None)

    @property
    def total_reward(self) -> float:
        return float(self.rewards.sum())

    @property
    def previous_actions(self) -> Any:
        """The action before each step; at the first zeros, or None where an action has no fixed shape."""
        return self._action_columns.shifted(self.actions)

    @property
    def previous_rewards(self) -> Floats:
        """The reward before each step, 0 at the first."""
        return np.concatenate([[0.0], self.rewards[:-1]])

    def __repr__(self) -> str:
        return f"Rollout({self.id}, task {self.task_id}, {len(self)} steps, total reward {self.total_reward:.6g})"


@dataclass(frozen=True, slots=True, eq=False)
class Transitions:
    """Single steps, one a row: what Markov agents learn from."""

    observations: Any
    actions: Any
    rewards: Floats
    terminated: Flags
    truncated: Flags
    next_observations: Any
    rollout_ids: npt.NDArray[np.int64]
    task_ids: npt.NDArray[np.int64]
    records: dict[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.rewards)


@dataclass(frozen=True, slots=True, eq=False)
class Sequences:
    """Whole episodes, one a row, filled up with zeros (or None) behind their ends: what Memory agents learn from.

    Shapes are (rollouts, longest, ...). `mask` says which entries are steps.
    """

    observations: Any
    previous_actions: Any
    previous_rewards: Floats
    actions: Any
    rewards: Floats
    terminated: Flags
    truncated: Flags
    next_observations: Any
    mask: Flags
    lengths: npt.NDArray[np.int64]
    task_ids: npt.NDArray[np.int64]
    records: dict[str, npt.NDArray[Any]]

    def __len__(self) -> int:
        return len(self.lengths)


class Rollouts(Sequence[Rollout]):
    """Rollouts in the order of their ids.

    Threads: a value; nothing here changes it once it has been returned.
    """

    def __init__(self, rollouts: Iterable[Rollout] = ()) -> None:
        self._rollouts = sorted(rollouts, key=lambda rollout: rollout.id)

    @overload
    def __getitem__(self, index: int) -> Rollout: ...
    @overload
    def __getitem__(self, index: slice) -> Rollouts: ...
    def __getitem__(self, index: int | slice) -> Rollout | Rollouts:
        return Rollouts(self._rollouts[index]) if isinstance(index, slice) else self._rollouts[index]

    def __len__(self) -> int:
        return len(self._rollouts)

    def __iter__(self) -> Iterator[Rollout]:
        return iter(self._rollouts)

    def __repr__(self) -> str:
        return f"Rollouts({len(self)} rollouts, {self.num_steps} steps)"

    @property
    def num_steps(self) -> int:
        return sum(map(len, self))

    @property
    def total_rewards(self) -> Floats:
        """The sum of rewards of each."""
        return np.array([rollout.total_reward for rollout in self])

    def transitions(self) -> Transitions:
        """Every step of every rollout."""
        columns, action_columns = self._columns()
        lengths = [len(one) for one in self]
        return Transitions(
            columns.join([one.observations for one in self]),
            action_columns.join([one.actions for one in self]),
            np.concatenate([one.rewards for one in self]),
            np.concatenate([one.terminated for one in self]),
            np.concatenate([one.truncated for one in self]),
            columns.join([one.next_observations for one in self]),
            np.repeat(np.array([one.id for one in self], np.int64), lengths),
            np.repeat(np.array([one.task_id for one in self], np.int64), lengths),
            {name: np.concatenate([one.records[name] for one in self]) for name in self[0].records},
        )

    def sequences(self) -> Sequences:
        """Every rollout as a row, filled up to the longest."""
        columns, action_columns = self._columns()
        lengths = np.array([len(one) for one in self], np.int64)
        longest = int(lengths.max())
        return Sequences(
            columns.pad([one.observations for one in self], longest),
            action_columns.pad([one.previous_actions for one in self], longest),
            padded([one.previous_rewards for one in self], longest),
            action_columns.pad([one.actions for one in self], longest),
            padded([one.rewards for one in self], longest),
            padded([one.terminated for one in self], longest),
            padded([one.truncated for one in self], longest),
            columns.pad([one.next_observations for one in self], longest),
            np.arange(longest) < lengths[:, None],
            lengths,
            np.array([one.task_id for one in self], np.int64),
            {name: padded([one.records[name] for one in self], longest) for name in self[0].records},
        )

    def _columns(self) -> tuple[Columns, Columns]:
        if not self._rollouts:
            raise ValueError("There are no rollouts to make arrays of. Collect at least one.")
        return self[0]._columns, self[0]._action_columns  # a rollout and its list are one module
