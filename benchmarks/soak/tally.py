"""Counts of a soak, and the verdict."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from benchmarks.memory import Holdings
from benchmarks.soak.model import Injection

RSS_BYTES_ALLOWED = 8 << 20
"""Memory that this process and the supervisor may gain, whatever the length of the soak: room for the allocator."""

_MOST_COMPLAINTS = 20


@dataclass(frozen=True, slots=True)
class TimedCall:
    """Name, duration and time limit of a call."""

    name: str
    seconds: float
    allowed: float

    @property
    def share(self) -> float:
        return self.seconds / self.allowed


@dataclass(slots=True)
class Tally:
    """Counts of a soak. `wrong` counts rows and workers that differ from the model."""

    before: Holdings
    """Resources held before the first manager was made."""
    after: Holdings | None = None
    """Resources held after the last manager was closed."""
    warm_rss_bytes: int = 0
    """Memory after the last of the warm-up legs."""
    injected: Counter[Injection] = field(default_factory=Counter)
    survived: int = 0
    legs: int = 0
    bad_legs: int = 0
    """Legs that ended because something was wrong."""
    calls: int = 0
    steps: int = 0
    restarts: int = 0
    stalls: int = 0
    """Workers that were late although no fault was injected: the machine was too busy."""
    wrong: int = 0
    overdue: int = 0
    slowest: TimedCall = TimedCall("", 0.0, 1.0)
    seconds: float = 0.0
    complaints: list[str] = field(default_factory=list)
    errors: int = 0
    """Calls that raised or never returned."""
    interrupted: bool = False

    @property
    def num_injected(self) -> int:
        return self.injected.total()

    @property
    def leaked(self) -> Mapping[str, int]:
        """Resources of which there are more after the soak than before it."""
        return {} if self.after is None else self.after.counts_gained(self.before)

    @property
    def rss_growth(self) -> int:
        return self.after.rss_bytes - self.warm_rss_bytes if self.after and self.warm_rss_bytes else 0

    @property
    def good(self) -> bool:
        """True if nothing is wrong, late or left behind. After Ctrl-C some faults may have no answer yet."""
        all_survived = self.interrupted or self.survived == self.num_injected
        nothing_wrong = not (self.wrong or self.overdue or self.errors or self.leaked)
        return all_survived and nothing_wrong and self.rss_growth <= RSS_BYTES_ALLOWED

    def line(self, seconds: float) -> str:
        """Return a line about the progress, out of `seconds`."""
        return (
            f"{self.seconds:.0f} of {seconds:.0f} s: {self.num_injected} faults, {self.survived} survived, "
            f"{self.restarts} restarts, {self.steps:,} rows, {self.wrong} wrong, {self.overdue} late"
        )

    def outcome(self) -> dict[str, object]:
        """Return the content of the result file."""
        counted = ("survived", "restarts", "steps", "calls", "legs", "wrong", "errors", "overdue", "stalls", "seconds")
        return {
            "good": self.good,
            "injected": self.num_injected,
            **{name: getattr(self, name) for name in counted},
            "slowest": dataclasses.asdict(self.slowest),
            "leaked": dict(self.leaked),
            "rss_growth_bytes": self.rss_growth,
            "interrupted": self.interrupted,
            "complaints": list(self.complaints),
        }

    def time(self, call: TimedCall) -> None:
        """Record a call that has returned."""
        self.calls += 1
        if call.share > self.slowest.share:
            self.slowest = call
        if call.share > 1:
            self.overdue += 1
            self.complain(f"{call.name} took {call.seconds:.2f} s, and {call.allowed:.2f} s were allowed")

    def complain(self, text: str) -> None:
        """Keep the description of an error, unless there are too many already."""
        if len(self.complaints) < _MOST_COMPLAINTS:
            self.complaints.append(text)
