"""Progress of long work on stderr: changed in place on a terminal, a line a minute anywhere else, and the last one.

    with shown("episodes", 200) as display:         # on stderr; quiet=True shows nothing
        for done in range(200):
            ...
            if display.due():
                display.show(done, more="2 failed")
        display.show(200, last=True)

    37 of 200 episodes (18%), 3.5 episodes/s, 46 s left, 2 failed

No thread draws: it would take time from the work, and a process that is forked meanwhile would have half of it.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

Clock = Callable[[], float]

LIVE_SECONDS, LINE_SECONDS = 0.2, 60.0
"""Least time between two changes of the display on a terminal, and between two lines elsewhere."""
_BAR_WIDTH = 60
_WHOLE_SPEED = 10.0  # from which a speed is shown without decimals


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar on a terminal, with a name in front of it and a text behind it."""

    done: int
    total: int
    name: str = ""
    text: str = ""


class ProgressDisplay:
    """Progress on a console, with the speed and the time left by what was done since `begin` or the first `show`.

    Args:
        unit: What is counted, in the plural; empty: nothing is, and the texts alone are shown.
        total: How many there are.
        console: The console.
        clock: Seconds.
        live: The part of a terminal that changes; None: lines.
    """

    def __init__(self, unit: str, total: int, console: Console, clock: Clock, live: Live | None) -> None:
        self.unit, self.total = unit, total
        self._console, self._clock, self._live = console, clock, live
        self._began: tuple[float, int] | None = None
        self._shown = float("-inf")

    def begin(self, done: int = 0) -> None:
        """Count from here: what was done before is no speed. The first line comes a minute later."""
        self._began = self._clock(), done
        self._shown = self._clock()

    @property
    def seconds(self) -> float:
        """The time since `begin`, or the first `show`."""
        return 0.0 if self._began is None else self._clock() - self._began[0]

    def due(self) -> bool:
        """Return whether it is time to show something. Costs little enough to be asked in a loop."""
        interval = LINE_SECONDS if self._live is None else LIVE_SECONDS
        return self._clock() - self._shown >= interval and not self._console.quiet

    def show(
        self, done: int = 0, *, more: str = "", texts: Sequence[str] = (), bars: Sequence[Bar] = (), last: bool = False
    ) -> None:
        """Show how far the work is, if that is due or the `last` time.

        Args:
            done: How many are done.
            more: A text behind the speed and the time left.
            texts: Further texts, on lines of their own on a terminal.
            bars: Bars for a terminal. By default there is one, of all that is counted.
            last: The work has ended: show it in any case.
        """
        if self._began is None:
            self._began = self._clock(), done
        if not (last or self.due()):
            return
        self._shown = now = self._clock()
        lines = [", ".join(filter(None, (self._pace(done, now), more))), *texts]
        if self._live is None:
            say(self._console, "; ".join(filter(None, lines)))
        else:
            counted = [Bar(done, self.total)] if self.unit else []
            self._live.update(frame(bars or counted, lines), refresh=True)

    def _pace(self, done: int, now: float) -> str:
        if not self.unit:
            return ""
        began, before = self._began or (now, done)
        speed = (done - before) / (now - began) if now > began else 0.0
        left = duration(max(self.total - done, 0) / speed) if speed > 0 else "?"
        percent = min(100 * done // max(self.total, 1), 100)  # training makes more steps until all of them are learnt
        rate = f"{speed:,.0f}" if speed >= _WHOLE_SPEED else f"{speed:.3g}"
        return f"{done:,} of {self.total:,} {self.unit} ({percent}%), {rate} {self.unit}/s, {left} left"


@contextlib.contextmanager
def shown(
    unit: str = "",
    total: int = 0,
    *,
    console: Console | None = None,
    clock: Clock = time.monotonic,
    quiet: bool = False,
    transient: bool = False,
) -> Iterator[ProgressDisplay]:
    """Show progress while the context lasts. `transient`: the last state on a terminal is removed at the end."""
    from rich.console import Console as RichConsole
    from rich.live import Live

    found = console or RichConsole(stderr=True, quiet=quiet)
    is_live = found.is_terminal and not found.is_dumb_terminal and not found.quiet
    live = Live(console=found, auto_refresh=False, transient=transient) if is_live else None
    with live or contextlib.nullcontext():
        yield ProgressDisplay(unit, total, found, clock, live)


def frame(bars: Sequence[Bar], lines: Sequence[str]) -> RenderableType:
    """Return what a terminal shows: the bars, and the texts below them."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table, have_names = Table.grid(padding=(0, 1, 0, 0)), any(bar.name for bar in bars)
    for bar in bars:
        drawn = ProgressBar(total=max(bar.total, 1), completed=bar.done, width=_BAR_WIDTH)
        table.add_row(*([Text(bar.name)] if have_names else []), drawn, Text(bar.text))
    return Group(*([table] if bars else []), *(Text(line) for line in lines if line))


def say(console: Console, text: str) -> None:
    """Print plain text, at once also into a pipe."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    console.file.flush()


def duration(seconds: float) -> str:
    """Return a duration as text: 42 s, 3 min 20 s, 2 h 05 min."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min"
    return f"{minutes} min {rest:02} s" if minutes else f"{rest} s"
