"""Environments that break on purpose: one chosen fault at one chosen moment."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from parallel_envs.testing.scripted import ScriptedEnv

EXIT_CODE: Final = 17
"""The status with which `Fault.OS_EXIT` and `Fault.SYSTEM_EXIT` leave."""


class Fault(Enum):
    """What goes wrong."""

    SIGKILL = "sigkill"
    SIGSEGV = "sigsegv"
    SIGSTOP = "sigstop"
    OS_EXIT = "os_exit"
    EXCEPTION = "exception"
    UNPICKLABLE_EXCEPTION = "unpicklable_exception"
    TWO_ARGUMENT_EXCEPTION = "two_argument_exception"
    SYSTEM_EXIT = "system_exit"
    INFINITE_LOOP = "infinite_loop"
    SLEEP = "sleep"
    HUGE_REPLY = "huge_reply"


class Moment(Enum):
    """When it goes wrong. `IDLE` is shortly after a step has returned, while nobody asks anything."""

    CONSTRUCTOR = "constructor"
    RESET = "reset"
    STEP = "step"
    AUTORESET = "autoreset"
    CALL = "call"
    CLOSE = "close"
    IDLE = "idle"


_ALL: Final = frozenset(Fault)
_ENDS_THE_PROCESS: Final = frozenset({Fault.SIGKILL, Fault.SIGSEGV, Fault.SIGSTOP, Fault.OS_EXIT})

FAULTS_AT: Final[Mapping[Moment, frozenset[Fault]]] = MappingProxyType(
    dict.fromkeys((Moment.CONSTRUCTOR, Moment.RESET, Moment.STEP, Moment.AUTORESET, Moment.CALL), _ALL)
    | {Moment.CLOSE: _ALL - {Fault.HUGE_REPLY}, Moment.IDLE: _ENDS_THE_PROCESS | {Fault.INFINITE_LOOP}}
)
"""Which faults can happen when: `close` has no reply to be made huge, and an idle env nobody to raise to."""


class UnpicklableError(Exception):
    """An error that cannot be pickled, since it holds a lock."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


class TwoArgumentError(Exception):
    """An error that can be pickled but not unpickled, since its constructor wants one argument more."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first}{second}")


class FaultyEnv(ScriptedEnv):
    """A `ScriptedEnv` that breaks.

    Args:
        fault: what goes wrong, as `Fault` or its value.
        moment: when, as `Moment` or its value. `CALL` is the method `poke`; `AUTORESET` is a reset after an
            episode's end.
        at: the occurrence of that moment at which it happens, counted from 1. For `IDLE` these are steps.
        seconds: how long `SLEEP` sleeps.
        num_bytes: what `HUGE_REPLY` adds to the info, the result of `poke`, or (constructor) the metadata.
        once: a file that the first env to break makes; none breaks once it exists, so a restarted one lives.
        scripted: everything else that `ScriptedEnv` takes.

    With the serial and thread backends the faults that end a process end the caller's own.
    """

    def __init__(
        self,
        fault: Fault | str,
        moment: Moment | str,
        *,
        at: int = 1,
        seconds: float = 3600.0,
        num_bytes: int = 64 << 20,
        once: Path | None = None,
        **scripted: Any,
    ) -> None:
        super().__init__(**scripted)
        self.fault, self.moment = Fault(fault), Moment(moment)
        if self.fault not in FAULTS_AT[self.moment]:
            raise ValueError(f"{self.fault} cannot happen at {self.moment}. See testing.FAULTS_AT.")
        self.at = at
        self.seconds = seconds
        self.num_bytes = num_bytes
        self.once = once
        self.occurrences = 0
        reply = self._pass(Moment.CONSTRUCTOR)
        self.metadata = {**self.metadata, **_huge(reply)}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, or break."""
        reply = self._pass(Moment.AUTORESET if self.ended and self.elapsed else Moment.RESET)
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, **_huge(reply)}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Step, or break."""
        reply = self._pass(Moment.STEP)
        observation, reward, terminated, truncated, info = super().step(action)
        self._break_when_idle()
        return observation, reward, terminated, truncated, {**info, **_huge(reply)}

    def poke(self) -> bytes:
        """Return nothing much, or break."""
        return self._pass(Moment.CALL)

    def close(self) -> None:
        """Close, or break."""
        self._pass(Moment.CLOSE)
        super().close()

    def _pass(self, moment: Moment) -> bytes:
        """Go through a moment; return the bytes that are to make its reply huge."""
        return self._inflict() if self._is_due(moment) else b""

    def _break_when_idle(self) -> None:
        if self._is_due(Moment.IDLE):
            timer = threading.Timer(0.05, self._inflict)
            timer.daemon = True
            timer.start()

    def _is_due(self, moment: Moment) -> bool:
        if moment is not self.moment:
            return False
        self.occurrences += 1
        return self.occurrences == self.at and (self.once is None or _is_first(self.once))

    def _inflict(self) -> bytes:
        match self.fault:
            case Fault.SIGKILL | Fault.SIGSEGV | Fault.SIGSTOP:
                os.kill(os.getpid(), getattr(signal, self.fault.name))
            case Fault.OS_EXIT:
                os._exit(EXIT_CODE)
            case Fault.INFINITE_LOOP:
                while True:
                    pass
            case Fault.SLEEP:
                time.sleep(self.seconds)
            case Fault.HUGE_REPLY:
                return bytes(self.num_bytes)
            case _:
                raise self._error()
        return b""

    def _error(self) -> BaseException:
        text = f"injected fault at {self.moment.value}"
        match self.fault:
            case Fault.SYSTEM_EXIT:
                return SystemExit(EXIT_CODE)
            case Fault.UNPICKLABLE_EXCEPTION:
                return UnpicklableError(text)
            case Fault.TWO_ARGUMENT_EXCEPTION:
                return TwoArgumentError(text, "!")
            case _:
                return ValueError(text)


def _huge(reply: bytes) -> dict[str, bytes]:
    return {"huge": reply} if reply else {}


def _is_first(marker: Path) -> bool:
    try:
        marker.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
