"""By which numbers tasks are told that have none of their own."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from typing import Any

import cloudpickle
import numpy as np

from parallel_envs.tasks import Task

_LEAST, _MOST = -(1 << 63) + 1, (1 << 63) - 1  # what a row has room for


class TaskNumbers:
    """One number for each task of a manager, and one task for each number.

    A task of the source has its number there. A whole number tells itself, if no other task has that number; anything
    else, as it first appears, gets the first number from 0 up that is free.

    Args:
        tasks: Those of the task source.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._numbers: dict[bytes, int] = {}
        self._next = 0
        for task in tasks:
            self._numbers.setdefault(_key(task.value), task.id)
        self._taken = set(self._numbers.values())

    def of(self, task: Any) -> int:
        """The number of this value. Raises TypeError if it cannot be pickled."""
        key = _key(task)
        if key not in self._numbers:
            number = self._free_number(task)
            self._numbers[key] = number
            self._taken.add(number)
        return self._numbers[key]

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """After an error within this, numbers are as they were: what was refused has had none."""
        before = dict(self._numbers), set(self._taken), self._next
        try:
            yield
        except BaseException:
            self._numbers, self._taken, self._next = before
            raise

    def _free_number(self, task: Any) -> int:
        if _is_whole(task) and _LEAST <= task <= _MOST and int(task) not in self._taken:
            return int(task)
        while self._next in self._taken:
            self._next += 1
        return self._next


def _is_whole(task: Any) -> bool:
    return isinstance(task, int | np.integer) and not isinstance(task, bool)


def _key(task: Any) -> bytes:
    """Equal for equal tasks."""
    try:
        data = cloudpickle.dumps(int(task) if _is_whole(task) else task)
    except Exception as error:
        raise TypeError(f"The task {task!r} cannot be pickled, so it cannot travel to a worker: {error}") from error
    return hashlib.blake2b(data, digest_size=16).digest()
