"""Exceptions that this package raises.

    ParallelEnvsError
    ├── ClosedError        a closed pool or manager was used
    ├── ConcurrentCall     a second thread called an object while a first one was inside it
    ├── EpisodeFailed      an episode of a strict evaluation failed
    ├── MissingExtra       a library of an extra is not installed (also a ModuleNotFoundError)
    ├── UntrustedName      a file names code outside this package that the user does not trust (also a ValueError)
    ├── WorkerStartError   a worker process could not be started
    ├── WorkerDied         a worker process ended by itself
    ├── WorkerTimeout      an answer did not come in time (also the TimeoutError of Python and of multiprocessing)
    │   └── StepTimeout    an environment did not answer in time
    └── RemoteError        code inside a worker raised: type, message and traceback arrive as text
        ├── EnvError       an environment raised
        └── PolicyError    a policy raised

Catch `ParallelEnvsError` to catch all of them. A `RemoteError` is also an instance of the remote exception's type if
this is one of Python's own (`ValueError`, `AttributeError`, ...), so `except ValueError` keeps working when an
environment moves into a worker. The same holds for errors of this package with a method `retell(text)`, which rebuilds
the error from its text, and for any other exception of an environment (`gymnasium.error.ResetNeeded`, a class of the
user's script), with its attributes: `RemoteError.retold` lists the types that are left out for safety.

`parallel_envs.settings.BadSettings` (settings that cannot be run; also a ValueError) is below `ParallelEnvsError`, and
`parallel_envs.learners.UpdateFailed` is a `RemoteError`: the update of an agent raised. `CollectionInterrupted` is not
below `ParallelEnvsError`: it is the KeyboardInterrupt of a Ctrl-C, with the rollouts that were complete.
"""

from __future__ import annotations

import builtins
import multiprocessing
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from types import ModuleType
from typing import Any

__all__ = [
    "ClosedError",
    "CollectionInterrupted",
    "ConcurrentCall",
    "EnvError",
    "EpisodeFailed",
    "MissingExtra",
    "ParallelEnvsError",
    "PolicyError",
    "RemoteError",
    "RemoteTraceback",
    "StepTimeout",
    "UntrustedName",
    "WorkerDied",
    "WorkerStartError",
    "WorkerTimeout",
]


class ParallelEnvsError(Exception):
    """Base of all errors of this package."""


class ClosedError(ParallelEnvsError):
    """A pool or manager was used after `close()`."""


class ConcurrentCall(ParallelEnvsError):
    """A second thread called an object that one thread at a time may use, while a first one was inside it.

    The second call did nothing, and the first one goes on. The docstring of each class says under "Threads:" what it
    allows.
    """


class MissingExtra(ParallelEnvsError, ModuleNotFoundError):
    """A library of an extra is not installed. The text has the command that installs it: see `extras.py`."""


class UntrustedName(ParallelEnvsError, ValueError):
    """A file names code outside this package that the user does not trust (`module`): see `parallel_envs.trust`."""

    def __init__(self, module: str, text: str) -> None:
        super().__init__(text)
        self.module = module

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.module, str(self))


class EpisodeFailed(ParallelEnvsError):
    """An episode of a strict evaluation failed twice. `record` says why; `result` holds the complete episodes."""

    result: Any = None

    def __init__(self, text: str, *, record: Any) -> None:
        super().__init__(text)
        self.record = record

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), self.args[0], record=self.record), (), {"result": self.result}


class WorkerStartError(ParallelEnvsError):
    """A worker process could not be started. No process is left behind."""


class WorkerDied(ParallelEnvsError):
    """A worker process ended by itself.

    `exitcode` is the exit status, or minus the number of the signal, or None if it is not known. `env_ids` are the
    environments of the worker.
    """

    def __init__(self, text: str, *, worker: int, pid: int, exitcode: int | None, env_ids: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.env_ids = tuple(env_ids)
        self.worker = worker
        self.pid = pid
        self.exitcode = exitcode

    def __reduce__(self) -> tuple[Any, ...]:
        details = {
            name: value for name, value in vars(self).items() if name in ("worker", "pid", "exitcode", "env_ids")
        }
        return partial(type(self), self.args[0], **details), ()


class WorkerTimeout(ParallelEnvsError, TimeoutError, multiprocessing.TimeoutError):
    """An answer did not come in time. `workers` had not answered."""

    def __init__(self, text: str, *, workers: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.workers = tuple(workers)


class StepTimeout(WorkerTimeout):
    """Environments did not answer in time. The environments `env_ids` had not answered after `seconds`."""

    def __init__(
        self, text: str, *, workers: Sequence[int] = (), env_ids: Sequence[int] = (), seconds: float | None = None
    ) -> None:
        super().__init__(text, workers=workers)
        self.env_ids = tuple(env_ids)
        self.seconds = seconds


class RemoteTraceback(Exception):
    """Traceback of a worker as text: the cause of the error that the caller gets."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class RemoteError(ParallelEnvsError):
    """Code inside a worker raised. `type_name` and `remote_message` belong to the original exception."""

    _plain: type[RemoteError]  # this class without the type that it is joined with

    def __init_subclass__(cls) -> None:
        if "_plain" not in cls.__dict__:
            cls._plain = cls

    def __init__(self, text: str, *, type_name: str, remote_message: str) -> None:
        super().__init__(text)
        self.type_name = type_name
        self.remote_message = remote_message
        if (retell := getattr(self, "retell", None)) is not None:
            retell(remote_message)

    @classmethod
    def named(cls, type_name: str) -> type[RemoteError]:
        """Return this class, joined with the exception of that name if it is Python's own or has `retell`."""
        module, _, name = type_name.rpartition(".")
        original: Any = getattr(sys.modules.get(module) if module else builtins, name, None)
        is_known = isinstance(original, type) and issubclass(original, ParallelEnvsError if module else Exception)
        if not is_known or (module and not hasattr(original, "retell")) or issubclass(cls, original):
            return cls
        return _joined(cls, original)

    @classmethod
    def retold(
        cls, text: str, *, type_name: str, remote_message: str, attributes: Mapping[str, Any] | None = None
    ) -> RemoteError:
        """Return the error with this text. It is an instance of the remote type too wherever that is safe.

        Python's own exceptions are joined as `named` says. Any other type needs `attributes`: the values that the
        exception had in its `__dict__` (None: they are not plain values, so they did not travel).

        A worker's report is data. The type is looked up by its name among the modules that this process has imported.
        Nothing is imported or unpickled, and none of the type's own code runs: neither its constructor nor its
        `__reduce__`. The instance gets the attributes instead, so the constructor may take any arguments. The error is
        of this class alone, with the same text, if the type

        - is not found by its name (a class inside a function, a module that is not imported here);
        - is not an `Exception`, or is an error of this package;
        - has a metaclass, or `__slots__` with names in them;
        - defines one of `_NAMES_IN_THE_WAY`, which would run while the error is made or printed;
        - has a builtin base that cannot be made from a text alone (`UnicodeDecodeError`, exception groups).
        """
        kind = cls.named(type_name)
        own = _own_type(type_name) if kind is cls and attributes is not None else None
        if own is None or (kind := _joined(cls, own)) is cls:
            return kind(text, type_name=type_name, remote_message=remote_message)
        error = kind(text, type_name=type_name, remote_message=remote_message)
        error.__dict__.update({key: value for key, value in (attributes or {}).items() if key not in error.__dict__})
        return error

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        details = {"type_name": self.type_name, "remote_message": self.remote_message}
        state = {key: value for key, value in self.__dict__.items() if key not in details}
        attributes = None if type(self) in (self._plain, self._plain.named(self.type_name)) else dict[str, Any]()
        return partial(self._plain.retold, self.args[0], attributes=attributes, **details), (), state


RemoteError._plain = RemoteError


class EnvError(RemoteError):
    """An environment raised. `env_ids` names the environments."""

    env_ids: tuple[int, ...] = ()


class PolicyError(RemoteError):
    """A policy raised. `agents` names its agents; `actions` holds the actions of the other agents."""

    agents: tuple[Any, ...] = ()
    actions: dict[Any, Any]


_NAMES_IN_THE_WAY = frozenset(
    {"__getattribute__", "__getattr__", "__setattr__", "__delattr__", "__setstate__", "__del__", "__class__"}
    | {"__dict__", "__cause__", "__context__", "__suppress_context__", "__traceback__", "__notes__"}
    | {"with_traceback", "add_note", "args", "type_name", "remote_message"}
)
_IS_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE: the class is not one of the interpreter's own


_joined_types: dict[tuple[type[RemoteError], type[Exception]], type[RemoteError]] = {}


def _joined(base: type[RemoteError], original: type[Exception]) -> type[RemoteError]:
    """Return a class that is both, or `base` if an `original` cannot be made from a text alone."""
    if (known := _joined_types.get((base, original))) is not None:
        return known
    native: Any = next(kind for kind in original.__mro__ if not kind.__flags__ & _IS_HEAP_TYPE)

    def init(self: Any, text: str, *, type_name: str, remote_message: str) -> None:
        native.__init__(self, text)  # not the constructor of `original`, which may do anything
        self.type_name, self.remote_message = type_name, remote_message
        if issubclass(original, ParallelEnvsError):
            self.retell(remote_message)

    details = {"__module__": base.__module__, "__doc__": base.__doc__, "__init__": init, "_plain": base}
    if native is not original:  # `original` may have a `__new__` of its own
        details["__new__"] = lambda kind, text, **details: native.__new__(kind, text)
    try:
        joined: type[RemoteError] = type(base.__name__, (base, original), details)
        joined("", type_name="", remote_message="")
    except Exception:  # noqa: BLE001  # exception groups and others need arguments; the error is reported anyway
        joined = base
    _joined_types[base, original] = joined
    return joined


def _own_type(type_name: str) -> type[Exception] | None:
    """Return the exception type of that name, if an error can be joined with it without running its code.

    Names are looked up in dicts, because attribute access may run code of a module or class.
    """
    parts = type_name.split(".")
    found: Any = None
    for number in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:number]))
        if issubclass(type(module), ModuleType):
            found = module
            for part in parts[number:]:
                if issubclass(type(found), type):
                    found = type.__dict__["__dict__"].__get__(found).get(part)
                else:
                    found = object.__getattribute__(found, "__dict__").get(part)
                if not issubclass(type(found), type):
                    return None
            break
    if type(found) is not type or f"{found.__module__}.{found.__qualname__}" != type_name:
        return None
    own_classes = [kind for kind in found.__mro__ if kind.__flags__ & _IS_HEAP_TYPE]
    if Exception not in found.__mro__ or ParallelEnvsError in own_classes:
        return None
    for kind in own_classes:
        if type(kind) is not type or kind.__dict__.get("__slots__") or _NAMES_IN_THE_WAY & kind.__dict__.keys():
            return None
    return found


class CollectionInterrupted(KeyboardInterrupt):
    """Ctrl-C came while rollouts were being collected. `rollouts` holds the complete rollouts.

    It is a KeyboardInterrupt, so it ends a program that does not catch it.
    """

    def __init__(self, rollouts: Any) -> None:
        super().__init__(f"{len(rollouts)} rollouts were complete")
        self.rollouts = rollouts
