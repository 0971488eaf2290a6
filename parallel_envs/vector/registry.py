"""Two records that a worker needs to make envs: `Registrations` of env ids, and the objects in use (`OwnedEnvs`)."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
import operator
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import cloudpickle

from parallel_envs.engine import picklable, unpicklable_part
from parallel_envs.env_ids import entry_module, registries, zoo_package

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

_Key = tuple[str, str]
"""The key of a registry (see `env_ids.registries`) and an id in it."""

_INSIDE = ("env", "aec_env", "_conversion")
"""Attributes in which wrappers of Gymnasium, PettingZoo and this package keep the env that they wrap."""


@dataclass(frozen=True, slots=True)
class Registrations:
    """The envs that the user's script has registered with Gymnasium and PettingZoo, for workers that do not import it.
    `packages` are the packages of these envs. The specs stay pickled until a worker needs them, which most workers
    never do. `names` lists the ids by registry. `left_out` lists the specs that cannot be sent to a worker, each with
    the reason. Only an env that needs one of these fails.
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
        specs, left_out = dict[_Key, Any](), dict[_Key, str]()
        for key, spec in foreign.items():
            try:
                specs[key] = portable(spec)
            except AttributeError as error:
                left_out[key] = str(error)
        if not picklable(specs):  # all at once is quick; one by one is for the rare case
            for key, spec in list(specs.items()):
                if not picklable(spec):
                    left_out[key] = f"{unpicklable_part(specs.pop(key), 'spec')} cannot be pickled"
        names: dict[str, tuple[str, ...]] = {}
        for registry_key, name in foreign:
            names[registry_key] = (*names.get(registry_key, ()), name)
        pickled = cloudpickle.dumps(specs) if specs else b""
        return cls(tuple(sorted(packages)), pickled, tuple(left_out.items()), names)

    def replace_built_in(self) -> bool:
        """Return whether one of these ids names another env in this process: the library's own. In that case a missing
        registration would raise no error, and the wrong env would be made.
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
        """Register the envs in this process. Packages are imported first: most register their envs when imported. A
        spec that was left out is replaced by one whose envs raise the reason. Registrations that this process has made
        itself stay; the library's own env of the same id is replaced.
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


def _raise_left_out(name: str, reason: str, **_: Any) -> Any:
    """Raise the reason why a registration was left out. The entry point of a spec that was left out."""
    import gymnasium

    raise gymnasium.error.UnregisteredEnv(
        f"The registration of {name!r} could not be sent to the worker: {reason}. Register it with an entry point "
        "and keyword arguments that can be pickled, or in a module of its own, and write 'module:id'."
    )


def portable(spec: EnvSpec) -> EnvSpec:
    """Return a spec that works in a worker: a class of the user's script, which workers do not import, goes by value.
    The spec may be one of PettingZoo's too. Raises AttributeError if the script has no such class.
    """
    if entry_module(spec) != "__main__":
        return spec
    portable, path = copy.copy(spec), str(spec.entry_point).partition(":")[2]
    try:
        found = operator.attrgetter(path)(sys.modules["__main__"])
    except AttributeError as error:
        raise AttributeError(f"{error}, which entry point {spec.entry_point!r} of {spec.id!r} names") from None
    object.__setattr__(portable, "entry_point", found)  # PettingZoo's specs are frozen
    return portable


class OwnedEnvs:
    """Records which object belongs to which env, in one process, for any number of threads. `[lambda: env for _ in
    range(4)]` makes four factories of one env: called in one process, a step of one would be a step of all. A reference
    to each object is kept, so that no new object can get the same `id`.
    """

    def __init__(self) -> None:
        self._owners: dict[int, tuple[int, Any]] = {}
        self._ids: dict[int, list[int]] = {}

    def claim(self, env: int, made: Any) -> None:
        """Record that the factory of `env` returned `made`. Raise ValueError if any layer of it belongs to another env.
        If `env` had an object before, call `release(env)` first.
        """
        ids = self._ids[env] = []
        for layer in _layers(made):
            owner, _ = self._owners.setdefault(id(layer), (env, layer))
            if owner != env:
                self.release(env)
                first, second = sorted((env, owner))
                raise ValueError(
                    f"The factories of envs {first} and {second} returned the same object, or wrappers around it: a "
                    f"{type(layer).__qualname__}. A step of one would be a step of the other. Each factory must make "
                    "its own: `lambda: make_env()`, not `lambda: env`."
                )
            ids.append(id(layer))

    def release(self, env: int) -> None:
        """Forget the objects of `env`, which is closed or will be made again."""
        for one in self._ids.pop(env, ()):
            del self._owners[one]


def _layers(env: Any) -> Iterator[Any]:
    """Yield an env and, if it is a wrapper (its `unwrapped` is another object), the env inside, and so on. Other parts,
    such as a simulator, may be shared.

    Attributes are read by name and never through `__dict__`: once `__dict__` of an object has been read, Python keeps
    its attributes in a slower form, and each later step of the env would be slower.
    """
    seen = set[int]()
    while env is not None and id(env) not in seen:
        seen.add(id(env))
        yield env
        try:
            names = _INSIDE if hasattr(type(env), "unwrapped") and env.unwrapped is not env else ()
        except Exception:  # noqa: BLE001  # often because the env inside has no `unwrapped`
            names = _INSIDE
        inside = None
        for name in names:
            with contextlib.suppress(Exception):  # often AttributeError, but a property may raise anything
                inside = getattr(env, name)
                break
        env = inside
