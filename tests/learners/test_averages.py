"""Metrics of many updates become few lines, and none is lost."""

from __future__ import annotations

import math
from typing import Any

from parallel_envs.learners.run_folder import MetricMeans


def averages(every: int, begins: int = 0) -> tuple[MetricMeans, list[Any]]:
    lines: list[Any] = []
    return MetricMeans(every, lambda steps, means: lines.append((steps, means)), begins=begins), lines


def test_updates_that_are_close_share_a_line() -> None:
    made, lines = averages(every=10, begins=100)
    for steps in (104, 108, 112, 116):
        made.add(steps, {"red": {"loss": float(steps)}})
    assert lines == [(112, {"red": {"loss": 108.0}})]
    made.flush(117)
    made.flush(118)
    assert lines[1:] == [(117, {"red": {"loss": 116.0}})]


def test_updates_that_are_far_apart_have_a_line_each() -> None:
    made, lines = averages(every=10)
    for steps in (50, 100):
        made.add(steps, {"red": {"loss": 1.0}})
    assert [steps for steps, _ in lines] == [50, 100]


def test_each_agent_is_averaged_over_its_own_updates() -> None:
    made, lines = averages(every=10)
    made.add(5, {"red": {"loss": 1.0}, 7: {"loss": 5.0}})
    made.add(10, {"red": {"loss": 2.0, "kl": 4.0}})
    assert lines == [(10, {"red": {"loss": 1.5, "kl": 4.0}, 7: {"loss": 5.0}})]


def test_what_is_not_finite_is_not_hidden_by_the_rest() -> None:
    for odd in (math.inf, -math.inf, math.nan):
        made, lines = averages(every=1)
        made.add(0, {"red": {"loss": 1.0}})
        made.add(1, {"red": {"loss": odd}})
        assert math.isnan(lines[0][1]["red"]["loss"])
