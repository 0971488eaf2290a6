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

import numpy as np

from parallel_envs.engine.forks import is_worker
from parallel_envs.engine.interrupts import let_ctrl_c_through
from parallel_envs.errors import RemoteTraceback

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
    """An exception as text. `cause` is the exception itself; it stays behind when a failure leaves its process.

    `attributes` are the exception's own, from which `RemoteError.retold` makes an error of its type. None: there are
    some that are not plain values (numbers, text, containers and arrays of these), and pickling any others would run
    code of theirs, which may hang. They are the same on all backends.
    """

    type_name: str
    message: str
    traceback: str
    cause: BaseException | None = None
    attributes: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        return cls(_type_name(error), _message(error), _traceback(error), error, _attributes(error))

    def __reduce__(self) -> tuple[type[Failure], tuple[Any, ...]]:
        return Failure, (self.type_name, self.message, self.traceback, None, self.attributes)

    def origin(self) -> BaseException:
        """The exception itself, or its traceback where it stayed behind. None of the exception's own code runs."""
        return RemoteTraceback(self.traceback) if self.cause is None else self.cause


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
    kind = type(error)  # its names are read as `type` has them: a metaclass may say something else, or raise
    module, name = (type.__dict__[part].__get__(kind) for part in ("__module__", "__qualname__"))
    return str(name) if module == "builtins" else f"{module}.{name}"


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


def _traceback(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error))
    except BaseException as unprintable:  # an exception's metaclass or attributes may raise too
        let_ctrl_c_through(unprintable)
        where = BaseException.__dict__["__traceback__"].__get__(error)
        return "".join([*traceback.format_tb(where), f"{_type_name(error)}: {_message(error)}\n"])


_MOST_VALUES = 10_000  # in an exception's attributes
_PLAIN = frozenset({str, int, float, complex, bool, bytes, type(None), *np.sctypeDict.values()} - {np.object_, np.void})


class _NotPlainError(Exception):
    """A value of an exception may run code when it is copied or pickled, or there are too many."""


def _attributes(error: BaseException) -> dict[str, Any] | None:
    """Return a copy of the exception's `__dict__` without its notes, or None if something in it is not plain."""
    found = dict(BaseException.__dict__["__dict__"].__get__(error))
    found.pop("__notes__", None)
    try:
        copied = _plain_copy(found, [_MOST_VALUES])
    except (_NotPlainError, RecursionError):
        return None
    return copied if all(type(key) is str for key in copied) else None


def _plain_copy(value: Any, left: list[int]) -> Any:
    """Return a copy of a value that is made of plain values only. `left` holds how many more may come."""
    left[0] -= 1
    kind = type(value)
    if left[0] < 0 or type(kind) is not type:  # a metaclass may run code too
        raise _NotPlainError
    if kind in _PLAIN:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if kind in (list, tuple, set, frozenset):
        return kind([_plain_copy(item, left) for item in value])
    if kind is dict:
        return {_plain_copy(key, left): _plain_copy(item, left) for key, item in value.items()}
    raise _NotPlainError
