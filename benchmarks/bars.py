"""What a speed is measured against: bars, what gives their figures, and the verdict on each.

The promises themselves are in `promises`; kinds of experiments are in `experiments`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from benchmarks.plan import Needs, first_missing
from benchmarks.syscalls import StraceMissing
from parallel_envs.bench.measure import MeasurementFailed, Tell
from parallel_envs.bench.turns import Pace

Figures = Mapping[str, float]
_Result = Figures | MeasurementFailed | StraceMissing


@dataclass(frozen=True)
class Experiment(ABC):
    """Something to run that gives named figures."""

    @abstractmethod
    def figures(self, pace: Pace, tell: Tell) -> Figures:
        """Run it. A figure that could not be had is left out; `MeasurementFailed` if there is none at all."""


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One promise: `figure` of `experiment` is at least, or at most, `limit`.

    `needs` are (module, what to pip install) pairs without which it is skipped.
    """

    work: str
    experiment: Experiment
    figure: str
    unit: str
    sense: Literal["at least", "at most"]
    limit: float
    needs: Needs = ()

    @property
    def aim(self) -> str:
        """What is promised, in words."""
        return f"{self.sense} {self.limit:g} {self.unit}"

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.sense == "at least" else value <= self.limit


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What came of a bar. `note` says why there is no value."""

    bar: Bar
    outcome: Literal["PASS", "FAIL", "SKIP"]
    value: float | None = None
    note: str = ""


def judge(bars: Iterable[Bar], pace: Pace, tell: Tell = lambda text: None) -> Iterator[Verdict]:
    """Run what the bars need, each experiment once, and compare. Verdicts come one by one: all of them take long."""
    results: dict[Experiment, _Result] = {}
    for bar in bars:
        yield _verdict(bar, pace, tell, results)


def about(bars: Iterable[Bar], text: str) -> tuple[Bar, ...]:
    """Those whose work, or what they are measured against, has this text in it."""
    return tuple(bar for bar in bars if text.lower() in f"{bar.work} {bar.unit}".lower())


def _verdict(bar: Bar, pace: Pace, tell: Tell, results: dict[Experiment, _Result]) -> Verdict:
    if (need := first_missing(bar.needs)) is not None:
        return Verdict(bar=bar, outcome="SKIP", note=f"not installed: pip install '{need}'")
    if bar.experiment not in results:
        results[bar.experiment] = _figures(bar, pace, tell)
    match results[bar.experiment]:
        case StraceMissing() as reason:
            return Verdict(bar=bar, outcome="SKIP", note=str(reason))
        case MeasurementFailed() as failure:
            return Verdict(bar=bar, outcome="FAIL", note=str(failure))
        case figures:
            return _compared(bar, figures)


def _figures(bar: Bar, pace: Pace, tell: Tell) -> _Result:
    try:
        return bar.experiment.figures(pace, lambda text: tell(f"{bar.work}: {text}"))
    except (MeasurementFailed, StraceMissing) as failure:
        return failure


def _compared(bar: Bar, figures: Figures) -> Verdict:
    value = figures.get(bar.figure)
    if value is None:
        return Verdict(bar=bar, outcome="FAIL", note=f"no figure for {bar.figure}")
    return Verdict(bar=bar, outcome="PASS" if bar.holds(value) else "FAIL", value=value)
