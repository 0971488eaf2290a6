"""From what a manager returns to rows of plain values, which can be compared with `==`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.soak_replay import Row


def rows_of_reset(observations: Any, infos: Mapping[str, Any]) -> list[Row]:
    """The rows of a batch without rewards and flags."""
    if isinstance(observations, dict):
        numbers, texts = map(tuple, observations["numbers"].tolist()), observations["text"]
        shown: list[Any] = [{"numbers": one, "text": text} for one, text in zip(numbers, texts, strict=True)]
    else:
        shown = [tuple(numbers) for numbers in observations.tolist()]
    return [Row(one, _info(infos, row)) for row, one in enumerate(shown)]


def rows_of_step(
    observations: Any, rewards: Any, terminated: Any, truncated: Any, infos: Mapping[str, Any]
) -> list[Row]:
    """The rows of a whole batch."""
    flags = zip(rewards.tolist(), terminated.tolist(), truncated.tolist(), strict=True)
    rows = zip(rows_of_reset(observations, infos), flags, strict=True)
    return [Row(row.observation, row.info, *flag) for row, flag in rows]


def row_of(result: Sequence[Any]) -> Row:
    """The row of a single env."""
    observation, reward, terminated, truncated, info = map(_plain, result)
    return Row(observation, info, reward, terminated, truncated)


def _info(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """What a batch of infos holds for one row: all that its masks mark."""
    keys = (key for key in infos if not key.startswith("_") and infos[f"_{key}"][row])
    return {key: _info(column, row) if isinstance(column := infos[key], dict) else _plain(column[row]) for key in keys}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return tuple(value.tolist())
    if isinstance(value, np.generic):
        return value.item()
    return {key: _plain(inner) for key, inner in value.items()} if isinstance(value, dict) else value
