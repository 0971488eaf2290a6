"""Progress of an evaluation on stderr: bars on a terminal, and a line now and then anywhere else."""

from __future__ import annotations

import contextlib
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from parallel_envs.learners.progress import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichBars
    from rich.progress import TaskID

    from parallel_envs.evaluation import EpisodeRecord
    from parallel_envs.evaluation.records import EpisodeKey

Clock = Callable[[], float]

_MAX_BARS = 16  # missions with a bar of their own; more would not fit a screen
_BARS_SECONDS, _LINE_SECONDS = 0.1, 10.0  # between two updates of the bars, and between two lines
_TOTAL = "all"


class Tally:
    """Counts of episodes, and their speed. Episodes of an earlier run count as done, not for the speed."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock()
        self.wanted: Counter[str] = Counter()
        self.done: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self.played = 0

    def begin(self, work: Sequence[EpisodeKey], done: Sequence[EpisodeRecord]) -> None:
        self.wanted = Counter(key[0] for key in work)
        for record in done:
            self.note(record)
        self._began, self.played = self._clock(), 0

    def note(self, record: EpisodeRecord) -> None:
        self.done[record.mission] += 1
        self.failed[record.mission] += record.failure is not None
        self.played += 1

    @property
    def is_complete(self) -> bool:
        return self.done.total() == self.wanted.total()

    def text(self) -> str:
        """Return the counts, the speed and the remaining time."""
        done, wanted = self.done.total(), self.wanted.total()
        return f"{done} of {wanted} episodes ({done / max(wanted, 1):.0%}), {self.speed_text()}"

    def speed_text(self) -> str:
        """Return the speed, the remaining time and the number of failed episodes."""
        seconds, failed = self._clock() - self._began, self.failed.total()
        speed = self.played / seconds if seconds > 0 else 0.0
        left = duration((self.wanted.total() - self.done.total()) / speed) if speed > 0 else "?"
        return f"{speed:.3g} episodes/s, {left} left" + (f", {failed} failed" if failed else "")


class _Display(ABC):
    """A display that is updated after an episode, but not more often than every few seconds."""

    _seconds: float

    def __init__(self, clock: Clock) -> None:
        self._clock, self._tally = clock, Tally(clock)
        self._shown = clock()

    def begin(self, work: Sequence[EpisodeKey], done: Sequence[EpisodeRecord]) -> None:
        self._tally.begin(work, done)

    def note(self, record: EpisodeRecord) -> None:
        self._tally.note(record)
        if self._tally.is_complete or self._clock() - self._shown >= self._seconds:
            self._shown = self._clock()
            self._update()

    @abstractmethod
    def _update(self) -> None:
        """Show the current counts."""


class Lines(_Display):
    """Lines, for files and pipes."""

    _seconds = _LINE_SECONDS

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._console = console

    def _update(self) -> None:
        self._console.print(self._tally.text(), markup=False, highlight=False, soft_wrap=True)


class BarPerMission(_Display):
    """Bars, for terminals. They are drawn after episodes: a drawing thread would take time from the evaluation."""

    _seconds = _BARS_SECONDS

    def __init__(self, bars: RichBars, clock: Clock = time.monotonic) -> None:
        super().__init__(clock)
        self._bars = bars
        self._tasks: dict[str, TaskID] = {}
        self._shown = float("-inf")

    def begin(self, work: Sequence[EpisodeKey], done: Sequence[EpisodeRecord]) -> None:
        super().begin(work, done)
        wanted = self._tally.wanted
        for mission in list(wanted)[:_MAX_BARS] if len(wanted) > 1 else ():
            self._tasks[mission] = self._bars.add_task(mission, total=wanted[mission], text="")
        self._tasks[_TOTAL] = self._bars.add_task(_TOTAL, total=wanted.total(), text="")
        self._shown = self._clock()
        self._update()

    def _update(self) -> None:
        tally = self._tally
        for mission, task in self._tasks.items():
            if mission != _TOTAL:
                failed = tally.failed[mission]
                self._bars.update(task, completed=tally.done[mission], text=f"{failed} failed" if failed else "")
        self._bars.update(self._tasks[_TOTAL], completed=tally.done.total(), text=tally.speed_text())
        self._bars.refresh()


@contextlib.contextmanager
def shown(console: Console | None = None, clock: Clock = time.monotonic) -> Iterator[Lines | BarPerMission]:
    """Yield a display for the time of the context."""
    from rich.console import Console as RichConsole

    console = console or RichConsole(stderr=True)
    if not console.is_terminal:
        yield Lines(console, clock)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    texts = TextColumn("{task.fields[text]}")
    with Progress(*columns, texts, console=console, auto_refresh=False, transient=True) as bars:
        yield BarPerMission(bars, clock)
