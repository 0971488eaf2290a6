"""Ctrl-C while rollouts are collected."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupts:
    """Keeps Ctrl-C back for as long as the context lasts, except where `let_through` says that it does no harm.

    Anywhere else it may strike between an answer's arrival and the moment it is noted: the answer would be lost, and
    its environment waited for in vain. A second Ctrl-C is raised wherever it strikes.
    """

    def __init__(self) -> None:
        self._struck = self._harmless = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is someone else's
            self._before = signal.signal(signal.SIGINT, self._strike)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if error[0] is None:
            self.check()

    @property
    def struck(self) -> bool:
        """Whether one has been kept back."""
        return self._struck

    def check(self) -> None:
        """Raise what has been kept back."""
        if self._struck:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def let_through(self) -> Iterator[None]:
        """Within this, it is raised at once."""
        self._harmless = True
        try:
            self.check()
            yield
        finally:
            self._harmless = False

    def _strike(self, number: int, frame: FrameType | None) -> None:
        if self._struck or self._harmless:
            raise KeyboardInterrupt
        self._struck = True
