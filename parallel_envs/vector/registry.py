"""Environments that the user's script registered, made known to workers that do not import that script."""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import cloudpickle

from parallel_envs.engine import unpicklable_part

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec


@dataclass(frozen=True, slots=True)
class Registrations:
    """What a process has registered with Gymnasium beyond Gymnasium's own: the packages behind it, and the specs.

    The specs stay pickled until a worker needs them, which most never do. `left_out` lists the specs that cannot travel
    to a worker, each with the reason. Only an environment that needs one of these fails.
    """

    packages: tuple[str, ...]
    specs: bytes
    left_out: tuple[tuple[str, str], ...] = ()

    @classmethod
    def here(cls) -> Registrations:
        """The registrations of this process: none, where nobody has imported Gymnasium."""
        if (gymnasium := sys.modules.get("gymnasium")) is None:
            return cls((), b"")
        foreign = {
            name: spec for name, spec in gymnasium.registry.items() if not _module(spec).startswith("gymnasium.")
        }
        packages = {_module(spec).partition(".")[0] for spec in foreign.values()} - {"", "__main__"}
        specs, left_out = _those_that_can_travel(foreign)
        return cls(tuple(sorted(packages)), cloudpickle.dumps(specs) if specs else b"", tuple(left_out.items()))

    def install(self) -> None:
        """Make them known in this process. Packages go first: most register their environments when imported.

        In the place of a spec that was left out stands one whose environments raise the reason.
        """
        for package in self.packages:
            try:
                importlib.import_module(package)
            except Exception:  # noqa: BLE001  # its envs may never be made here; if one is, the error says what is missing
                continue
        if not self.specs and not self.left_out:
            return
        import gymnasium
        from gymnasium.envs.registration import EnvSpec

        for name, spec in cloudpickle.loads(self.specs).items() if self.specs else ():
            gymnasium.registry.setdefault(name, spec)
        for name, reason in self.left_out:
            gymnasium.registry.setdefault(name, EnvSpec(name, functools.partial(_raise_left_out, name, reason)))


def _those_that_can_travel(foreign: dict[str, EnvSpec]) -> tuple[dict[str, EnvSpec], dict[str, str]]:
    """Return the specs as they go to workers, and for each of the others why it cannot."""
    specs, left_out = dict[str, Any](), dict[str, str]()
    for name, spec in foreign.items():
        try:
            specs[name] = portable(spec)
        except AttributeError as error:
            left_out[name] = str(error)
    if not _can_be_pickled(specs):  # all at once is quick; one by one is for the rare case
        for name, spec in list(specs.items()):
            if not _can_be_pickled(spec):
                left_out[name] = f"{unpicklable_part(specs.pop(name), 'spec')} cannot be pickled"
    return specs, left_out


def _can_be_pickled(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:  # noqa: BLE001  # whatever the objects' own code raises
        return False
    return True


def _raise_left_out(name: str, reason: str, **_: Any) -> Any:
    import gymnasium

    raise gymnasium.error.UnregisteredEnv(
        f"The registration of {name!r} could not be sent to the worker: {reason}. Register it with an entry point "
        "and keyword arguments that can be pickled, or in a module of its own, and write 'module:id'."
    )


def _module(spec: EnvSpec) -> str:
    return spec.entry_point.partition(":")[0] if isinstance(spec.entry_point, str) else ""


def portable(spec: EnvSpec) -> EnvSpec:
    """A spec whose class lives in the user's script names it by value, since workers do not import that script.

    Raises AttributeError if the script has no such class.
    """
    if _module(spec) != "__main__":
        return spec
    portable = copy.copy(spec)
    found: Any = sys.modules["__main__"]
    for part in str(spec.entry_point).partition(":")[2].split("."):
        if not hasattr(found, part):
            raise AttributeError(
                f"{found!r} has no {part!r}, which entry point {spec.entry_point!r} of {spec.id!r} names"
            )
        found = getattr(found, part)
    portable.entry_point = found
    return portable
