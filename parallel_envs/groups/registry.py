"""Types of environments by name (the values of `env_type`), and the environments that a configuration asks for.

    register("guess", Guess)                               # Guess(config), config a dict: the block `env_config`
    register("guess", Guess, GuessConfig)                  # or a frozen dataclass made of it, with checked fields
    register("lake", lambda config: gymnasium.make("FrozenLake-v1", **config))

Registered factories travel to the workers with the environments: workers need not import your script.
"""

from __future__ import annotations

import dataclasses
import functools
import pkgutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parallel_envs.checks import advice, suggests_keywords
from parallel_envs.choices import Where
from parallel_envs.engine.pool import user_stacklevel
from parallel_envs.groups.failures import BadSettings
from parallel_envs.groups.hosted_env import TagSpec

if TYPE_CHECKING:
    from parallel_envs.groups.config import GroupsSettings


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True, slots=True)
class ImportPath:
    """The factory `package.module:name`, imported in the process that calls it, at its first call."""

    path: str

    def __call__(self, config: Any) -> Any:
        return pkgutil.resolve_name(self.path)(config)


# By name: the module, the factory and the class of its config in it, where its environments live.
_INCLUDED: dict[str, tuple[str, str, str, Where]] = {
    "bandit": ("envs.bandit", "BanditEnv", "BanditConfig", "caller"),
    "countdown": ("envs.countdown", "CountdownEnv", "CountdownConfig", "caller"),
    "frozen_lake": ("envs.frozen_lake", "FrozenLakeEnv", "FrozenLakeConfig", "caller"),
    "gymnasium": ("gymnasium_env", "make", "GymnasiumConfig", "process"),
    "metamathqa": ("envs.metamathqa", "MetaMathQAEnv", "MetaMathQAConfig", "caller"),
    "sokoban": ("envs.sokoban", "SokobanEnv", "SokobanConfig", "both"),
    "webshop": ("envs.webshop", "WebShopEnv", "WebShopConfig", "process"),
}
_registered: dict[str, EnvType] = {}


@suggests_keywords
def register(env_type: str, factory: Callable[[Any], Any], config: Any = None, *, light: bool = False) -> None:
    """Register a type of environment under a name. A name of your own may be registered again, a name of ours may not.

    `light`: its steps take so little time that it is best stepped in the caller.
    """
    is_config = config is None or (isinstance(config, type) and dataclasses.is_dataclass(config))
    for name, value, fits, wanted in (
        ("env_type", env_type, str(env_type) == env_type != "", "a word"),
        ("env_type", env_type, env_type not in _INCLUDED, "another name: this one comes with the package"),
        ("factory", factory, callable(factory), "a class or a function that takes the config"),
        ("config", config, is_config, "a frozen dataclass (the class, not an object), or None"),
    ):
        if not fits:
            raise BadSettings(f"{name}={value!r} cannot be registered. Give {wanted}.")
    _registered[env_type] = EnvType(env_type, factory, config, "caller" if light else "process")


def known_env_types() -> list[str]:
    """Return all names that `env_type` may have."""
    return sorted([*_INCLUDED, *_registered])


def env_type_named(name: str) -> EnvType:
    """Return the type with a name. Raises `BadSettings` that suggests the nearest name."""
    if name in _registered:
        return _registered[name]
    if name not in _INCLUDED:
        raise BadSettings(f"env_type={name!r} is unknown. {advice(name, known_env_types())}")
    module, factory, config, where = _INCLUDED[name]
    path = f"parallel_envs.groups.{module}"
    return EnvType(name, ImportPath(f"{path}:{factory}"), pkgutil.resolve_name(f"{path}:{config}"), where)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvSpec:
    """An environment of the manager.

    Attributes:
        env_id: Its number, from 0 up.
        group_id: Its group: `env_id // group_size`. All members begin with the same seed.
        tag: Its block in `custom_envs`, where the other attributes come from.
    """

    env_id: int
    group_id: int
    tag: str
    env_type: str
    config: Any
    max_actions_per_traj: int
    env_instruction: str
    max_tokens: int | None


_OF_TAG = ("env_type", "max_actions_per_traj", "env_instruction", "max_tokens")
"""Attributes of an `EnvSpec` that are fields of its block in `custom_envs`."""


@dataclass(frozen=True, slots=True)
class EnvSpecs:
    """All environments. By tag, how its environments are made, and where they live: `process`, `caller` or `both`."""

    envs: tuple[EnvSpec, ...]
    tag_specs: Mapping[str, TagSpec]
    group_size: int
    where: Mapping[str, str]


def read_env_specs(settings: GroupsSettings, mode: str) -> EnvSpecs:
    """Return the environments of a mode."""
    from parallel_envs.groups.config import read_env_config

    block = settings.block(mode)
    envs, tag_specs, where = list[EnvSpec](), dict[str, TagSpec](), dict[str, str]()
    for tag, num_groups in zip(block.env_configs.tags, block.groups_of_tags, strict=True):
        of_tag, num_envs = settings.custom_envs[tag], num_groups * block.group_size
        env_type, config = read_env_config(tag, of_tag)
        if (sample := getattr(config, "sample_data", None)) is not None:
            _warn_once(env_type.name, sample)
        threads, usual = 1, env_type.where
        if of_tag.parallel_friendly:
            threads, usual = of_tag.max_workers or num_envs, "process"
            if of_tag.where == "both":
                raise BadSettings(
                    f"`custom_envs.{tag}` is parallel_friendly and lives in both places. In the caller environments "
                    "wait one after the other: leave out `where: both`, or parallel_friendly."
                )
        tag_specs[tag] = TagSpec(tag, env_type.factory, config, threads, of_tag.max_actions_per_traj)
        is_sequential = of_tag.env_type in settings.es_manager.sequential_env_types
        where[tag] = "caller" if is_sequential else usual if of_tag.where == "auto" else of_tag.where
        shared = {"tag": tag, "config": config, **{name: getattr(of_tag, name) for name in _OF_TAG}}
        for env_id in range(len(envs), len(envs) + num_envs):
            envs.append(EnvSpec(env_id=env_id, group_id=env_id // block.group_size, **shared))
    return EnvSpecs(tuple(envs), tag_specs, block.group_size, where)


@functools.cache
def _warn_once(env_type: str, sample: str) -> None:
    """Warn that environments play sample data, once a process for each type."""
    warnings.warn(f"env_type {env_type!r} plays {sample}", UserWarning, stacklevel=user_stacklevel())
