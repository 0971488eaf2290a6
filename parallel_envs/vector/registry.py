"""Environments that the user's script registered, made known to workers that do not import that script."""

from __future__ import annotations

import copy
import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec


@dataclass(frozen=True, slots=True)
class Registrations:
    """What a process has registered with Gymnasium beyond Gymnasium's own: the packages behind it, and the specs.

    The specs stay pickled until a worker needs them, which most never do.
    """

    packages: tuple[str, ...]
    specs: bytes

    @classmethod
    def here(cls) -> Registrations:
        """The registrations of this process: none, where nobody has imported Gymnasium."""
        if (gymnasium := sys.modules.get("gymnasium")) is None:
            return cls((), b"")
        foreign = {
            name: spec for name, spec in gymnasium.registry.items() if not _module(spec).startswith("gymnasium.")
        }
        packages = {_module(spec).partition(".")[0] for spec in foreign.values()} - {"", "__main__"}
        specs = {name: portable(spec) for name, spec in foreign.items()}
        return cls(tuple(sorted(packages)), cloudpickle.dumps(specs) if specs else b"")

    def install(self) -> None:
        """Make them known in this process. Packages go first: most register their environments when imported."""
        for package in self.packages:
            try:
                importlib.import_module(package)
            except ImportError:  # the spec may never be made here; if it is, the error says what is missing
                continue
        if self.specs:
            import gymnasium

            for name, spec in cloudpickle.loads(self.specs).items():
                gymnasium.registry.setdefault(name, spec)


def _module(spec: EnvSpec) -> str:
    return spec.entry_point.partition(":")[0] if isinstance(spec.entry_point, str) else ""


def portable(spec: EnvSpec) -> EnvSpec:
    """A spec whose class lives in the user's script names it by value, since workers do not import that script."""
    if _module(spec) != "__main__":
        return spec
    portable = copy.copy(spec)
    found: Any = sys.modules["__main__"]
    for part in str(spec.entry_point).partition(":")[2].split("."):
        found = getattr(found, part)
    portable.entry_point = found
    return portable
