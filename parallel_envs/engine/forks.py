"""Processes that hosted objects fork from their worker.

Such a process has a copy of everything, the worker's loop and its lines too. Should the object's code return in it, or
raise, it would become a second worker that answers what the first was asked. So only the worker goes on: the other
one ends as soon as it comes back from the object. (One that `multiprocessing` forks never does: it may have workers of
its own, in threads or in itself.)
"""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any

from parallel_envs.engine.child import exit_status, leave

forked: list[int] = []
"""Empty in a worker, and wherever there is none. In a process forked from a worker it holds the worker's pid: where
even a call would cost too much this is looked at directly, and `leave_if_forked` called only if it is not empty.
"""

_serving: list[int] = []
_begun_by: list[Any] = []


def begin_to_serve() -> None:
    """This process is a worker: what is forked from here on is not."""
    if not _serving:
        os.register_at_fork(after_in_child=_note_fork)
    _serving[:] = [os.getpid()]
    _begun_by[:] = [_asked_by_multiprocessing()]
    forked.clear()


def is_worker() -> bool:
    """Return whether this process is a worker, and not the user's or one that was forked from a worker."""
    return _serving == [os.getpid()]


def leave_if_forked(error: BaseException | None = None) -> None:
    """End this process, as `error` has it, if it was forked from a worker by an object that has now come back."""
    if not forked or _asked_by_multiprocessing() is not _begun_by[0]:
        return
    if isinstance(error, SystemExit):
        leave(exit_status(error))
    if error is not None:
        traceback.print_exception(error)
    else:
        sys.stderr.write(
            f"Process {os.getpid()} was forked from worker process {forked[0]} and has come back from the code that "
            "forked it: it ends here. Such a process should end itself, by os._exit().\n"
        )
    leave(1)


def _asked_by_multiprocessing() -> Any:
    """Who has had `multiprocessing` start this process, or that from which it was forked; None: nobody."""
    module = sys.modules.get("multiprocessing.process")
    return None if module is None else module.parent_process()


def _note_fork() -> None:
    forked[:] = _serving
