"""Progress of a training run, shown by `parallel_envs/progress.py`, and fewer repeated warnings."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parallel_envs.progress import Clock, ProgressDisplay, shown

if TYPE_CHECKING:
    from rich.console import Console

Agent = Hashable

_MOST_AGENTS = 12  # shown by name; the others are counted


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
    """Progress of a run on a console."""

    def __init__(self, shown_by: ProgressDisplay) -> None:
        self._shown_by = shown_by
        self.due = shown_by.due

    def show(self, progress: Progress, *, last: bool = False) -> None:
        """Show the progress, unless that was done just before. The last progress is always shown."""
        whole = sum(progress.seconds.values())
        shares = [f"{name} {spent / whole:.0%}" for name, spent in progress.seconds.items()] if whole > 0 else []
        texts = [text for text in (returns_told(progress.returns), ", ".join(shares), progress.loop) if text]
        self._shown_by.show(progress.steps, more=f"update {progress.updates:,}", texts=texts, last=last)


@contextlib.contextmanager
def display(total_steps: int, *, console: Console | None = None, clock: Clock = time.monotonic) -> Iterator[Display]:
    """Show progress on stderr as long as the context lasts."""
    with shown("steps", total_steps, console=console, clock=clock) as shown_by:
        yield Display(shown_by)


def returns_told(returns: Mapping[Agent, float]) -> str:
    """Return the agents' returns as text, by name for the first few."""
    if not returns:
        return ""
    texts = [f"{agent} {value:.4g}" for agent, value in list(returns.items())[:_MOST_AGENTS]]
    more = [f"and {len(returns) - _MOST_AGENTS} more"] if len(returns) > _MOST_AGENTS else []
    return f"return {', '.join([*texts, *more])}"


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
