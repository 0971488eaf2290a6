"""Names of a package that are imported on first use.

    __getattr__, __dir__ = on_first_use(__name__, {"ParallelEnvManager": "vector"})

A package lists the module of each name. Nothing is imported before a name is used.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def on_first_use(package: str, homes: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for a package. `homes` maps each name to its module in the package."""

    def find(name: str) -> Any:
        from parallel_envs.extras import explained  # late: importing the package loads nothing else

        if name in homes.values():  # the module itself
            with explained(f"{package}.{name}"):
                return importlib.import_module(f"{package}.{name}")
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        with explained(f"{package}.{name}"):
            return getattr(importlib.import_module(f"{package}.{homes[name]}"), name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return find, names
