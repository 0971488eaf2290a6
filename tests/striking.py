"""A Ctrl-C, or whatever else, at every moment: before each function is entered and after each that is not Python's has
returned, which is where the interpreter lets signals in."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from itertools import count
from types import FrameType
from typing import Any

_MOMENTS = ("call", "c_return")


def ctrl_c() -> None:
    signal.raise_signal(signal.SIGINT)


class Strike:
    """Something that happens once, at the moment of this number."""

    def __init__(self, moment: int, happens: Callable[[], object]) -> None:
        self.moment, self.happens, self.passed = moment, happens, 0

    def __call__(self, frame: FrameType, event: str, what: Any) -> None:
        if event in _MOMENTS:
            self.passed += 1
            if self.passed == self.moment:
                sys.setprofile(None)
                self.happens()


def struck(moment: int, what: Callable[[], object], happens: Callable[[], object] = ctrl_c) -> int:
    """Do something that is struck at this moment, unless it is over before that. How many moments it lasted."""
    strike = Strike(moment, happens)
    sys.setprofile(strike)
    try:
        what()
    except KeyboardInterrupt:
        assert strike.passed == moment
    finally:
        sys.setprofile(None)
    return strike.passed


def strikes(what: Callable[[], object]) -> Iterator[int]:
    """Do something again and again, each time struck a little later, from where the strike before it has left things.

    As many times as it has moments after a strike in its midst.
    """
    yield struck(struck(sys.maxsize, what) // 2, what)
    for moment in range(1, struck(sys.maxsize, what)):
        yield struck(moment, what)


def strikes_after(before: Callable[[], object], what: Callable[[], object]) -> Iterator[int]:
    """The same from where `before` brings things, until what is struck is over before the strike."""
    for moment in count(1):
        before()
        if struck(moment, what) < moment:
            break
        yield moment
