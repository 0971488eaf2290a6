"""Progress of an evaluation on stderr: how many episodes of each mission are done, and how many failed."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from parallel_envs.progress import Bar, Clock, ProgressDisplay, shown

if TYPE_CHECKING:
    from rich.console import Console

    from parallel_envs.evaluation import EpisodeRecord
    from parallel_envs.evaluation.records import EpisodeKey

_MAX_BARS = 16  # missions with a bar of their own; more would not fit a screen


class EpisodeDisplay:
    """Counts of episodes by mission. Episodes of an earlier run count as done, not for the speed."""

    def __init__(self, display: ProgressDisplay) -> None:
        self._display = display
        self._wanted, self._done, self._failed = Counter[str](), Counter[str](), Counter[str]()

    def begin(self, work: Sequence[EpisodeKey], done: Sequence[EpisodeRecord]) -> None:
        self._wanted = Counter(key[0] for key in work)
        self._display.total = len(work)
        for record in done:
            self._count(record)
        self._display.begin(len(done))

    def note(self, record: EpisodeRecord) -> None:
        self._count(record)
        done, total = self._done.total(), self._wanted.total()
        if done < total and not self._display.due():
            return
        bars = [self._bar(mission) for mission in list(self._wanted)[:_MAX_BARS] if len(self._wanted) > 1]
        failed = f"{number} failed" if (number := self._failed.total()) else ""
        everything = Bar(done, total, "all" if bars else "", f"{done}/{total}")
        self._display.show(done, more=failed, bars=[*bars, everything], last=done == total)

    def _count(self, record: EpisodeRecord) -> None:
        self._done[record.mission] += 1
        self._failed[record.mission] += record.failure is not None

    def _bar(self, mission: str) -> Bar:
        done, total, failed = self._done[mission], self._wanted[mission], self._failed[mission]
        return Bar(done, total, mission, f"{done}/{total}" + (f" {failed} failed" if failed else ""))


@contextlib.contextmanager
def shown_episodes(
    console: Console | None = None, clock: Clock = time.monotonic, *, quiet: bool = False
) -> Iterator[EpisodeDisplay]:
    """Yield a display for the time of the context."""
    with shown("episodes", console=console, clock=clock, quiet=quiet, transient=True) as display:
        yield EpisodeDisplay(display)
