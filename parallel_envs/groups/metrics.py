"""Figures of episodes, groups and tags. Functions of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple


class Figures(NamedTuple):
    """One episode's metrics, and where they belong."""

    tag: str
    group_id: int
    metrics: Mapping[str, float]


def with_passes(figures: Sequence[Figures], group_size: int) -> list[dict[str, float]]:
    """Each episode's metrics as `tag/name`, and whether anybody of its group succeeded: `tag/pass@k`.

    A group of which all have failed has no `pass@k`.
    """
    passed: dict[int, float] = {}
    for one in figures:
        if (success := one.metrics.get("success")) is not None:
            passed[one.group_id] = max(success, passed.get(one.group_id, 0.0))
    named = []
    for one in figures:
        own = {f"{one.tag}/{name}": value for name, value in one.metrics.items()}
        passes = {f"{one.tag}/pass@{group_size}": passed[one.group_id]} if one.group_id in passed else {}
        named.append(own | passes)
    return named


def by_tag(figures: Sequence[Figures], named: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the episodes that have it; `tag/failed` is the share of those that broke."""
    values: dict[str, list[float]] = {}
    for one, metrics in zip(figures, named, strict=True):
        values.setdefault(f"{one.tag}/failed", []).append(one.metrics.get("failed", 0.0))
        for name in metrics.keys() - {f"{one.tag}/failed"}:
            values.setdefault(name, []).append(metrics[name])
    return {name: fmean(own) for name, own in sorted(values.items())}
