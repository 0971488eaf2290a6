"""Whether an environment looks at the task that lies in its reset's options.

Most environments take options and ignore what they do not know. A task given to such an environment would change
nothing, and nobody would be told.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

_TASK = "task"


class WatchedOptions(dict[str, Any]):
    """Reset options that know whether somebody has looked for the task. Copies count as a look."""

    seen = False

    def __getitem__(self, key: str) -> Any:
        self.seen = self.seen or key == _TASK
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.seen = self.seen or key == _TASK
        return super().get(key, default)

    def pop(self, key: str, *default: Any) -> Any:
        self.seen = self.seen or key == _TASK
        return super().pop(key, *default)

    def __contains__(self, key: object) -> bool:
        self.seen = self.seen or key == _TASK
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:  # with this one here, dict(options) and {**options} come by as well
        self.seen = True
        return super().__iter__()

    def keys(self) -> Any:
        self.seen = True
        return super().keys()

    def values(self) -> Any:
        self.seen = True
        return super().values()

    def items(self) -> Any:
        self.seen = True
        return super().items()


def warn_unseen(env: Any) -> None:
    """Say that a task has had no effect."""
    warnings.warn(
        f"{env!r} was given a task in its reset's options and did not look at it, so the task changes nothing. Give "
        "task_setter=, a function of the environment and the task, or an environment that has reset_task or set_task, "
        "or that reads options['task'].",
        stacklevel=2,
    )
