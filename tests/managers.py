"""Managers of either kind that are closed when their test ends: what the fixtures called `make` are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Protocol, TypeVar


class Closable(Protocol):
    """A manager, as far as this is concerned."""

    def close(self) -> None: ...


Manager = TypeVar("Manager", bound=Closable)


def opened(kind: Callable[..., Manager], backend: str) -> Iterator[Callable[..., Manager]]:
    """One function that makes managers of this kind over this backend. Afterwards all are closed."""
    with ExitStack() as managers:

        def make(*arguments: Any, **settings: Any) -> Manager:
            envs = kind(*arguments, **{"backend": backend, **settings})
            managers.callback(envs.close)
            return envs

        yield make
