"""Progress of an evaluation on stderr: bars on a terminal, and a line now and then anywhere else."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

from parallel_envs.learners.progress import duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichBars

    from parallel_envs.evaluation import EpisodeRecord
    from parallel_envs.evaluation.records import EpisodeKey

_MAX_BARS = 16  # missions with a bar of their own; more would not fit a screen
_BARS_SECONDS, _LINE_SECONDS = 0.1, 10.0  # between two updates of the bars, and between two lines


class EpisodeDisplay:
    """Counts of episodes and their speed, in bars on a terminal, or in lines on the console where bars are disabled.

    It is updated after an episode, but not more often than every few seconds: a drawing thread would take time from the
    evaluation. Episodes of an earlier run count as done, not for the speed.
    """

    def __init__(self, console: Console, clock: Callable[[], float], bars: RichBars) -> None:
        self._console, self._clock, self._bars = console, clock, bars
        self._began = self._shown = clock()
        self._earlier = 0

    def begin(self, work: Sequence[EpisodeKey], done: Sequence[EpisodeRecord]) -> None:
        wanted = Counter(key[0] for key in work)
        for mission in list(wanted)[:_MAX_BARS] if len(wanted) > 1 else ():
            self._bars.add_task(mission, total=wanted[mission], text="", mission=mission, failed=0)
        self._bars.add_task("all", total=len(work), text="", mission=None, failed=0)
        for record in done:
            self._count(record)
        self._earlier = len(done)
        self._began = self._shown = self._clock()
        if not self._bars.disable:
            self._update()

    def note(self, record: EpisodeRecord) -> None:
        self._count(record)
        seconds = _LINE_SECONDS if self._bars.disable else _BARS_SECONDS
        if self._bars.tasks[-1].finished or self._clock() - self._shown >= seconds:
            self._shown = self._clock()
            self._update()

    def _count(self, record: EpisodeRecord) -> None:
        for task in self._bars.tasks:
            if task.fields["mission"] in (None, record.mission):
                failed = task.fields["failed"] + (record.failure is not None)
                text = f"{failed} failed" if failed else ""
                self._bars.update(task.id, advance=1, failed=failed, text=text)

    def _update(self) -> None:
        every = self._bars.tasks[-1]
        done, total, seconds = int(every.completed), int(every.total or 0), self._clock() - self._began
        speed = (done - self._earlier) / seconds if seconds > 0 else 0.0
        left = duration((total - done) / speed) if speed > 0 else "?"
        failed = f", {every.fields['failed']} failed" if every.fields["failed"] else ""
        text = f"{speed:.3g} episodes/s, {left} left{failed}"
        if self._bars.disable:
            text = f"{done} of {total} episodes ({done / max(total, 1):.0%}), {text}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        else:
            self._bars.update(every.id, text=text, refresh=True)


@contextlib.contextmanager
def shown(console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> Iterator[EpisodeDisplay]:
    """Yield a display for the time of the context."""
    from rich.console import Console as RichConsole
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = console or RichConsole(stderr=True)
    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    texts, is_plain = TextColumn("{task.fields[text]}"), not console.is_terminal
    with Progress(*columns, texts, console=console, auto_refresh=False, transient=True, disable=is_plain) as bars:
        yield EpisodeDisplay(console, clock, bars)
