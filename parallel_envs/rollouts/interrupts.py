"""Delay of Ctrl-C while a loop is between two consistent states."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any


class Interrupts:
    """Holds Ctrl-C back while the context lasts, except inside `let_through`.

    Elsewhere Ctrl-C could strike between the arrival of an answer and its recording: the answer would be lost, and its
    environment would be waited for in vain. A second Ctrl-C is raised at once, anywhere.
    """

    def __init__(self) -> None:
        self._struck = self._lets_through = False
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        in_main = threading.current_thread() is threading.main_thread()
        if in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # leave other handlers alone
            self._before = signal.signal(signal.SIGINT, self._strike)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if error[0] is None:
            self.check()

    @property
    def struck(self) -> bool:
        """True if a Ctrl-C has been held back."""
        return self._struck

    def check(self) -> None:
        """Raise KeyboardInterrupt if a Ctrl-C has been held back."""
        if self._struck:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def let_through(self) -> Iterator[None]:
        """Raise Ctrl-C at once while this context lasts."""
        self._lets_through = True
        try:
            self.check()
            yield
        finally:
            self._lets_through = False

    def _strike(self, number: int, frame: FrameType | None) -> None:
        if self._struck or self._lets_through:
            raise KeyboardInterrupt
        self._struck = True
