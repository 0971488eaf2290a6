"""A gate at which an env waits until the test lets it go on, in whatever process or thread the env lives."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import Self

MANY = 1000


class Gate:
    """A named pipe: each byte in it lets one waiting env through. Only the test's end needs closing."""

    def __init__(self, path: Path) -> None:
        self.path = path
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # both ways, so that neither side waits for the other

    def let_through(self, count: int = 1) -> None:
        os.write(self._fd, b"." * count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.let_through(MANY)
        os.close(self._fd)


def wait_at(path: Path) -> None:
    """Wait until the gate lets one through."""
    with path.open("rb", buffering=0) as gate:
        gate.read(1)
