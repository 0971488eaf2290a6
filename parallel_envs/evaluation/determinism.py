"""State of the whole process that an episode depends on: global random generators, and threads of numeric libraries."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from collections.abc import Iterator

import numpy as np

from parallel_envs.engine import cores_here
from parallel_envs.engine.child_setup import THREAD_VARIABLES, thread_environment

_lock = threading.Lock()
_undo: list[contextlib.ExitStack] = []
"""One entry for each thread that is inside `one_thread`. The first entry holds what is to be restored."""


@contextlib.contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch, and restore their states at the end of the context.

    Policies and environments should have generators of their own. Some draw from the global ones, and must give the
    same episode nevertheless.
    """
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()
    of_torch = None if torch is None else torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)
    if torch is not None:
        torch.random.default_generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        if torch is not None:
            torch.set_rng_state(of_torch)


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit numeric libraries to one thread: a sum that several threads compute in parts is rounded differently.

    The limit holds for libraries that are loaded already and for libraries that will be loaded. At the end all settings
    are as before; a torch that was loaded within the context then gets one thread for each core. The settings belong
    to the whole process: if several threads are inside, the last one that leaves restores what the first one found.
    """
    undo = contextlib.ExitStack()
    try:
        with _lock:
            _undo.append(undo)
            if len(_undo) == 1:
                _limit_all(undo)
        yield
    finally:
        with _lock:
            if undo in _undo:
                first = _undo[0]
                _undo.remove(undo)
                if _undo and undo is first:
                    _undo[0].push(undo.pop_all())
        undo.close()


def _limit_all(undo: contextlib.ExitStack) -> None:
    """Limit all libraries to one thread, and push the functions that restore their settings onto `undo`."""
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
    """Limit torch to one thread, if torch is loaded."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != 1:
        torch.set_num_threads(1)
