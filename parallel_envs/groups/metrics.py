"""Figures of episodes, groups and tags. Functions of values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from statistics import fmean
from typing import NamedTuple

RAW_REWARD = "raw_reward"
"""In the info of every turn: the sum of `raw_reward` over the turn's actions, 0.0 where no info has it. As in RAGEN."""
EPISODIC_RETURN = "episodic_return"
"""The metric that is the sum of `raw_reward` over an episode. As in RAGEN."""
INVALID = "manager_invalid_action"
"""True in the info of a turn that had no action with a meaning, and in the history's next item. As in RAGEN."""

FAILED = "failed"
"""All that is known of an episode that broke: `{FAILED: 1.0}`. What it would have come to is anybody's guess."""


class Figures(NamedTuple):
    """One episode's metrics, and where they belong.

    `in_turns` are the names of those that are means over its turns; None: it has had no turn yet.
    """

    tag: str
    group_id: int
    metrics: Mapping[str, float]
    in_turns: Set[str] | None = None


def with_passes(figures: Sequence[Figures], group_size: int) -> list[dict[str, float]]:
    """Each episode's metrics as `tag/name`, and whether anybody of its group succeeded: `tag/pass@k`.

    A group of which all have failed has no `pass@k`, and neither has one whose environments do not tell of success.
    """
    figures, passed = _judged(figures), dict[int, float]()
    for one in figures:
        if (success := one.metrics.get("success")) is not None:
            passed[one.group_id] = max(success, passed.get(one.group_id, 0.0))
    named = []
    for one in figures:
        own = {f"{one.tag}/{name}": value for name, value in one.metrics.items()}
        passes = {f"{one.tag}/pass@{group_size}": passed[one.group_id]} if one.group_id in passed else {}
        named.append(own | passes)
    return named


def _judged(figures: Sequence[Figures]) -> list[Figures]:
    """With zeros for what is known of a tag's turns and some told nothing of.

    That is `success`; but if nobody of a tag tells it, whatever it does, then without. And it is all else that others
    told of their turns, for those whose turns had no action with a meaning: a turn that did not tell it counts as 0.
    """
    in_turns: dict[str, set[str]] = {}
    for one in figures:
        in_turns.setdefault(one.tag, set()).update(one.in_turns or ())
    told = {one.tag for one in figures if "success" in one.metrics}
    mute = {one.tag for one in figures if one.metrics.get("num_actions")} - told

    def judged(one: Figures) -> Figures:
        if "num_actions" not in one.metrics:  # of those that failed there are no figures
            return one
        success = {} if one.tag in mute else {"success": 0.0}
        did_nothing = one.in_turns is not None and one.in_turns <= {RAW_REWARD, INVALID}  # the manager's own
        rest = dict.fromkeys(in_turns[one.tag] - {INVALID}, 0.0) if did_nothing else {}
        return one._replace(metrics={**rest, **success, **one.metrics})

    return [judged(one) for one in figures]


def by_tag(figures: Sequence[Figures], named: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each metric over the episodes that have it; `tag/failed` is the share of those that broke.

    An episode that had turns, and no `manager_invalid_action` among its metrics, counts as 0 for it.
    """
    values: dict[str, list[float]] = {}
    for one, metrics in zip(figures, named, strict=True):
        values.setdefault(failed := f"{one.tag}/{FAILED}", []).append(one.metrics.get(FAILED, 0.0))
        for name in metrics.keys() - {failed}:
            values.setdefault(name, []).append(metrics[name])
    for one in figures:
        if (invalid := f"{one.tag}/{INVALID}") in values and one.in_turns is not None and INVALID not in one.metrics:
            values[invalid] += [] if FAILED in one.metrics else [0.0]
    return {name: fmean(own) for name, own in sorted(values.items())}
