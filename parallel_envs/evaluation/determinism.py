"""Determinism: generators of policies and of the process are seeded, and numeric libraries have one thread."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from gymnasium.spaces import Space

from parallel_envs.engine import num_cores
from parallel_envs.engine.child_setup import THREAD_VARIABLES
from parallel_envs.seeding import SeedTree, global_states_kept

_MAX_DEPTH, _MAX_PARTS = 4, 100  # how far a policy is searched for generators
_lock, _undo = threading.Lock(), contextlib.ExitStack()
_inside: list[object] = []
"""One entry for each thread that is inside `one_thread`. The last one that leaves closes `_undo`."""


@contextlib.contextmanager
def seeded_globally(seed: int) -> Iterator[None]:
    """Seed the global generators of Python, NumPy and torch, and restore their states at the end of the context.

    Policies and environments should have generators of their own. Some draw from the global ones, and must give the
    same episode nevertheless.
    """
    torch = sys.modules.get("torch")
    with global_states_kept(with_torch=True):
        random.seed(seed)
        np.random.seed(seed)
        if torch is not None:
            torch.random.default_generator.manual_seed(seed)
        yield


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Limit numeric libraries to one thread: a sum that several threads compute in parts is rounded differently.

    The limit holds for libraries that are loaded already and for libraries that will be loaded. At the end all settings
    are as before; a torch that was loaded within the context then gets one thread for each core. The settings belong
    to the whole process: if several threads are inside, the last one that leaves restores what the first one found.
    """
    from threadpoolctl import threadpool_limits

    entry = object()
    try:
        with _lock:
            _inside.append(entry)
            if len(_inside) == 1:
                before = {name: os.environ.get(name) for name in THREAD_VARIABLES}
                num_threads = sys.modules["torch"].get_num_threads() if "torch" in sys.modules else None
                _undo.callback(_restore, before, num_threads or num_cores())
                os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
                _undo.enter_context(threadpool_limits(1))
                limit_torch()
        yield
    finally:
        with _lock:
            if entry in _inside:
                _inside.remove(entry)
            if not _inside:
                _undo.close()


def _restore(variables: dict[str, str | None], torch_threads: int) -> None:
    for name, value in variables.items():
        os.environ.pop(name, None) if value is None else os.environ.__setitem__(name, value)
    limit_torch(torch_threads)


def limit_torch(num_threads: int = 1) -> None:
    """Let torch have this many threads, if torch is loaded."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != num_threads:
        torch.set_num_threads(num_threads)


def reseed(policy: Any, seed: int) -> None:
    """Seed a policy by its method `seed`, or else seed the generators among its attributes.

    These are the generators of NumPy, Python and torch and the spaces of Gymnasium, each with a stream of its own, in
    the policy, in its lists, tuples and dicts, and in policies that it holds.
    """
    if callable(method := getattr(policy, "seed", None)):
        method(seed)
        return
    for number, (name, generator) in enumerate(_generators(policy, "", set(), 0)):
        own = SeedTree(seed).child(name, number)
        if isinstance(generator, np.random.Generator):
            bits = generator.bit_generator
            bits.state = type(bits)(own.sequence()).state
        elif isinstance(generator, np.random.RandomState | random.Random | Space):
            generator.seed(own.seed())
        else:
            generator.manual_seed(own.seed())


def _generators(thing: Any, name: str, seen: set[int], depth: int) -> Iterator[tuple[str, Any]]:
    """Yield the generators in a policy, each with its attribute's name, in the order of attributes."""
    if id(thing) in seen or depth > _MAX_DEPTH:
        return
    seen.add(id(thing))
    is_torch = type(thing).__module__.partition(".")[0] == "torch" and callable(getattr(thing, "manual_seed", None))
    if is_torch or isinstance(thing, np.random.Generator | np.random.RandomState | random.Random | Space):
        yield name, thing
        return
    parts: list[tuple[str, Any]] = []
    if isinstance(thing, list | tuple | dict):
        values = thing.values() if isinstance(thing, dict) else thing
        parts = [("", part) for part in list(values)[:_MAX_PARTS]]
    elif not depth or callable(getattr(thing, "step", None)) or callable(getattr(thing, "act", None)):
        parts = list(getattr(thing, "__dict__", {}).items())
    for key, part in parts:
        yield from _generators(part, key or name, seen, depth + 1)
