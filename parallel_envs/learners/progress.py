"""Progress of a training run: live on a terminal, a line now and then anywhere else. Also: fewer repeated warnings."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

Agent = Hashable
Clock = Callable[[], float]

_MOST_AGENTS = 12  # shown by name; the others are counted
_LIVE_SECONDS, _LINE_SECONDS = 0.2, 10.0  # between two updates of the display, and two lines


@dataclass(frozen=True, slots=True)
class Progress:
    """Progress of a run."""

    steps: int
    """Steps of environments, all rows together."""
    updates: int
    returns: Mapping[Agent, float] = field(default_factory=dict)
    """Each agent's mean return lately, without agents that have finished no episode."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Time spent on each part: collect, act, update."""
    loop: str = ""
    """A text about collecting and learning in parallel."""


class Display:
    """Progress on a console: a `live` panel, or a line now and then. Computes the speed."""

    def __init__(self, total_steps: int, console: Console, clock: Clock, live: Live | None) -> None:
        self._total_steps, self._console, self._clock, self._live = total_steps, console, clock, live
        self._began: tuple[float, int] | None = None  # first call: a resumed run has steps already
        self._shown = float("-inf")

    def show(self, progress: Progress, *, last: bool = False) -> None:
        """Show the progress, unless that was done just before. The last progress is always shown."""
        now, steps, total = self._clock(), progress.steps, self._total_steps
        if self._began is None:
            self._began = now, steps
        if not last and now - self._shown < (_LINE_SECONDS if self._live is None else _LIVE_SECONDS):
            return
        self._shown = now
        seconds = now - self._began[0]
        speed = (steps - self._began[1]) / seconds if seconds > 0 else 0.0
        left = duration(max(total - steps, 0) / speed) if speed > 0 else "?"
        percent = min(100 * steps // total, 100)  # a run makes more steps until all experience is learnt
        pace = f"{steps:,} of {total:,} steps ({percent}%), {speed:,.0f} steps/s, {left} left"
        pace = f"{pace}, update {progress.updates:,}"
        if self._live is None:
            say(self._console, "; ".join(_texts(progress, pace)))
        else:
            self._live.update(panel(progress, pace, total), refresh=True)


@contextlib.contextmanager
def display(total_steps: int, *, console: Console | None = None, clock: Clock = time.monotonic) -> Iterator[Display]:
    """Show progress on stderr as long as the context lasts."""
    from rich.console import Console as RichConsole
    from rich.live import Live

    shown = console or RichConsole(stderr=True)
    live = Live(console=shown, auto_refresh=False) if shown.is_terminal else None
    with live or contextlib.nullcontext():
        yield Display(total_steps, shown, clock, live)


def say(console: Console, text: str) -> None:
    """Print plain text."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _texts(progress: Progress, pace: str) -> list[str]:
    """Return the parts of a display that are not empty: pace, returns, shares of time, loop."""
    whole = sum(progress.seconds.values())
    shares = [f"{name} {spent / whole:.0%}" for name, spent in progress.seconds.items()] if whole > 0 else []
    return [text for text in (pace, returns_told(progress.returns), ", ".join(shares), progress.loop) if text]


def panel(progress: Progress, pace: str, total_steps: int) -> RenderableType:
    """Return the live display: a bar above the texts."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    rows = Table.grid()
    rows.add_row(ProgressBar(total=total_steps, completed=progress.steps, width=60))
    for line in _texts(progress, pace):
        rows.add_row(Text(line))
    return rows


def returns_told(returns: Mapping[Agent, float]) -> str:
    """Return the agents' returns as text, by name for the first few."""
    if not returns:
        return ""
    texts = [f"{agent} {value:.4g}" for agent, value in list(returns.items())[:_MOST_AGENTS]]
    more = [f"and {len(returns) - _MOST_AGENTS} more"] if len(returns) > _MOST_AGENTS else []
    return f"return {', '.join([*texts, *more])}"


def duration(seconds: float) -> str:
    """Return a duration as text: 42 s, 3 min 20 s, 2 h 05 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"


# ---- warnings ---------------------------------------------------------------------------------------------------

_DIFFERENT_EACH_TIME = re.compile(r"\bin step \d+ of the update\b")


class Repetitions(logging.Filter):
    """Lets the first of equal warnings through, the tenth, the hundredth and so on, and counts them."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        text = _DIFFERENT_EACH_TIME.sub("", record.getMessage())
        self._counts[text] += 1
        record.__dict__["times"] = self._counts[text]
        return str(self._counts[text]).strip("0") == "1"


class Counted(logging.Formatter):
    """Formats a record that has passed `Repetitions`: its text, and the number of equal warnings."""

    def format(self, record: logging.LogRecord) -> str:
        times = getattr(record, "times", 1)
        return record.getMessage() if times == 1 else f"{record.getMessage()} ({times} times so far.)"
