"""Every exception this package raises on purpose.

    ParallelEnvsError
    ├── ClosedError        something was asked of a pool or a manager that has been closed
    ├── ConcurrentCall     a second thread called an object while a first one was inside it
    ├── EpisodeFailed      an episode of a strict evaluation failed
    ├── MissingExtra       a library of an extra is not installed (also a ModuleNotFoundError)
    ├── UntrustedName      a file names code that is neither this package's nor trusted by the user (also a ValueError)
    ├── WorkerStartError   a worker process could not be started
    ├── WorkerDied         a worker process ended without having been asked to
    ├── WorkerTimeout      an answer did not come in time (also the TimeoutError of Python and of multiprocessing)
    │   └── StepTimeout    the answer that did not come was an environment's
    └── RemoteError        code inside a worker raised: its type, message and traceback travel as text
        ├── EnvError       the code that raised was an environment's
        └── PolicyError    the code that raised was a policy's

Catch `ParallelEnvsError` to catch them all. A `RemoteError` whose remote type is one of Python's own exceptions
(`ValueError`, `AttributeError`, ...) is an instance of that type too, so `except ValueError` keeps working when an
environment moves into a worker. So is one whose remote type is an error of this package with a method `retell(text)`:
it is made of its text alone, and told to become what that says, since nothing else of it arrives.

`parallel_envs.learners.UpdateFailed` is a RemoteError too: what an agent's update raised.

`CollectionInterrupted` stands apart: it is the KeyboardInterrupt of a Ctrl-C, with what was complete by then.
"""

from __future__ import annotations

import builtins
import multiprocessing
import sys
from collections.abc import Sequence
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
    """Something was asked of a pool or manager after `close()`."""


class ConcurrentCall(ParallelEnvsError):
    """A second thread called an object that one thread at a time may use, while a first one was inside it.

    The second call did nothing, and the first one goes on undisturbed. What each class allows stands in its docstring
    under "Threads:".
    """


class MissingExtra(ParallelEnvsError, ModuleNotFoundError):
    """A library that an extra brings is not installed. The text has the line that installs it: see `extras.py`."""


class UntrustedName(ParallelEnvsError, ValueError):
    """A file names code that is neither this package's nor trusted by the user: see `parallel_envs.trust`.

    Attributes:
        module: The module that the user would have to trust.
    """

    def __init__(self, module: str, text: str) -> None:
        super().__init__(text)
        self.module = module

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.module, str(self))


class EpisodeFailed(ParallelEnvsError):
    """An episode of a strict evaluation failed, twice. `record` tells why; `result` holds what was complete by then."""

    result: Any = None

    def __init__(self, text: str, *, record: Any) -> None:
        super().__init__(text)
        self.record = record

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args[0], {"record": self.record}), {"result": self.result}


class WorkerStartError(ParallelEnvsError):
    """A worker process could not be started; nothing of it is left."""


class WorkerDied(ParallelEnvsError):
    """A worker process ended on its own.

    `exitcode` is the exit status, or minus the signal's number, or None where nobody could tell. `env_ids` are the
    environments that it held.
    """

    def __init__(self, text: str, *, worker: int, pid: int, exitcode: int | None, env_ids: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.env_ids = tuple(env_ids)
        self.worker = worker
        self.pid = pid
        self.exitcode = exitcode

    def __reduce__(self) -> tuple[Any, ...]:
        known = {"worker": self.worker, "pid": self.pid, "exitcode": self.exitcode, "env_ids": self.env_ids}
        return _rebuild, (type(self), self.args[0], known)


class WorkerTimeout(ParallelEnvsError, TimeoutError, multiprocessing.TimeoutError):
    """An answer did not come in time. `workers` are those that were still silent."""

    def __init__(self, text: str, *, workers: Sequence[int] = ()) -> None:
        super().__init__(text)
        self.workers = tuple(workers)


class StepTimeout(WorkerTimeout):
    """Environments did not answer in time. `env_ids` are those that were still silent after `seconds`."""

    def __init__(
        self, text: str, *, workers: Sequence[int] = (), env_ids: Sequence[int] = (), seconds: float | None = None
    ) -> None:
        super().__init__(text, workers=workers)
        self.env_ids = tuple(env_ids)
        self.seconds = seconds


class RemoteTraceback(Exception):
    """The traceback of a worker, as text: it stands as the cause of the error raised here."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class RemoteError(ParallelEnvsError):
    """Code inside a worker raised. `type_name` and `remote_message` are those of the original."""

    _plain: type[RemoteError]
    """This class without the builtin type that it may be joined with."""

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
        """This class, joined with the exception of that name: Python's own, or one of ours that can be told again."""
        original = _original(type_name)
        if original is None or issubclass(cls, original):
            return cls
        known = _joined.get((cls, original))
        if known is None:
            known = _joined[cls, original] = _join(cls, original)
        return known

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        details = {"type_name": self.type_name, "remote_message": self.remote_message}
        state = {key: value for key, value in self.__dict__.items() if key not in details}
        return _rebuild_named, (self._plain, self.args[0], details), state


RemoteError._plain = RemoteError


class EnvError(RemoteError):
    """An environment raised. `env_ids` says which."""

    env_ids: tuple[int, ...] = ()


class PolicyError(RemoteError):
    """A policy raised. `agents` says whose; `actions` holds what the policies of the other agents said."""

    agents: tuple[Any, ...] = ()
    actions: dict[Any, Any]


_joined: dict[tuple[type[RemoteError], type[Exception]], type[RemoteError]] = {}


def _original(type_name: str) -> type[Exception] | None:
    """The exception of that name that an error can be joined with."""
    module, _, name = type_name.rpartition(".")
    found = getattr(sys.modules.get(module) if module else builtins, name, None)
    if not (isinstance(found, type) and issubclass(found, ParallelEnvsError if module else Exception)):
        return None
    return found if not module or hasattr(found, "retell") else None


def _join(base: type[RemoteError], original: type[Exception]) -> type[RemoteError]:
    details = {"__module__": base.__module__, "__doc__": base.__doc__, "_plain": base}
    try:
        joined = type(base.__name__, (base, original), details)
        joined("", type_name="", remote_message="")
    except TypeError:  # exception groups, UnicodeDecodeError and the like want arguments of their own
        return base
    return joined


def _rebuild(kind: type[Exception], text: str, details: dict[str, Any]) -> Exception:
    return kind(text, **details)


def _rebuild_named(plain: type[RemoteError], text: str, details: dict[str, Any]) -> RemoteError:
    return plain.named(details["type_name"])(text, **details)


class CollectionInterrupted(KeyboardInterrupt):
    """Ctrl-C came while rollouts were being collected. `rollouts` holds those that were complete.

    A KeyboardInterrupt and nothing else: it ends a program that does not ask for it.
    """

    def __init__(self, rollouts: Any) -> None:
        super().__init__(f"{len(rollouts)} rollouts were complete")
        self.rollouts = rollouts
