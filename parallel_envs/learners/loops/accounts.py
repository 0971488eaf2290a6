"""Figures of a loop: lags, waiting times, and how much time was saved.

While the loop collects, it can learn. Compared with one after the other, at best the shorter of the two times is saved:
`bound` = min(collect, learn) / (collect + learn). `gain` is what was saved.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.learners.algorithm import Agent


@dataclass(frozen=True, slots=True)
class Lag:
    """Number of updates that the acting weights were behind the learning weights, over an agent's transitions."""

    least: int
    mean: float
    most: int


@dataclass(frozen=True, slots=True)
class LoopReport:
    """Lags and times of a loop so far."""

    mode: str
    lags: Mapping[Agent, Lag]
    """By agent, without agents that have not learnt."""
    updates_per_step: Mapping[Agent, float]
    """Updates that each of these agents has made in this loop, for each step that it has lived in it."""
    collect_seconds: float
    """Seconds of acting, stepping the environments and drawing plans."""
    learn_seconds: float
    collect_waited: float
    """Seconds that collecting waited for learning."""
    learn_waited: float
    """Seconds that learning waited for collecting."""
    seconds: float
    """Seconds by the wall clock."""

    @property
    def bound(self) -> float:
        """Return the share of the time that can be saved at best."""
        both = self.collect_seconds + self.learn_seconds
        return min(self.collect_seconds, self.learn_seconds) / both if both else 0.0

    @property
    def gain(self) -> float:
        """Return the share of the time of collecting and learning that was saved. Negative if waiting cost more."""
        both = self.collect_seconds + self.learn_seconds
        return 1 - self.seconds / both if both else 0.0

    def described(self) -> dict[str, Any]:
        """Return the report in plain values for JSON."""
        lags = {str(agent): {"min": lag.least, "mean": lag.mean, "max": lag.most} for agent, lag in self.lags.items()}
        times = ("collect_seconds", "learn_seconds", "collect_waited", "learn_waited", "seconds", "bound", "gain")
        ratios = {str(agent): round(ratio, 6) for agent, ratio in self.updates_per_step.items()}
        told = {"mode": self.mode, "lag": lags, "updates_per_step": ratios}
        return {**told, **{name: round(float(getattr(self, name)), 6) for name in times}}

    def __str__(self) -> str:
        if not self.lags:
            return f"{self.mode}: nothing learnt yet"
        if self.mode == "sync":  # collecting and learning always wait for each other
            return f"sync: learning while collecting could save {self.bound:.0%} of the time at best"
        least, most = min(lag.least for lag in self.lags.values()), max(lag.most for lag in self.lags.values())
        mean = sum(lag.mean for lag in self.lags.values()) / len(self.lags)
        return (
            f"{self.mode}: lag {least} / {mean:.2f} / {most} updates, collecting waited {self.collect_waited:.1f} s, "
            f"learning {self.learn_waited:.1f} s, saved {self.gain:.0%} of the time ({self.bound:.0%} at best)"
        )


@dataclass(slots=True)
class _Lags:
    least: int = 0
    most: int = 0
    total: int = 0
    count: int = 0


@dataclass(slots=True)
class Accounts:
    """Collects the figures in the collecting thread. Times of learning are passed to `report`."""

    mode: str
    clock: Callable[[], float] = time.perf_counter
    collected: float = 0.0
    waited: float = 0.0
    _began: float = field(init=False)
    _lags: dict[Agent, _Lags] = field(default_factory=dict)
    _updates: Counter[Agent] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._began = self.clock()

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Count the time of the block as collecting."""
        began = self.clock()
        try:
            yield
        finally:
            self.collected += self.clock() - began

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count the time of the block as waiting for learning."""
        began = self.clock()
        try:
            yield
        finally:
            self.waited += self.clock() - began

    def learnt(self, agent: Agent, lags: npt.NDArray[np.int64]) -> None:
        """Count an agent's update from transitions with these lags."""
        self._updates[agent] += 1
        if not lags.size:
            return
        least, most = int(lags.min()), int(lags.max())
        own = self._lags.setdefault(agent, _Lags(least, most))
        own.least, own.most = min(own.least, least), max(own.most, most)
        own.total, own.count = own.total + int(np.sum(lags)), own.count + lags.size

    def report(
        self, learnt: float, waited: float, lived: Mapping[Agent, int], collect_waited: float | None = None
    ) -> LoopReport:
        """Return the report. `learnt`, `waited` are the seconds of learning, `lived` the steps of each agent."""
        own = self.waited if collect_waited is None else collect_waited
        lags = {agent: Lag(one.least, one.total / one.count, one.most) for agent, one in self._lags.items()}
        ratios = {agent: self._updates[agent] / max(lived[agent], 1) for agent in lags}
        seconds = self.clock() - self._began
        return LoopReport(self.mode, lags, ratios, self.collected, learnt, own, waited, seconds)
