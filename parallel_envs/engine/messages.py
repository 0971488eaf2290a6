"""Requests and replies between a pool and its workers, and how they become bytes.

Two kinds of requests exist. A *bell* is 16 bytes: a hosted object, one number for the object, and the number of the
request; all other data of a bell lies in shared memory. A *message* is a pickled `Call`. Both are answered by a 16-byte
*completion* that repeats the number of the request. If the answer does not fit there, a pickled payload follows on the
worker's own channel.

Requests are pickled by cloudpickle, so that functions and classes of the user's script travel by value and a worker
need not import that script. A `SharedBlock` inside a request travels as a descriptor. Replies try plain pickle first.
"""

from __future__ import annotations

import functools
import io
import itertools
import os
import pickle
import struct
import traceback
import types
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import numpy as np

from parallel_envs.engine.channel import MOST_FDS
from parallel_envs.engine.interrupts import is_worker, reraise_ctrl_c
from parallel_envs.engine.shared_arrays import SharedBlock
from parallel_envs.errors import RemoteTraceback

BELL = struct.Struct("<IIQ")  # hosted object, argument, request number

COMPLETION = struct.Struct("<IIQ")  # worker, status, request number

MESSAGE = 0xFFFFFFFF  # sent instead of the number of an object: a message waits on the channel

DONE, PAYLOAD, FAILED = 0, 1, 2  # statuses of a completion: nothing follows; the value follows; a `Failure` follows

HOST = 0  # key of the worker's `Host` itself among its hosted objects


@dataclass(frozen=True, slots=True)
class Call:
    """Call `method` of the hosted object `key`."""

    key: int
    method: str
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Death:
    """End of a worker process, with the exit code as in `errors.WorkerDied` and the last lines that it wrote.

    `killed` is true if the pool itself killed the worker.
    """

    worker: int
    pid: int
    exitcode: int | None
    last_output: tuple[str, ...] = ()
    killed: bool = False


@dataclass(frozen=True, slots=True)
class Reply:
    """Answer of one worker: a value, a failure, or the worker's death."""

    worker: int
    value: Any = None
    failure: Failure | None = None
    death: Death | None = None


# ---- failures -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception as text. `cause` is the exception itself, which is dropped when a failure leaves its process.

    `attributes` are the exception's own attributes, from which `RemoteError.retold` makes an error of the same type.
    None: some attribute is not a plain value (number, text, container or array of these); pickling such an attribute
    would run its own code, which may hang. All backends fill `attributes` alike.
    """

    type_name: str
    message: str
    traceback: str
    cause: BaseException | None = None
    attributes: Mapping[str, Any] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return the failure for an exception, however broken the exception's own methods are."""
        type_name, message = _type_name(error), _message(error)
        try:
            text = "".join(traceback.format_exception(error))
        except BaseException as unprintable:  # an exception's metaclass or attributes may raise too
            reraise_ctrl_c(unprintable)
            where = BaseException.__dict__["__traceback__"].__get__(error)
            text = "".join([*traceback.format_tb(where), f"{type_name}: {message}\n"])
        attributes = dict(BaseException.__dict__["__dict__"].__get__(error))
        attributes.pop("__notes__", None)
        try:
            copied = _plain_copy(attributes, [_MOST_VALUES])
        except (TypeError, RecursionError):
            copied = None
        if copied is not None and not all(type(key) is str for key in copied):
            copied = None
        return cls(type_name, message, text, error, copied)

    def __reduce__(self) -> tuple[type[Failure], tuple[Any, ...]]:
        return Failure, (self.type_name, self.message, self.traceback, None, self.attributes)

    def origin(self) -> BaseException:
        """Return the exception itself, or its traceback if the exception was dropped. Runs no code of the exception."""
        return RemoteTraceback(self.traceback) if self.cause is None else self.cause


_MOST_VALUES = 10_000  # in an exception's attributes
_PLAIN = frozenset({str, int, float, complex, bool, bytes, type(None), *np.sctypeDict.values()} - {np.object_, np.void})
_NO_TERMINAL = (
    "breakpoint() or pdb was called in a worker process, which has no terminal. Use backend='serial' (of `evaluate`: "
    "jobs=0), which runs the same code in your own process."
)


def _type_name(error: BaseException) -> str:
    kind = type(error)  # its names are read by `type` itself: a metaclass may give other names, or raise
    module, name = (type.__dict__[part].__get__(kind) for part in ("__module__", "__qualname__"))
    return str(name) if module == "builtins" else f"{module}.{name}"


def _message(error: BaseException) -> str:
    try:
        # A debugger that reads a worker's stdin reaches its end at once, and raises this error without a text.
        text = _NO_TERMINAL if _type_name(error) == "bdb.BdbQuit" and is_worker() else str(error)
        return "\n".join([text, *getattr(error, "__notes__", ())])
    except BaseException as unprintable:  # the exception's own __str__ may be broken, or raise SystemExit
        reraise_ctrl_c(unprintable)
        return f"<message could not be printed: {type(unprintable).__name__}>"


def _plain_copy(value: Any, left: list[int]) -> Any:
    """Return a copy of a value made of plain values only, at most `left[0]` of them. Raise TypeError for any other."""
    left[0] -= 1
    kind = type(value)
    if left[0] < 0 or type(kind) is not type:  # a metaclass may run code too
        raise TypeError("too many values, or one that runs code when it is copied")
    if kind in _PLAIN:
        return value
    if kind is np.ndarray and not value.dtype.hasobject:
        return value.copy()
    if kind in (list, tuple, set, frozenset):
        return kind([_plain_copy(item, left) for item in value])
    if kind is dict:
        return {_plain_copy(key, left): _plain_copy(item, left) for key, item in value.items()}
    raise TypeError("not a plain value")


# ---- pickling -------------------------------------------------------------------------------------------------------


class Unpicklable(TypeError):
    """A value cannot travel to or from a worker. The text names the part that cannot be pickled."""


class Inherited:
    """A value for workers that are forked from this process after this object was made.

    These workers have the value in their memory already, so a request carries only a number. In any other process
    loading the request raises `RuntimeError`. Keep this object for as long as such workers may be started.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = os.getpid(), next(_inherited_numbers)
        _inherited[self._key] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_inherited, self._key


_inherited_numbers = itertools.count()
_inherited: weakref.WeakValueDictionary[tuple[int, int], Inherited] = weakref.WeakValueDictionary()
"""Inherited values by the process that made them and a number."""


def _find_inherited(pid: int, number: int) -> Any:
    if (found := _inherited.get((pid, number))) is None:
        raise RuntimeError(
            f"Process {os.getpid()} was not forked from process {pid} after value {number} was made there."
        )
    return found.value


class _RequestPickler(cloudpickle.Pickler):  # type: ignore[misc]  # cloudpickle has no type information
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.fds: list[int] = []

    def reducer_override(self, obj: Any) -> Any:
        """Reduce like cloudpickle, but keep the qualified name of a class that travels by value: errors need it."""
        reduced = super().reducer_override(obj)
        if issubclass(type(obj), type) and isinstance(reduced, tuple) and len(reduced) > 2:
            state = reduced[2]
            if isinstance(state, tuple) and isinstance(state[0], dict):
                state[0].setdefault("__qualname__", type.__dict__["__qualname__"].__get__(obj))
        return reduced

    def persistent_id(self, obj: Any) -> Any:
        if not isinstance(obj, SharedBlock):
            return None
        if obj.fd < 0:
            raise ValueError("a SharedBlock that has been closed cannot be sent any more")
        if len(self.fds) == MOST_FDS:
            raise ValueError(f"a message can carry at most {MOST_FDS} SharedBlocks")
        self.fds.append(obj.fd)
        return len(self.fds) - 1, obj.num_bytes


class _RequestUnpickler(pickle.Unpickler):
    def __init__(self, data: bytes | bytearray | memoryview, fds: Sequence[int]) -> None:
        super().__init__(io.BytesIO(data))
        self._fds = fds

    def persistent_load(self, pid: Any) -> SharedBlock:
        position, num_bytes = pid
        block = SharedBlock(self._fds[position], num_bytes)
        block.close()  # the memory stays mapped; the descriptor is no longer needed
        return block


def dump_request(request: Any) -> tuple[bytes, list[int]]:
    """Return the bytes of `request` and the descriptors that travel with them. Raise `Unpicklable`."""
    file = io.BytesIO()
    pickler = _RequestPickler(file)
    try:
        pickler.dump(request)
    except Exception as error:
        raise _unpicklable(request, error) from error
    return file.getvalue(), pickler.fds


def load_request(data: bytes | bytearray | memoryview, fds: Sequence[int]) -> Any:
    return _RequestUnpickler(data, fds).load()


def dump_reply(reply: Any) -> bytes:
    """Return the bytes of a reply. Raise `Unpicklable`."""
    try:
        return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
    except Exception:  # a class of the user's script, or an object that cannot be pickled at all
        try:
            return bytes(cloudpickle.dumps(reply, pickle.HIGHEST_PROTOCOL))
        except Exception as error:
            raise _unpicklable(reply, error) from error


def load_reply(data: bytes | bytearray | memoryview) -> Any:
    return pickle.loads(data)


def picklable(obj: Any) -> bool:
    """Return whether `obj` can travel to a worker."""
    try:
        _RequestPickler(io.BytesIO()).dump(obj)
    except Exception:
        return False
    return True


def unpicklable_part(obj: Any, name: str = "value", depth: int = 4) -> str:
    """Return the path to the innermost part that cannot be pickled, such as `value.env.lock (a _thread.lock)`."""
    if depth > 0:
        for part_name, part in _parts(obj):
            if not picklable(part):
                return unpicklable_part(part, f"{name}{part_name}", depth - 1)
    return f"{name} (a {type(obj).__module__}.{type(obj).__qualname__})"


def _unpicklable(obj: Any, error: Exception) -> Unpicklable:
    return Unpicklable(f"{unpicklable_part(obj)} cannot be pickled ({type(error).__name__}: {error})")


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """Yield the parts of `obj`, each with the text to write after the name of `obj`."""
    if isinstance(obj, dict):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, list | tuple | set | frozenset):
        yield from ((f"[{position}]", value) for position, value in enumerate(obj))
    elif isinstance(obj, types.FunctionType):
        for name, cell in zip(obj.__code__.co_freevars, obj.__closure__ or (), strict=True):
            try:
                yield f" -> variable {name!r}", cell.cell_contents
            except ValueError:  # a variable that was never given a value
                continue
        names = (name for name in obj.__code__.co_names if name in obj.__globals__)
        yield from ((f" -> global {name!r}", obj.__globals__[name]) for name in names)
        yield from ((f" -> default argument {at}", default) for at, default in enumerate(obj.__defaults__ or ()))
        yield from ((f" -> default argument {name!r}", value) for name, value in (obj.__kwdefaults__ or {}).items())
    elif isinstance(obj, types.MethodType):
        yield ".__self__", obj.__self__
    else:
        if isinstance(obj, type):
            yield from ((f" -> base class {base.__name__!r}", base) for base in obj.__bases__)
        declared = [kind.__dict__.get("__slots__", ()) for kind in type(obj).__mro__]
        slots = [slot for names in declared for slot in ((names,) if isinstance(names, str) else tuple(names))]
        if isinstance(obj, functools.partial):  # it shows its parts by name only
            slots += ["func", "args", "keywords"]
        yield from ((f".{slot}", getattr(obj, slot)) for slot in slots if hasattr(obj, slot))
        yield from ((f".{key}", value) for key, value in getattr(obj, "__dict__", {}).items())
