"""Warnings that come again and again are told ever more rarely."""

from __future__ import annotations

import logging
import re
from collections import Counter

_DIFFERENT_EACH_TIME = re.compile(r"\bin step \d+ of the update\b")


class Repetitions(logging.Filter):
    """Lets the first of equal warnings through, the tenth, the hundredth and so on, with how many there were."""

    def __init__(self) -> None:
        super().__init__()
        self._counts: Counter[str] = Counter()

    def filter(self, record: logging.LogRecord) -> bool:
        told = _DIFFERENT_EACH_TIME.sub("", record.getMessage())
        self._counts[told] += 1
        record.__dict__["times"] = self._counts[told]
        return str(self._counts[told]).strip("0") == "1"


class Counted(logging.Formatter):
    """The text of a record that has gone through `Repetitions`."""

    def format(self, record: logging.LogRecord) -> str:
        times = getattr(record, "times", 1)
        return record.getMessage() if times == 1 else f"{record.getMessage()} ({times} times so far.)"
