"""Successive turns of one agent as the rows of one batch, and their actions apart again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from parallel_envs.wrappers.answers import Ask
from parallel_envs.wrappers.rows import as_row, fit, joined, take_rows


def as_one(asks: Sequence[Ask]) -> Ask | None:
    """What an agent is asked in several turns, in their order, in one; None if the observations do not fit together."""
    batches = [as_row(seen) if wanted is None else seen for seen, wanted in asks]
    if not all(fit(batches[0], batch) for batch in batches):
        return None
    masks = [np.ones(1, bool) if wanted is None else np.asarray(wanted, bool) for _, wanted in asks]
    return joined(batches), np.concatenate(masks)


def apart(actions: Any, asks: Sequence[Ask]) -> list[Any]:
    """The actions of each of these turns, of those of all."""
    ends = np.cumsum([1 if wanted is None else len(wanted) for _, wanted in asks]).tolist()
    starts = [0, *ends[:-1]]
    return [_own(actions, start, end, ask) for start, end, ask in zip(starts, ends, asks, strict=True)]


def _own(actions: Any, start: int, end: int, ask: Ask) -> Any:
    _, wanted = ask
    if wanted is not None:
        return take_rows(actions, slice(start, end)) if np.any(wanted) else None
    action = actions[start]
    return action if action.ndim else action.item()
