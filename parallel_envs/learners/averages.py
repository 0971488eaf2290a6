"""Metrics of many updates as few lines: agents that learn from replay update every few steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping

Agent = Hashable
Metrics = Mapping[Agent, Mapping[str, float]]


class Averages:
    """Each agent's metrics, averaged over the updates of so many steps.

    If one of the numbers was not finite, their mean is NaN.

    Args:
        every: Steps between two lines; the first update after that makes a line.
        write: Is given the steps at which the line ends and the means.
    """

    def __init__(self, every: int, write: Callable[[int, dict[Agent, dict[str, float]]], None], *, begins: int) -> None:
        self._every, self._write, self._mark = every, write, begins
        self._values: dict[Agent, dict[str, list[float]]] = {}

    def add(self, steps: int, metrics: Metrics) -> None:
        """The metrics of an update that was made after so many steps."""
        for agent, own in metrics.items():
            known = self._values.setdefault(agent, {})
            for name, value in own.items():
                known.setdefault(name, []).append(value)
        if steps - self._mark >= self._every:
            self.flush(steps)

    def flush(self, steps: int) -> None:
        """Write what has not been written yet."""
        if self._values:
            self._write(steps, {agent: _means(own) for agent, own in self._values.items()})
        self._values, self._mark = {}, steps


def _means(values: Mapping[str, list[float]]) -> dict[str, float]:
    return {name: math.fsum(own) / len(own) if _all_finite(own) else math.nan for name, own in values.items()}


def _all_finite(values: list[float]) -> bool:
    return all(map(math.isfinite, values))
