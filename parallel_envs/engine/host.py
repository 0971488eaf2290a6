"""What a worker is to those who ask it: a keeper of named objects.

The host is the same on every backend; only the way requests reach it differs. Hosted objects are ordinary objects.
Those that are to be rung have `ring(argument) -> payload or None` as well.
"""

from __future__ import annotations

import importlib
import mmap
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from parallel_envs.engine.forks import leave_if_forked
from parallel_envs.engine.interrupts import let_ctrl_c_through
from parallel_envs.engine.memory import SharedBlock
from parallel_envs.engine.messages import HOST, Call, Failure

BELL_SECONDS, MESSAGE_SECONDS, METERED_SINCE, METERS = 0, 1, 2, 8
"""Columns of the meters, doubles all: seconds spent on bells and on messages; when counting began, by the clock that
all processes share; and how many columns there are: a cache line, so that no two workers write to the same one."""

_METERS = struct.Struct("=3d")


class Ringable(Protocol):
    """An object that answers bells."""

    def ring(self, argument: int) -> Any:
        """Do what the bell asks. Return None where shared memory holds the whole answer."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request."""

    value: Any = None
    failure: Failure | None = None


class Host:
    """The objects of one worker, and the clock that says how busy it is."""

    def __init__(self, index: int) -> None:
        self.index = index
        self.objects: dict[int, Any] = {HOST: self}
        self.seconds = [0.0, 0.0, time.perf_counter()]
        """The meters' columns."""
        self.awake_seconds = 0.0
        """For how long its worker looks for the next bell before it goes to sleep (see `WorkerPool.keep_awake`)."""
        self._meters: mmap.mmap | bytearray = bytearray(METERS * 8)
        self._offset = 0

    def build(self, key: int, factory: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Host `factory(*args, **kwargs)` under `key`, in the place of what was there."""
        self.objects.pop(key, None)
        self.objects[key] = factory(*args, **kwargs)

    def load(self, modules: Iterable[str]) -> tuple[str, Failure] | None:
        """Import modules: see `load_modules`."""
        return load_modules(modules)

    def drop(self, key: int) -> None:
        """Stop hosting an object; its `close()` is called if it has one."""
        close_object(self.objects.pop(key, None))

    def close(self) -> None:
        """Drop every object. The first error is raised after all have been dropped."""
        errors: list[BaseException] = []
        for key in [key for key in self.objects if key != HOST]:
            try:
                self.drop(key)
            except BaseException as error:  # SystemExit too: the others are to be closed as well
                let_ctrl_c_through(error)
                errors.append(error)
        if errors:
            raise errors[0]

    def meter(self, block: SharedBlock, offset: int) -> None:
        """From now on count on from what stands in `block`, `offset` doubles from its start."""
        self._meters, self._offset = block.buffer, offset * 8
        bells, messages, since = _METERS.unpack_from(block.buffer, offset * 8)
        self.seconds = [bells, messages, since or self.seconds[METERED_SINCE]]

    def stay_awake(self, seconds: float) -> None:
        """From now on look for bells for so long before sleeping."""
        self.awake_seconds = seconds

    def worked(self, column: int, began: float) -> None:
        """Work on bells or on messages, which began at `began`, has ended."""
        seconds = self.seconds
        seconds[column] += time.perf_counter() - began
        _METERS.pack_into(self._meters, self._offset, *seconds)

    def execute(self, call: Call) -> Outcome:
        """Answer a message. Whatever it raises is an outcome: the worker goes on."""
        try:
            target = self.objects[call.key]
            return Outcome(getattr(target, call.method)(*call.args, **call.kwargs))
        except BaseException as error:  # SystemExit too: an object may not end its worker by raising
            leave_if_forked(error)
            return Outcome(failure=Failure.of(error))

    def ring(self, key: int, argument: int) -> Outcome | None:
        """Answer a bell. None: done, and nothing to say."""
        try:
            value = self.objects[key].ring(argument)
        except BaseException as error:
            return Outcome(failure=Failure.of(error))
        return None if value is None else Outcome(value)


def load_modules(modules: Iterable[str]) -> tuple[str, Failure] | None:
    """Import these modules. Return the first that cannot be imported, with the reason, or None."""
    for module in modules:
        try:
            importlib.import_module(module)
        except BaseException as error:  # SystemExit too: some modules end the program that imports them
            let_ctrl_c_through(error)
            return module, Failure.of(error)
    return None


def close_object(thing: Any) -> None:
    close = getattr(thing, "close", None)
    if callable(close):
        close()
