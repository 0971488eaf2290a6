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


class Display:
    """Counts of episodes and their speed, in lines on the console, or in bars if there are `bars`.

    It is updated after an episode, but not more often than every few seconds: a drawing thread would take time from the
    evaluation. Episodes of an earlier run count as done, not for the speed.
    """

    def __init__(self, console: Console, clock: Callable[[], float], bars: RichBars | None = None) -> None:
        self._console, self._clock, self._bars = console, clock, bars
        self._began = self._shown = clock()
        self._wanted: Counter[str] = Counter()
        self._done: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._earlier = 0

    def begin(self, work: Sequence[EpisodeKey], done: Sequence[EpisodeRecord]) -> None:
        self._wanted = Counter(key[0] for key in work)
        self._done.update(record.mission for record in done)
        self._failed.update(record.mission for record in done if record.failure is not None)
        self._earlier = len(done)
        self._began = self._shown = self._clock()
        if self._bars is not None:
            for mission in list(self._wanted)[:_MAX_BARS] if len(self._wanted) > 1 else ():
                self._bars.add_task(mission, total=self._wanted[mission], text="", mission=mission)
            self._bars.add_task("all", total=self._wanted.total(), text="", mission=None)
            self._update()

    def note(self, record: EpisodeRecord) -> None:
        self._done[record.mission] += 1
        self._failed[record.mission] += record.failure is not None
        seconds = _LINE_SECONDS if self._bars is None else _BARS_SECONDS
        if self._done.total() == self._wanted.total() or self._clock() - self._shown >= seconds:
            self._shown = self._clock()
            self._update()

    def _update(self) -> None:
        done, wanted, failed = self._done.total(), self._wanted.total(), self._failed.total()
        seconds = self._clock() - self._began
        speed = (done - self._earlier) / seconds if seconds > 0 else 0.0
        left = duration((wanted - done) / speed) if speed > 0 else "?"
        text = f"{speed:.3g} episodes/s, {left} left" + (f", {failed} failed" if failed else "")
        if self._bars is None:
            text = f"{done} of {wanted} episodes ({done / max(wanted, 1):.0%}), {text}"
            self._console.print(text, markup=False, highlight=False, soft_wrap=True)
            return
        for task in self._bars.tasks:
            if (mission := task.fields["mission"]) is None:
                self._bars.update(task.id, completed=done, text=text)
            else:
                own = f"{self._failed[mission]} failed" if self._failed[mission] else ""
                self._bars.update(task.id, completed=self._done[mission], text=own)
        self._bars.refresh()


@contextlib.contextmanager
def shown(console: Console | None = None, clock: Callable[[], float] = time.monotonic) -> Iterator[Display]:
    """Yield a display for the time of the context."""
    from rich.console import Console as RichConsole

    console = console or RichConsole(stderr=True)
    if not console.is_terminal:
        yield Display(console, clock)
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn()
    texts = TextColumn("{task.fields[text]}")
    with Progress(*columns, texts, console=console, auto_refresh=False, transient=True) as bars:
        yield Display(console, clock, bars)
