"""Environments that draw from the global generators of `random` and NumPy, made harmless.

Each has a state of these generators of its own: seeded with its episode, put in place before each of its calls, and
taken away after it. So nobody else's draws reach it, and its draws reach nobody else.
"""

from __future__ import annotations

import functools
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

_one_at_a_time = threading.RLock()
"""The generators are the process's: threads must take turns."""


class Guarded:
    """An environment with global generators of its own."""

    def __init__(self, env: Any) -> None:
        self._env = env
        self._states: tuple[Any, Any] | None = None  # from the first reset on

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._env, name)
        return functools.partial(self._call, found) if callable(found) else found

    def reset(self, seed: int, mode: str) -> Any:
        with self._with_own_generators():
            _seed(seed)
            return self._env.reset(seed, mode)

    def _call(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        with self._with_own_generators():
            return function(*arguments, **named)

    @contextmanager
    def _with_own_generators(self) -> Iterator[None]:
        with _others_put_back():
            if self._states is not None:
                _put_in_place(self._states)
            try:
                yield
            finally:
                self._states = _states_now()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The global generators, seeded; afterwards they are as they were."""
    with _others_put_back():
        _seed(seed)
        yield


@contextmanager
def _others_put_back() -> Iterator[None]:
    with _one_at_a_time:
        outside = _states_now()
        try:
            yield
        finally:
            _put_in_place(outside)


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _states_now() -> tuple[Any, Any]:
    return random.getstate(), np.random.get_state()


def _put_in_place(states: tuple[Any, Any]) -> None:
    random.setstate(states[0])
    np.random.set_state(states[1])
