"""Types of environments by name: the values of `env_type`.

    register("guess", Guess)                               # Guess(config), config a dict: the block `env_config`
    register("guess", Guess, GuessConfig)                  # or a frozen dataclass made of it, with checked fields
    register("lake", lambda config: gymnasium.make("FrozenLake-v1", **config))

Registered factories travel to the workers with the environments: workers need not import your script.
"""

from __future__ import annotations

import dataclasses
import importlib
import re
from collections.abc import Callable
from typing import Any

from parallel_envs.choices import Where
from parallel_envs.groups.failures import BadSettings
from parallel_envs.spelling import advice, suggests_keywords

__all__ = ["EnvType", "env_type_named", "known_env_types", "register"]


@dataclasses.dataclass(frozen=True, slots=True)
class EnvType:
    """A type of environment.

    Attributes:
        name: The value of `env_type`.
        factory: Called with the config; returns an environment (see `interface`) or a `gymnasium.Env`.
        config: A frozen dataclass whose fields `env_config` may set. None: the factory is given a dict.
        where: Where its environments live by default (see `TagBlock.where`): in the `caller` if a step takes less than
            an action's way to a worker and back; in `both` if a step takes a few times as long, and the environment is
            known never to hang or to kill its process; else in a `process`.
    """

    name: str
    factory: Callable[[Any], Any]
    config: type | None = None
    where: Where = "process"


@dataclasses.dataclass(frozen=True, slots=True)
class ImportPath:
    """The factory `package.module:name`, imported in the process that calls it, at its first call."""

    path: str

    def __call__(self, config: Any) -> Any:
        return self.found()(config)

    def found(self) -> Any:
        """Return the object at the path."""
        module, _, name = self.path.partition(":")
        return getattr(importlib.import_module(module), name)


_ENVS = "parallel_envs.groups.envs"
# By name: the module, the class, the class of its config, where it lives.
_INCLUDED: dict[str, tuple[str, str, str, Where]] = {
    "bandit": (f"{_ENVS}.bandit", "BanditEnv", "BanditConfig", "caller"),
    "countdown": (f"{_ENVS}.countdown", "CountdownEnv", "CountdownConfig", "caller"),
    "frozen_lake": (f"{_ENVS}.frozen_lake", "FrozenLakeEnv", "FrozenLakeConfig", "caller"),
    "gymnasium": ("parallel_envs.groups.gymnasium_env", "make", "GymnasiumConfig", "process"),
    "metamathqa": (f"{_ENVS}.metamathqa", "MetaMathQAEnv", "MetaMathQAConfig", "caller"),
    "sokoban": (f"{_ENVS}.sokoban", "SokobanEnv", "SokobanConfig", "both"),
    "webshop": (f"{_ENVS}.webshop", "WebShopEnv", "WebShopConfig", "process"),
}
_registered: dict[str, EnvType] = {}


@suggests_keywords
def register(env_type: str, factory: Callable[[Any], Any], config: Any = None, *, light: bool = False) -> None:
    """Register a type of environment under a name. A name of your own may be registered again, a name of ours may not.

    `light`: its steps take so little time that it is best stepped in the caller.
    """
    if not (env_type and str(env_type) == env_type):
        raise BadSettings(f"env_type={env_type!r} is not a name. Register environments under a word.")
    if env_type in _INCLUDED:
        raise BadSettings(f"env_type={env_type!r} comes with this package. Register yours under another name.")
    if not callable(factory):
        raise BadSettings(
            f"The factory of {env_type!r} is {factory!r}, which cannot be called. Give a class, or a function, that "
            "takes the config and returns an environment."
        )
    if config is not None and not (isinstance(config, type) and dataclasses.is_dataclass(config)):
        raise BadSettings(
            f"The config of {env_type!r} is {config!r}. Give a frozen dataclass (the class, not an object), or None."
        )
    if not isinstance(light, bool):
        raise BadSettings(f"light={light!r} of {env_type!r} is neither True nor False. Give one of the two.")
    _registered[env_type] = EnvType(env_type, factory, config, "caller" if light else "process")


def known_env_types() -> list[str]:
    """Return all names that `env_type` may have."""
    return sorted([*_INCLUDED, *_registered])


def env_type_named(name: str) -> EnvType:
    """Return the type with a name. Raises `BadSettings` that suggests the nearest name."""
    if name in _registered:
        return _registered[name]
    if name not in _INCLUDED:
        if re.search(r"-v\d+$", name):
            raise BadSettings(
                f"env_type={name!r} looks like an id of Gymnasium's. Say `env_type: gymnasium` and `env_config: {{id: "
                f"{name}}}`, or register a factory."
            )
        raise BadSettings(f"env_type={name!r} is unknown. {advice(name, known_env_types())}")
    module, factory, config, where = _INCLUDED[name]
    return EnvType(name, ImportPath(f"{module}:{factory}"), ImportPath(f"{module}:{config}").found(), where)
