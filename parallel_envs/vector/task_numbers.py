"""By which numbers tasks are told that have none of their own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

from parallel_envs.tasks import Task, is_whole, task_key

_LEAST, _MOST = -(1 << 63) + 1, (1 << 63) - 1  # what a row has room for


class TaskNumbers:
    """One number for each task of a manager, and one task for each number.

    A task of the source has its number there. A whole number tells itself, if no other task has that number; anything
    else, as it first appears, gets the first number from 0 up that is free, and keeps it for as long as the manager
    lives: some two hundred bytes for each task that was ever named. Where that is too much, name `Task`s with numbers
    of your own, of which nothing is kept here.

    Args:
        tasks: Those of the task source.
    """

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._numbers: dict[bytes, int] = {}
        self._next = 0
        for task in tasks:
            self._numbers.setdefault(task_key(task.value), task.id)
        self._taken = set(self._numbers.values())

    def of(self, task: Any) -> int:
        """The number of this value. Raises TypeError if it cannot be pickled."""
        key = task_key(task)
        if key not in self._numbers:
            number = self._free_number(task)
            self._numbers[key] = number
            self._taken.add(number)
        return self._numbers[key]

    @contextlib.contextmanager
    def trying(self) -> Iterator[None]:
        """After an error within this, numbers are as they were: what was refused has had none."""
        count, following = len(self._numbers), self._next
        try:
            yield
        except BaseException:
            while len(self._numbers) > count:  # those that came last
                self._taken.discard(self._numbers.popitem()[1])
            self._next = following
            raise

    def _free_number(self, task: Any) -> int:
        if is_whole(task) and _LEAST <= task <= _MOST and int(task) not in self._taken:
            return int(task)
        while self._next in self._taken:
            self._next += 1
        return self._next
