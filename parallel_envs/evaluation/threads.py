"""Numeric libraries on one thread, in every process that plays episodes: what is summed in parts rounds otherwise."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

from parallel_envs.engine import cores_here
from parallel_envs.engine.child_setup import THREAD_VARIABLES, thread_environment

_lock = threading.Lock()
_undo: list[contextlib.ExitStack] = []
"""One for each thread that is inside `one_thread`; the first one holds what is to be restored."""


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """One thread within the context, for libraries that are loaded already and for those that will be.

    Afterwards all is as it was. Torch, if it was loaded within, has as many threads as there are cores then. These are
    settings of the whole process: if several threads are inside, the last to leave restores what the first has found.
    """
    undo = contextlib.ExitStack()
    try:
        with _lock:
            _undo.append(undo)
            if len(_undo) == 1:
                _limit(undo)
        yield
    finally:
        with _lock:
            if undo in _undo:
                first = _undo[0]
                _undo.remove(undo)
                if _undo and undo is first:
                    _undo[0].push(undo.pop_all())
        undo.close()


def _limit(undo: contextlib.ExitStack) -> None:
    """Set everything to one thread. `undo` is told how that is undone."""
    from threadpoolctl import threadpool_limits

    before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
    torch = sys.modules.get("torch")
    of_torch = None if torch is None else torch.get_num_threads()

    def restore() -> None:
        for name, value in before.items():
            os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
        if (torch := sys.modules.get("torch")) is not None:
            torch.set_num_threads(of_torch or len(cores_here()) or 1)

    undo.callback(restore)
    os.environ.update(thread_environment(1))
    undo.enter_context(threadpool_limits(1))
    limit_torch()


def limit_torch() -> None:
    """One thread for torch, if it is there."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
