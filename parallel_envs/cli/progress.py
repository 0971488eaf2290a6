"""How far an evaluation is: bars on a terminal, a line now and then anywhere else. All of it on stderr."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from parallel_envs.learners.progress import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    from parallel_envs.evaluation import EpisodeRecord
    from parallel_envs.evaluation.work import Key

Clock = Callable[[], float]

_MOST_BARS = 16  # missions with a bar of their own; more would not fit a screen
_BARS_SECONDS, _LINE_SECONDS = 0.1, 10.0  # between two updates of the bars, and two lines
_TOTAL = "all"


class Tally:
    """What has been played, and how fast. Episodes that were complete before count as done, not as speed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock()
        self.wanted: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.played = 0

    def begin(self, work: Sequence[Key], done: Sequence[EpisodeRecord]) -> None:
        self.wanted = Counter(key[0] for key in work)
        for record in done:
            self._count(record)
        self._began, self.played = self._clock(), 0

    def note(self, record: EpisodeRecord) -> None:
        self._count(record)
        self.played += 1

    def _count(self, record: EpisodeRecord) -> None:
        self.done[record.mission] += 1
        self.failed[record.mission] += record.failure is not None

    @property
    def speed(self) -> float:
        """Episodes per second."""
        seconds = self._clock() - self._began
        return self.played / seconds if seconds > 0 else 0.0

    @property
    def left(self) -> str:
        """How long the rest will take."""
        rest = self.wanted.total() - self.done.total()
        return duration(rest / self.speed) if self.speed > 0 else "?"

    def told(self) -> str:
        done, wanted, failed = self.done.total(), self.wanted.total(), self.failed.total()
        failures = f", {failed} failed" if failed else ""
        return (
            f"{done} of {wanted} episodes ({done / max(wanted, 1):.0%}), {self.speed:.3g} episodes/s, {self.left} "
            f"left{failures}"
        )


class Lines:
    """For files and pipes."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console, self._clock, self._tally = console, clock, Tally(clock)
        self._shown = clock()

    def begin(self, work: Sequence[Key], done: Sequence[EpisodeRecord]) -> None:
        self._tally.begin(work, done)

    def note(self, record: EpisodeRecord) -> None:
        self._tally.note(record)
        is_last = self._tally.done.total() == self._tally.wanted.total()
        if is_last or self._clock() - self._shown >= _LINE_SECONDS:
            self._shown = self._clock()
            self._console.print(self._tally.told(), markup=False, highlight=False, soft_wrap=True)


class BarPerMission:
    """For terminals. Nothing redraws itself: a thread for that would take time from what is measured."""

    def __init__(self, bars: Bars, clock: Clock = time.monotonic) -> None:
        self._bars, self._clock, self._tally = bars, clock, Tally(clock)
        self._tasks: dict[str, TaskID] = {}
        self._shown = float("-inf")

    def begin(self, work: Sequence[Key], done: Sequence[EpisodeRecord]) -> None:
        self._tally.begin(work, done)
        shown = list(self._tally.wanted)[:_MOST_BARS]
        for mission in shown if len(self._tally.wanted) > 1 else ():
            self._tasks[mission] = self._bars.add_task(mission, total=self._tally.wanted[mission], told="")
        self._tasks[_TOTAL] = self._bars.add_task(_TOTAL, total=self._tally.wanted.total(), told="")
        self._draw()

    def note(self, record: EpisodeRecord) -> None:
        self._tally.note(record)
        is_last = self._tally.done.total() == self._tally.wanted.total()
        if is_last or self._clock() - self._shown >= _BARS_SECONDS:
            self._draw()

    def _draw(self) -> None:
        self._shown, tally = self._clock(), self._tally
        for mission, task in self._tasks.items():
            if mission != _TOTAL:
                failed = tally.failed[mission]
                self._bars.update(task, completed=tally.done[mission], told=f"{failed} failed" if failed else "")
        failed = tally.failed.total()
        told = f"{tally.speed:.3g} episodes/s, {tally.left} left" + (f", {failed} failed" if failed else "")
        self._bars.update(self._tasks[_TOTAL], completed=tally.done.total(), told=told)
        self._bars.refresh()


@contextlib.contextmanager
def shown(console: Console | None = None, clock: Clock = time.monotonic) -> Iterator[Lines | BarPerMission]:
    """What shows progress for as long as the context lasts."""
    from rich.console import Console as RichConsole

    console = console or RichConsole(stderr=True)
    if not console.is_terminal:
        yield Lines(console, clock)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as RichBars

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    with RichBars(
        *columns, TextColumn("{task.fields[told]}"), console=console, auto_refresh=False, transient=True
    ) as bars:
        yield BarPerMission(bars, clock)
