"""Base class of objects that a `with` block closes."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class ClosedAtExit:
    """Object with a `close` that may be called again. A `with` block calls it at the end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
