"""A Ctrl-C, or whatever else, at every moment: before each function is entered and after each that is not Python's has
returned, which is where the interpreter lets signals in."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
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
    """Do something again and again, each time struck a little later."""
    yield struck(1, what)
    for moment in range(2, struck(sys.maxsize, what)):  # it is longest when it was struck before
        yield struck(moment, what)
