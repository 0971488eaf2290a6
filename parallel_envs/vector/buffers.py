"""The arrays that the caller and the workers share.

| array | written by | read by | when |
|---|---|---|---|
| actions, and the dtype of each env's | caller | worker | before the bell; after it |
| observations (two sets in turn when they are not copied out) | worker | caller | before its completion; after it |
| rows (reward, flags, which infos), numeric infos | worker | caller | the same |
| counters | worker | caller | any time |

A row belongs to one env, and a row's writer never changes. The bell and the completion order the accesses, so no lock
is needed.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.engine import SharedBlock
from parallel_envs.vector.layout import Field, Leaf, leaves, plan

INFO_BYTES = 1024
"""Room for an env's numeric infos."""

ACTION_DTYPES = tuple(map(np.dtype, ("?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")))
"""What an action may be made of on its way through shared memory: it reaches the env as the caller gave it."""

_WIDEST = max(dtype.itemsize for dtype in ACTION_DTYPES)

ROW = np.dtype(
    {
        "names": ["reward", "info", "terminated", "truncated", "task_id", "episode_index"],
        "formats": ["f8", "i8", "?", "?", "i8", "i8"],
        "offsets": [0, 8, 16, 17, 24, 32],
        "itemsize": 64,  # a cache line: workers on different cores do not write to the same one
    }
)
"""What a step returns besides the observation (see `infos` for `info`), and what a reset changes: task and episode."""

TASK_OFFSET = 24

pack_row = struct.Struct("=dq??").pack_into
"""Write what a step changes in one go: `pack_row(buffer, offset, reward, info, terminated, truncated)`."""

NOT_STEPPED, RESET_SECONDS, AUTORESET_SECONDS, MESSAGE_STEP_SECONDS, COUNTERS = 0, 1, 2, 3, 8
"""Columns of a worker's counters: envs that were asked to step but were reset or raised; seconds in resets asked for,
in resets that came with a step, and in steps asked for by message; and how many columns there are."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything lies. A value: the caller makes it once and sends it to every worker."""

    num_envs: int
    observation: tuple[Leaf, ...]
    action: tuple[Leaf, ...]
    fields: tuple[Field, ...]
    num_bytes: int
    num_sets: int

    @classmethod
    def of(
        cls,
        observation: tuple[Leaf, ...],
        action_space: Space[Any],
        num_envs: int,
        num_workers: int,
        num_sets: int,
    ) -> Plan:
        """Places for `num_sets` sets of observations and for everything else."""
        action = leaves(action_space)
        arrays: list[tuple[str, Any, tuple[int, ...]]] = [
            ("rows", ROW, (num_envs,)),
            ("info_rows", "u1", (num_envs, INFO_BYTES)),
            ("counters", "f8", (num_workers, COUNTERS)),
            ("action_dtypes", "u1", (num_envs, len(action))),
        ]
        arrays += [
            (f"action{position}", "u1", (num_envs, max(leaf.size, 1) * _WIDEST)) for position, leaf in enumerate(action)
        ]
        arrays += [
            (f"observation{position}.{which}", leaf.dtype, (num_envs, *leaf.shape))
            for which in range(num_sets)
            for position, leaf in enumerate(observation)
            if leaf.fixed
        ]
        fields, num_bytes = plan(arrays)
        return cls(num_envs, observation, action, fields, num_bytes, num_sets)


class Buffers:
    """The arrays of a `Plan`, in a block."""

    def __init__(self, plan: Plan, block: SharedBlock) -> None:
        self.plan = plan
        self.block = block
        arrays = {field.name: block.array(field.dtype, field.shape, field.offset) for field in plan.fields}
        self.rows: npt.NDArray[np.void] = arrays["rows"]
        self.rewards: npt.NDArray[np.float64] = self.rows["reward"]
        self.terminated: npt.NDArray[np.bool_] = self.rows["terminated"]
        self.truncated: npt.NDArray[np.bool_] = self.rows["truncated"]
        self.info_schemas: npt.NDArray[np.int64] = self.rows["info"]
        self.info_rows: npt.NDArray[np.uint8] = arrays["info_rows"]
        self.counters: npt.NDArray[np.float64] = arrays["counters"]
        self.action_dtypes: npt.NDArray[np.uint8] = arrays["action_dtypes"]
        self.actions = [
            [_typed(arrays[f"action{position}"], leaf, dtype) for dtype in ACTION_DTYPES]
            for position, leaf in enumerate(plan.action)
        ]
        """For each leaf, and for each of `ACTION_DTYPES`, the same memory seen as that."""
        self.observations = [
            [arrays.get(f"observation{position}.{which}") for position in range(len(plan.observation))]
            for which in range(plan.num_sets)
        ]
        """For each set, and for each leaf, its array; None for a leaf that travels by pipe."""


def cells(array: npt.NDArray[Any]) -> memoryview[Any]:
    """The items of an array, for reading and writing one at a time: quicker than through NumPy."""
    return memoryview(array.data)


def _typed(rows: npt.NDArray[np.uint8], leaf: Leaf, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Memory of one row an env, seen as rows of `leaf.shape` items of `dtype`, however wide the items are."""
    inner = np.empty(leaf.shape, dtype).strides
    return np.ndarray((len(rows), *leaf.shape), dtype, rows.data, strides=(rows.strides[0], *inner))
