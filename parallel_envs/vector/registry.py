"""Environments that the user's script registered, made known to workers that do not import that script."""

from __future__ import annotations

import copy
import functools
import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cloudpickle

from parallel_envs.engine import unpicklable_part
from parallel_envs.env_ids import entry_module, registries, zoo_package

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

_Key = tuple[str, str]
"""A registry's key (see `env_ids.registries`) and an id in it."""


@dataclass(frozen=True, slots=True)
class Registrations:
    """What a process has registered with Gymnasium and PettingZoo beyond their own: the packages behind it, the specs.

    The specs stay pickled until a worker needs them, which most never do. `names` lists them by registry. `left_out`
    lists the specs that cannot travel to a worker, each with the reason. Only an environment that needs one of these
    fails.
    """

    packages: tuple[str, ...]
    specs: bytes
    left_out: tuple[tuple[_Key, str], ...] = ()
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Registrations:
        """Return the registrations of this process. A library that was not imported here has none."""
        foreign = {
            (registry.key, name): spec
            for registry in registries(load=False).values()
            for name, spec in registry.entries.items()
            if not registry.is_built_in(spec)
        }
        packages = {entry_module(spec).partition(".")[0] for spec in foreign.values()} - {"", "__main__"}
        specs, left_out = _those_that_can_travel(foreign)
        names = {
            key: tuple(name for one, name in foreign if one == key) for key in dict.fromkeys(key for key, _ in foreign)
        }
        pickled = cloudpickle.dumps(specs) if specs else b""
        return cls(tuple(sorted(packages)), pickled, tuple(left_out.items()), names)

    def replace_built_in(self) -> bool:
        """Return whether this process has another environment by one of these ids: the library's own.

        Then no error would tell that a registration is missing.
        """
        here = registries(load=False)
        for key, names in self.names.items():
            if key not in here and any(map(zoo_package, names)):  # it will be there once PettingZoo is imported
                return True
            known = here[key].entries if key in here else {}
            if any(name in known and here[key].is_built_in(known[name]) for name in names):
                return True
        return False

    def install(self) -> None:
        """Make them known in this process. Packages go first: most register their environments when imported.

        In the place of a spec that was left out stands one whose environments raise the reason. What this process has
        registered itself stays; a library's own environment of the same id is replaced.
        """
        for package in self.packages:
            try:
                importlib.import_module(package)
            except Exception:  # noqa: BLE001  # its envs may never be made here; if one is, the error says what is missing
                continue
        if not self.specs and not self.left_out:
            return
        for library in {key.partition(".")[0] for key in self.names}:
            importlib.import_module(library)  # a worker of a group may not have imported it yet
        here = registries(load=False)
        specs: dict[_Key, Any] = cloudpickle.loads(self.specs) if self.specs else {}
        for (key, name), reason in self.left_out:
            specs[key, name] = here[key].make_spec(name, functools.partial(_raise_left_out, name, reason))
        for (key, name), spec in specs.items():
            registry = here[key]
            if name not in registry.entries or registry.is_built_in(registry.entries[name]):
                registry.entries[name] = spec


def _those_that_can_travel(foreign: dict[_Key, Any]) -> tuple[dict[_Key, Any], dict[_Key, str]]:
    """Return the specs as they go to workers, and for each of the others why it cannot."""
    specs, left_out = dict[_Key, Any](), dict[_Key, str]()
    for key, spec in foreign.items():
        try:
            specs[key] = portable(spec)
        except AttributeError as error:
            left_out[key] = str(error)
    if not _can_be_pickled(specs):  # all at once is quick; one by one is for the rare case
        for key, spec in list(specs.items()):
            if not _can_be_pickled(spec):
                left_out[key] = f"{unpicklable_part(specs.pop(key), 'spec')} cannot be pickled"
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


def portable(spec: EnvSpec) -> EnvSpec:
    """A spec whose class lives in the user's script names it by value, since workers do not import that script.

    It may be one of PettingZoo's, too. Raises AttributeError if the script has no such class.
    """
    if entry_module(spec) != "__main__":
        return spec
    portable = copy.copy(spec)
    found: Any = sys.modules["__main__"]
    for part in str(spec.entry_point).partition(":")[2].split("."):
        if not hasattr(found, part):
            raise AttributeError(
                f"{found!r} has no {part!r}, which entry point {spec.entry_point!r} of {spec.id!r} names"
            )
        found = getattr(found, part)
    object.__setattr__(portable, "entry_point", found)  # PettingZoo's specs are frozen
    return portable
