"""The caller's end of the completion pipe, where a Ctrl-C must not lose an answer.

A signal handler of Python runs between any two steps of the interpreter, so also right after a read has taken bytes
from the pipe and before anybody has noted them. What was read therefore stays in a buffer, and if noting it was cut
short all of it is noted once more.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

from parallel_envs.engine.messages import COMPLETION

Records = Iterator[tuple[Any, ...]]

_MOST_BYTES = COMPLETION.size * 32  # more would only cost: what is left over is read next time


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


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Ctrl-C waits until the end of this context. For work that is long beside the price of three system calls."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
