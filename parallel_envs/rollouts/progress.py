"""The progress bar of a collection: rollouts, steps per second, environments at work."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any, Protocol


class Bar(Protocol):
    """What a collection tells of its progress."""

    def show(self, num_done: int, num_steps: int, num_busy: int) -> None:
        """Tell how many rollouts are done, how many steps have been taken, and how many environments work just now."""


class _NoBar:
    def show(self, num_done: int, num_steps: int, num_busy: int) -> None:
        pass


class _RichBar:
    _LEAST_SECONDS = 0.1  # between two updates: a bar is to cost nothing

    def __init__(self, progress: Any, num_rollouts: int) -> None:
        self._progress = progress
        self._line = progress.add_task("", total=num_rollouts, speed=0.0, busy=0)
        self._began = self._shown = time.monotonic()

    def show(self, num_done: int, num_steps: int, num_busy: int) -> None:
        now = time.monotonic()
        if now - self._shown < self._LEAST_SECONDS and num_busy:
            return
        self._shown = now
        self._progress.update(self._line, completed=num_done, speed=num_steps / (now - self._began), busy=num_busy)


@contextlib.contextmanager
def bar(num_rollouts: int, wanted: bool) -> Iterator[Bar]:
    """A bar on stderr for as long as the context lasts, or one that shows nothing."""
    if not wanted:
        yield _NoBar()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("rollouts"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]:,.0f} steps/s, {task.fields[busy]} busy"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as progress:
        yield _RichBar(progress, num_rollouts)
