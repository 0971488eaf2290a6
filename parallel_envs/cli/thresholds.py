"""What an evaluation must reach to be good: `--fail-below METRIC=VALUE`.

mean=-30                 each policy, over all missions, if these are of one environment
CartPole-v1:mean=100     all that happened in a mission; each policy in it, where policies played one by one
random:success=0.5       a policy by its name
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING

from parallel_envs.spelling import hint

if TYPE_CHECKING:
    from parallel_envs.evaluation import EvaluationResult, Mission
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

    def check_missions(self, missions: Collection[Mission]) -> None:
        """Raise BadThreshold for a mean over missions of different environments, which have none."""
        from parallel_envs.evaluation import EvaluationResult
        from parallel_envs.evaluation.statistics import like_missions

        names = [mission.name for mission in missions]
        if self.metric == "success" or self.name in names:
            return
        settings = {"missions": {mission.name: mission.described() for mission in missions}}
        nothing_yet = EvaluationResult(episodes=(), settings=settings, missing=tuple((name, 0) for name in names))
        if len(like_missions(nothing_yet)) > 1:
            example = f"{names[0]}:{self.metric}={self.value:g}"
            raise BadThreshold(
                f"--fail-below {self.metric}={self.value:g}: missions of different environments have no common "
                f"{METRICS[self.metric].partition('_')[0]}. Give one for each, such as {example}."
            )

    def missed_by(self, result: EvaluationResult) -> list[str]:
        """A sentence for each figure that is below, or that is not known."""
        return [told for name, summary in self._summaries(result).items() if (told := self._told(name, summary))]

    def _summaries(self, result: EvaluationResult) -> dict[str, Summary]:
        from parallel_envs.evaluation.statistics import summarise  # late: it takes time, and `--help` shows no figures

        policies = result.per_policy()
        if self.name is None:
            return policies
        if cells := self._one_by_one(result):
            return cells
        known = {**policies, **result.per_mission()}
        return {self.name: known.get(self.name) or summarise({})}  # who has not played yet has no figures

    def _one_by_one(self, result: EvaluationResult) -> dict[str, Summary]:
        """Of a mission that several policies played one by one, the figures of each."""
        from parallel_envs.evaluation.statistics import per_mission_and_policy

        if len({record.alone for record in result.episodes}) < 2:
            return {}
        cells = per_mission_and_policy(result)
        return {f"{policy} in {of}": cell for (of, policy), cell in cells.items() if of == self.name}

    def _told(self, name: str, summary: Summary) -> str:
        value = getattr(summary, METRICS[self.metric])
        number = value[0] if isinstance(value, tuple) else value
        if number is None:
            return f"{name}: {self.metric} is not known, and {self.value:g} is wanted."
        return "" if number >= self.value else f"{name}: {self.metric} is {number:.6g}, below {self.value:g}."
