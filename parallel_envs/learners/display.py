"""How far a training run is: live on a terminal, a line now and then anywhere else."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

Agent = Hashable
Clock = Callable[[], float]

_MOST_AGENTS = 12  # shown by name; of the others, how many there are
_LIVE_SECONDS, _LINE_SECONDS = 0.2, 10.0  # between two updates of the display, and two lines


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands."""

    steps: int
    """Of environments, all rows together."""
    updates: int
    returns: Mapping[Agent, float] = field(default_factory=dict)
    """Each agent's mean return lately; without those who have not finished an episode."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """What the time went into: collect, act, update."""
    loop: str = ""
    """What is to be said of how collecting and learning go together."""


class Display(Protocol):
    """Where progress is shown."""

    def show(self, progress: Progress, *, last: bool = False) -> None:
        """Tell how far it is. Costs next to nothing if it has just been told; the last word is always shown."""


@contextlib.contextmanager
def display(total_steps: int, *, console: Console | None = None, clock: Clock = time.monotonic) -> Iterator[Display]:
    """A display on stderr for as long as the context lasts."""
    from rich.console import Console as RichConsole

    console = console or RichConsole(stderr=True)
    pace = _Pace(total_steps, clock)
    if not console.is_terminal:
        yield _Lines(console, pace)
        return
    from rich.live import Live

    with Live(console=console, auto_refresh=False) as live:
        yield _Panel(live, pace)


class _Pace:
    """Steps per second, and what that makes of the time left. Counts from the first word on: a resumed run is ahead."""

    def __init__(self, total_steps: int, clock: Clock) -> None:
        self.total_steps, self.clock = total_steps, clock
        self._began: tuple[float, int] | None = None

    def speed(self, steps: int) -> float:
        now = self.clock()
        if self._began is None:
            self._began = now, steps
        seconds = now - self._began[0]
        return (steps - self._began[1]) / seconds if seconds > 0 else 0.0

    def told(self, progress: Progress) -> str:
        speed = self.speed(progress.steps)
        left = duration(max(self.total_steps - progress.steps, 0) / speed) if speed > 0 else "?"
        percent = min(100 * progress.steps // self.total_steps, 100)  # it ends when all that was lived is learnt
        return (
            f"{progress.steps:,} of {self.total_steps:,} steps ({percent}%), {speed:,.0f} steps/s, {left} left, "
            f"update {progress.updates:,}"
        )


class _Lines:
    def __init__(self, console: Console, pace: _Pace) -> None:
        self._console, self._pace = console, pace
        self._shown = float("-inf")

    def show(self, progress: Progress, *, last: bool = False) -> None:
        now = self._pace.clock()
        told = self._pace.told(progress)  # asked for each time: the pace begins with the first word
        if not last and now - self._shown < _LINE_SECONDS:
            return
        self._shown = now
        parts = [told, returns_told(progress.returns), shares_told(progress.seconds), progress.loop]
        line = "; ".join(part for part in parts if part)
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class _Panel:
    def __init__(self, live: Live, pace: _Pace) -> None:
        self._live, self._pace = live, pace
        self._shown = float("-inf")

    def show(self, progress: Progress, *, last: bool = False) -> None:
        now = self._pace.clock()
        told = self._pace.told(progress)
        if last or now - self._shown >= _LIVE_SECONDS:
            self._shown = now
            self._live.update(_panel(progress, told, self._pace.total_steps), refresh=True)


def _panel(progress: Progress, told: str, total_steps: int) -> RenderableType:
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    rows = Table.grid()
    rows.add_row(ProgressBar(total=total_steps, completed=progress.steps, width=60))
    for line in (told, returns_told(progress.returns), shares_told(progress.seconds), progress.loop):
        if line:
            rows.add_row(Text(line))
    return rows


def returns_told(returns: Mapping[Agent, float]) -> str:
    """Each agent's return in words, as many as can be read."""
    if not returns:
        return ""
    told = [f"{agent} {value:.4g}" for agent, value in list(returns.items())[:_MOST_AGENTS]]
    more = [f"and {len(returns) - _MOST_AGENTS} more"] if len(returns) > _MOST_AGENTS else []
    return f"return {', '.join([*told, *more])}"


def shares_told(seconds: Mapping[str, float]) -> str:
    """What share of the time each thing took."""
    whole = sum(seconds.values())
    return ", ".join(f"{name} {spent / whole:.0%}" for name, spent in seconds.items()) if whole > 0 else ""


def duration(seconds: float) -> str:
    """As people say it: 42 s, 3 min 20 s, 2 h 05 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
