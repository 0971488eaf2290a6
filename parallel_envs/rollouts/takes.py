"""A rollout while it is being played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.rollouts.columns import Columns
from parallel_envs.rollouts.orders import Order
from parallel_envs.rollouts.rollout import Rollout


class Take:
    """What has come of an order so far."""

    __slots__ = ("actions", "chain", "generator", "infos", "order", "records", "rewards", "terminated", "truncated")

    def __init__(self, order: Order, info_keys: Sequence[str]) -> None:
        self.order = order
        self.generator = order.generator()
        self.chain: list[Any] = []
        self.actions: list[Any] = []
        self.rewards: list[float] = []
        self.terminated: list[bool] = []
        self.truncated: list[bool] = []
        self.records: list[Mapping[str, Any]] = []
        self.infos: dict[str, list[Any]] = {key: [] for key in info_keys}

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def begun(self) -> bool:
        return bool(self.chain)

    def rollout(self, columns: Columns, action_columns: Columns) -> Rollout:
        """The whole of it, after its last step."""
        task = self.order.task
        return Rollout(
            self.order.id,
            None if task is None else task.value,
            -1 if task is None else task.id,
            self.order.seed,
            self.order.episode_index,
            columns.stack(self.chain),
            action_columns.stack(self.actions),
            np.array(self.rewards, np.float64),
            np.array(self.terminated, np.bool_),
            np.array(self.truncated, np.bool_),
            _stacked(self.records),
            self.infos,
            columns,
            action_columns,
        )


def _stacked(records: Sequence[Mapping[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    return {name: np.stack([record[name] for record in records]) for name in records[0]} if records else {}
