"""What travels between a pool and its workers.

Two kinds of requests exist. A *bell* is 16 bytes: which hosted object, one number for it, and the request's own
number; everything else about it lies in shared memory. A *message* is a pickled `Call`. Either is answered by a
16-byte *completion* that repeats the request's number; where there is more to say, a pickled payload follows on the
worker's own channel.
"""

from __future__ import annotations

import struct
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from parallel_envs.engine.forks import is_worker
from parallel_envs.engine.interrupts import let_ctrl_c_through

BELL = struct.Struct("<IIQ")
"""Hosted object, argument, request number."""

COMPLETION = struct.Struct("<IIQ")
"""Worker, status, request number."""

MESSAGE = 0xFFFFFFFF
"""In the place of a bell's object: a message waits on the channel."""

DONE, PAYLOAD, FAILED = 0, 1, 2
"""Statuses of a completion: nothing follows; the value follows; a `Failure` follows."""

HOST = 0
"""The key under which a worker's host answers for itself."""


@dataclass(frozen=True, slots=True)
class Call:
    """Call `method` of the hosted object `key`."""

    key: int
    method: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text. `cause` is the exception itself; it stays behind when a failure leaves its process."""

    type_name: str
    message: str
    traceback: str
    cause: BaseException | None = None

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(_type_name(error), _message(error), "".join(traceback.format_exception(error)), error)

    def __reduce__(self) -> tuple[type[Failure], tuple[str, str, str]]:
        return Failure, (self.type_name, self.message, self.traceback)


@dataclass(frozen=True, slots=True)
class Death:
    """How a worker ended. `exitcode` as in `errors.WorkerDied`; `last_output` its last lines; `killed`: by its pool."""

    worker: int
    pid: int
    exitcode: int | None
    last_output: tuple[str, ...] = ()
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """What one worker answered: a value, a failure, or its death."""

    worker: int
    value: Any = None
    failure: Failure | None = None
    death: Death | None = None


def _type_name(error: BaseException) -> str:
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


_NO_TERMINAL = (
    "breakpoint() or pdb was called in a worker process, which has no terminal. Use backend='serial' (of `evaluate`: "
    "jobs=0), which runs the same code in your own process."
)


def _message(error: BaseException) -> str:
    try:
        # A debugger that reads from a worker's stdin finds its end at once, and raises this error without a text.
        text = _NO_TERMINAL if _type_name(error) == "bdb.BdbQuit" and is_worker() else str(error)
        return "\n".join([text, *getattr(error, "__notes__", ())])
    except BaseException as unprintable:  # an exception's own __str__ may be what is broken, or raise SystemExit
        let_ctrl_c_through(unprintable)
        return f"<message could not be printed: {type(unprintable).__name__}>"
