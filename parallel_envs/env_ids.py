"""Ids of environments: which registry has an id, which installed module it means, and what a wrong id may have meant.

    CartPole-v1              registered with Gymnasium
    sisl/pursuit-v5          registered with PettingZoo, from its version 1.27 on
    mpe2/simple_spread-v3    not registered; the module `mpe2.simple_spread_v3` is installed and is meant

Gymnasium has one registry. PettingZoo has two, of parallel and of AEC environments, and older versions have none: there
an id means a module. Neither library is imported before a function here needs it.
"""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from parallel_envs.checks import nearest

PACKAGES = ("mpe2", "pettingzoo.butterfly", "pettingzoo.classic", "pettingzoo.sisl", "pettingzoo.atari")
"""Where the environments of PettingZoo and its kin are. The last part of each name is a namespace of ids."""

_VERSION = r"-v\d+$"
_ZOO_KINDS = ("parallel", "aec")


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry of environments. `entries` is the library's own dict, and `make_spec` the class of its values."""

    key: str
    entries: dict[str, Any]
    make_spec: Callable[..., Any]

    def is_built_in(self, spec: Any) -> bool:
        """Return whether the library registers this spec itself."""
        return entry_module(spec).startswith(f"{self.key.partition('.')[0]}.")


def registries(*, load: bool) -> dict[str, Registry]:
    """Return the registries by key (see `Registry`). Without `load`, only those of libraries that are imported."""
    names = "gymnasium", "pettingzoo"
    gymnasium, zoo = map(importlib.import_module, names) if load else map(sys.modules.get, names)
    found: list[tuple[str, Any, Any]] = []
    if gymnasium is not None:
        found.append(("gymnasium", gymnasium.registry, gymnasium.envs.registration.EnvSpec))
    if zoo is not None and hasattr(zoo, "parallel_registry"):
        found += [(f"pettingzoo.{kind}", getattr(zoo, f"{kind}_registry"), zoo.EnvSpec) for kind in _ZOO_KINDS]
    return {key: Registry(key, *parts) for key, *parts in found}


def entry_module(spec: Any) -> str:
    """Return the module in which the entry point of a spec lies; "" if the entry point is no text."""
    return spec.entry_point.partition(":")[0] if isinstance(spec.entry_point, str) else ""


def is_unregistered(error: BaseException) -> bool:
    """Return whether `gymnasium.make` or `pettingzoo.make` raised this because no registry has the id."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"UnregisteredEnv", "NamespaceNotFound", "NameNotFound", "VersionNotFound"})


# ---- PettingZoo's ids ------------------------------------------------------------------------------------------------


def registered_kinds(env_id: str) -> list[str]:
    """Return which of PettingZoo's registries have this id: "parallel", "aec", both or neither.

    As with `pettingzoo.make`, an id without a version means the newest, and `_v5` at the end means `-v5`.
    """
    if not registries(load=True).keys() - {"gymnasium"}:
        return []
    import pettingzoo

    kinds = []
    for kind in _ZOO_KINDS:
        try:
            pettingzoo.spec(kind, env_id)
        except pettingzoo.env_registry.exceptions.PettingZooRegistryError:
            continue
        kinds.append(kind)
    return kinds


def zoo_package(env_id: str) -> str | None:
    """Return the package in whose namespace an id lies (`pettingzoo.sisl` for `sisl/...`). Nothing is imported."""
    namespace, slash, _ = env_id.rpartition("/")
    return next((package for package in PACKAGES if slash and package.rpartition(".")[2] == namespace), None)


def zoo_module(env_id: str) -> str | None:
    """Return the installed module that an id means: `mpe2.simple_spread_v3` for `mpe2/simple_spread-v3`."""
    if (package := zoo_package(env_id)) is None:
        return None
    wanted = re.sub(r"-(?=v\d+$)", "_", env_id.rpartition("/")[2])
    modules = {module.rpartition(".")[2]: module for module in modules_of(package)}
    newest_first = sorted(modules, key=lambda name: int(name.rpartition("_v")[2]), reverse=True)
    return next((modules[name] for name in newest_first if wanted in (name, name.rpartition("_v")[0])), None)


def is_zoo_id(env_id: str) -> bool:
    """Return whether PettingZoo has an environment of this id, or a module of it or its kin is meant."""
    return bool(registered_kinds(env_id)) or zoo_module(env_id) is not None


def known_zoo_ids() -> list[str]:
    """Return the ids of all PettingZoo environments that are registered or installed."""
    known = dict.fromkeys(
        env_id for key, one in registries(load=True).items() if key != "gymnasium" for env_id in one.entries
    )
    for package in PACKAGES:
        for module in modules_of(package):
            name, _, version = module.rpartition(".")[2].rpartition("_v")
            known[f"{package.rpartition('.')[2]}/{name}-v{version}"] = None
    return list(known)


def nearest_id(env_id: str) -> str | None:
    """Return the id of either library that is most like a wrong one, or None. Without a version, it is the newest."""
    known = [*registries(load=True)["gymnasium"].entries, *known_zoo_ids()]
    wrong = env_id.rpartition(":")[2].replace("_v", "-v")
    close = nearest(wrong, known, cutoff=0.75)
    if close is None or re.search(_VERSION, wrong):
        return close
    name = re.sub(_VERSION, "", close)
    versions = [one for one in known if re.fullmatch(re.escape(name) + _VERSION, one)]
    return max(versions, key=lambda one: int(one.rpartition("-v")[2]), default=close)


# ---- modules ---------------------------------------------------------------------------------------------------------


def modules_of(package: str) -> Iterator[str]:
    """Yield the environment modules of an installed package: their names end in a version."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return
    for module in pkgutil.iter_modules(spec.submodule_search_locations or () if spec else ()):
        if module.name.rpartition("_v")[2].isdecimal():
            yield f"{package}.{module.name}"


def present_path(path: str) -> str:
    """Return where a module is now: those of `pettingzoo.mpe` are in `mpe2`, unless PettingZoo is old enough."""
    if not path.startswith("pettingzoo.mpe.") or path in modules_of("pettingzoo.mpe"):
        return path
    return path.replace("pettingzoo.mpe.", "mpe2.", 1)  # PettingZoo 1.26 left its MPE environments to this package


def nearest_module(path: str) -> str | None:
    """Return the most similar environment module of the same package, or of any known package, or None."""
    package, _, name = path.replace("/", ".").rpartition(".")
    modules = list(modules_of(package)) if package else []
    if not modules:
        modules = [module for known in PACKAGES for module in modules_of(known)]
    names = {module.rpartition(".")[2]: module for module in modules}
    close = nearest(name, names, cutoff=0.75)
    return None if close is None else names[close]
