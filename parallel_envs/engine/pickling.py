"""Turning requests and replies into bytes.

Requests go through cloudpickle, so that functions and classes of the user's script travel by value and a worker
need not import that script. A `SharedBlock` inside a request travels as a descriptor. Replies try plain pickle first.
"""

from __future__ import annotations

import io
import itertools
import os
import pickle
import types
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import cloudpickle

from parallel_envs.engine.channel import MOST_FDS
from parallel_envs.engine.memory import SharedBlock


class Unpicklable(TypeError):
    """A value cannot travel to or from a worker; the text names the part that cannot."""


class Inherited:
    """A value for workers that are forked from this process after this was made: they have it in their memory already.

    In a request it travels as a number, and arrives as the value that the worker had inherited: nothing of the value is
    pickled. In any other process loading it raises `RuntimeError`. Keep it for as long as such workers may be started.
    """

    def __init__(self, value: Any) -> None:
        self.value = value
        self._key = os.getpid(), next(_inherited_numbers)
        _inherited[self._key] = self

    def __reduce__(self) -> tuple[Any, ...]:
        return _find_inherited, self._key


_inherited_numbers = itertools.count()
_inherited: weakref.WeakValueDictionary[tuple[int, int], Inherited] = weakref.WeakValueDictionary()
"""By the process that made it, and a number."""


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
        """Reduce as cloudpickle does. A class that travels by value keeps its qualified name, which cloudpickle drops:
        errors name the class by it, and are looked up by it.
        """
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
            raise ValueError("a SharedBlock that has been closed can be given to nobody any more")
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
        block.close()  # the memory stays mapped; the descriptor has done its work
        return block


def dump_request(request: Any) -> tuple[bytes, list[int]]:
    """Bytes of `request` and the descriptors that go with them. Raises `Unpicklable`."""
    file = io.BytesIO()
    pickler = _RequestPickler(file)
    try:
        pickler.dump(request)
    except Exception as error:
        raise Unpicklable(_explain(request, error)) from error
    return file.getvalue(), pickler.fds


def load_request(data: bytes | bytearray | memoryview, fds: Sequence[int]) -> Any:
    return _RequestUnpickler(data, fds).load()


def dump_reply(reply: Any) -> bytes:
    """Bytes of a reply. Raises `Unpicklable`."""
    try:
        return pickle.dumps(reply, pickle.HIGHEST_PROTOCOL)
    except Exception:  # a class of the user's script, or something that cannot travel at all
        try:
            return bytes(cloudpickle.dumps(reply, pickle.HIGHEST_PROTOCOL))
        except Exception as error:
            raise Unpicklable(_explain(reply, error)) from error


def load_reply(data: bytes | bytearray | memoryview) -> Any:
    return pickle.loads(data)


def _explain(obj: Any, error: Exception) -> str:
    where = unpicklable_part(obj)
    return f"{where} cannot be pickled ({type(error).__name__}: {error})"


def unpicklable_part(obj: Any, name: str = "value", depth: int = 4) -> str:
    """The path to the innermost part of `obj` that cannot be pickled, such as `value.env.lock (a _thread.lock)`."""
    if depth > 0:
        for part_name, part in _parts(obj):
            if not picklable(part):
                return unpicklable_part(part, f"{name}{part_name}", depth - 1)
    return f"{name} (a {type(obj).__module__}.{type(obj).__qualname__})"


def picklable(obj: Any) -> bool:
    """Whether `obj` can travel to a worker."""
    try:
        _RequestPickler(io.BytesIO()).dump(obj)
    except Exception:
        return False
    return True


def _parts(obj: Any) -> Iterator[tuple[str, Any]]:
    """What `obj` is made of, each with the way to write it after the name of `obj`."""
    if isinstance(obj, dict):
        yield from ((f"[{key!r}]", value) for key, value in obj.items())
    elif isinstance(obj, list | tuple | set | frozenset):
        yield from ((f"[{position}]", value) for position, value in enumerate(obj))
    elif isinstance(obj, types.FunctionType):
        yield from _parts_of_function(obj)
    elif isinstance(obj, types.MethodType):
        yield ".__self__", obj.__self__
    elif isinstance(obj, type):
        yield from ((f".{key}", value) for key, value in vars(obj).items())
        yield from ((f" -> base class {base.__name__!r}", base) for base in obj.__bases__)
    else:
        slots = (slot for kind in type(obj).__mro__ for slot in _slots_of(kind))
        yield from ((f".{slot}", getattr(obj, slot)) for slot in slots if hasattr(obj, slot))
        yield from ((f".{key}", value) for key, value in getattr(obj, "__dict__", {}).items())
        if hasattr(obj, "func") and hasattr(obj, "keywords"):  # functools.partial shows its parts by name only
            yield from ((f".{part}", getattr(obj, part)) for part in ("func", "args", "keywords"))


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    names = function.__code__.co_freevars
    for name, cell in zip(names, function.__closure__ or (), strict=True):
        try:
            yield f" -> variable {name!r}", cell.cell_contents
        except ValueError:  # a variable that was never given a value
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield f" -> global {name!r}", function.__globals__[name]
    for position, default in enumerate(function.__defaults__ or ()):
        yield f" -> default argument {position}", default
    for name, default in (function.__kwdefaults__ or {}).items():
        yield f" -> default argument {name!r}", default


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
