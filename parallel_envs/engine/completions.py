"""The caller's end of the completion pipe, where a Ctrl-C must not lose an answer.

A signal handler of Python runs between any two steps of the interpreter, so also right after a read has taken bytes
from the pipe and before anybody has noted them. What was read therefore stays in a buffer, and if noting it was cut
short all of it is noted once more.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` without its enums: they cost ten times as much as the work
import os
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from parallel_envs.engine.messages import COMPLETION

Records = Iterator[tuple[Any, ...]]

_MOST_BYTES = COMPLETION.size * 32  # more would only cost: what is left over is read next time

_CTRL_C = int(signal.SIGINT)


class CompletionReader:
    """Reads completions and hands them to `note`, which must not mind being told of one again."""

    def __init__(self, fd: int, note: Callable[[Records, list[Any], float], None]) -> None:
        self.fd, self._note = fd, note
        self._buffer = memoryview(bytearray(_MOST_BYTES))
        self.cut_short = False
        """Whether what was read last has yet to be noted: no news from the pipe will tell."""

    def take_in(self, finished: list[Any], began: float) -> bool:
        """Note what has come, with `finished` and `began` for `note`. False: nothing has."""
        try:
            if self.cut_short:
                self._note(COMPLETION.iter_unpack(self._buffer), finished, began)
                self.cut_short = False
            try:
                size = os.readv(self.fd, [self._buffer])
            except BlockingIOError:
                return False
            self._note(COMPLETION.iter_unpack(self._buffer[:size]), finished, began)
        except BaseException:
            self.cut_short = True
            raise
        return True

    def forget(self) -> None:
        """Nothing that has been read so far is to be noted again: a worker has been replaced."""
        self._buffer[:] = bytes(_MOST_BYTES)
        self.cut_short = False


class undisturbed:  # noqa: N801  # used as a function is, and made as a class for the price of one
    """Ctrl-C waits until the end of this context. For work that is long beside the price of two system calls.

    Blocking the signal would not do: that holds for one thread only, and the system then hands it to any other (those
    of a numeric library, say), whereupon Python runs the handler in its main thread all the same. So the handler gives
    way to one that only takes note; what has been noted is handed to it at the end. Other threads than the main one
    run no handlers, and have nothing to fear.
    """

    __slots__ = ("_before", "_struck")

    def __enter__(self) -> None:
        self._before: Any = None
        self._struck: tuple[int, FrameType | None] | None = None
        if threading.current_thread() is threading.main_thread():
            handler = _signal.getsignal(_CTRL_C)
            if callable(handler):  # else it is ignored, or ends the process, or is not Python's affair
                self._before = handler  # before the change: from there on nothing is raised any more
                _signal.signal(_CTRL_C, self._strike)

    def __exit__(self, *error: object) -> None:
        if self._before is None:
            return
        _signal.signal(_CTRL_C, self._before)
        if self._struck is not None:
            self._before(*self._struck)

    def give_way(self) -> Any:
        """Hand a Ctrl-C that waits to the handler that was there before. Return that handler."""
        struck, self._struck = self._struck, None
        if struck is not None:
            self._before(*struck)
        return self._before

    def _strike(self, number: int, frame: FrameType | None) -> None:
        self._struck = number, frame


def let_waiting_ctrl_c_in() -> None:
    """Run the handler of a Ctrl-C that `undisturbed` holds back. For long waits that may be given up at any moment."""
    if threading.current_thread() is threading.main_thread():
        handler = _signal.getsignal(_CTRL_C)
        while isinstance(holder := getattr(handler, "__self__", None), undisturbed):
            handler = holder.give_way()
