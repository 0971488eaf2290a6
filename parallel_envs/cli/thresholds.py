"""What an evaluation must reach to be good: `--fail-below METRIC=VALUE`.

mean=-30                 each policy, over all missions
CartPole-v1:mean=100     all that happened in a mission
random:success=0.5       a policy by its name
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parallel_envs.spelling import hint

if TYPE_CHECKING:
    from parallel_envs.evaluation import EvaluationResult
    from parallel_envs.evaluation.statistics import Summary

METRICS = {
    "mean": "mean",
    "iqm": "iqm",
    "low": "iqm_interval",
    "success": "success_rate",
}
"""By the name that is given, the field of a `Summary`. `low` is the lower end of the interval."""


class BadThreshold(ValueError):
    """A threshold that cannot be understood."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """A bound from below. `name` is a mission's or a policy's; None: every policy's."""

    metric: str
    value: float
    name: str | None = None

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """A threshold from its text. Raises BadThreshold."""
        left, equals, number = text.rpartition("=")
        name, colon, metric = left.rpartition(":")
        if not equals or not metric:
            raise BadThreshold(f"--fail-below {text!r} has not the form METRIC=VALUE, as mean=-30 has.")
        if metric not in METRICS:
            meant = hint(metric, METRICS) or f" Choose one of {', '.join(METRICS)}."
            raise BadThreshold(f"--fail-below {text!r}: there is no metric {metric!r}.{meant}")
        try:
            value = float(number)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise BadThreshold(f"--fail-below {text!r}: {number!r} is not a number.")
        return cls(metric, value, name if colon else None)

    def check_name(self, names: Collection[str]) -> None:
        """Raise BadThreshold unless the name is one of these, missions and policies."""
        if self.name is None or self.name in names:
            return
        meant = hint(self.name, names) or f" There are {', '.join(map(repr, names))}."
        raise BadThreshold(f"--fail-below: no mission and no policy is called {self.name!r}.{meant}")

    def missed_by(self, result: EvaluationResult) -> list[str]:
        """A sentence for each figure that is below, or that is not known."""
        return [told for name, summary in self._summaries(result).items() if (told := self._told(name, summary))]

    def _summaries(self, result: EvaluationResult) -> dict[str, Summary]:
        from parallel_envs.evaluation.statistics import summarise  # late: it takes time, and `--help` shows no figures

        policies = result.per_policy()
        if self.name is None:
            return policies
        known = {**policies, **result.per_mission()}
        return {self.name: known.get(self.name) or summarise({})}  # who has not played yet has no figures

    def _told(self, name: str, summary: Summary) -> str:
        value = getattr(summary, METRICS[self.metric])
        number = value[0] if isinstance(value, tuple) else value
        if number is None:
            return f"{name}: {self.metric} is not known, and {self.value:g} is wanted."
        return "" if number >= self.value else f"{name}: {self.metric} is {number:.6g}, below {self.value:g}."
