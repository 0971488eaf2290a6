"""The environments of a mode, as the configuration describes them: a spec for each environment and for each tag."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parallel_envs.engine.pool import user_stacklevel
from parallel_envs.groups.failures import BadSettings
from parallel_envs.groups.hosted_env import TagSpec

if TYPE_CHECKING:
    from parallel_envs.groups.config import GroupsSettings


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


@dataclass(frozen=True, slots=True)
class EnvSpecs:
    """All environments. By tag, how its environments are made, and where they live: `process`, `caller` or `both`.

    If no tag needs a `process`, the caller works beside the workers, for environments that live in `both`.
    """

    envs: tuple[EnvSpec, ...]
    tag_specs: Mapping[str, TagSpec]
    group_size: int
    where: Mapping[str, str]


def read_env_specs(settings: GroupsSettings, mode: str) -> EnvSpecs:
    """Return the environments of a mode."""
    from parallel_envs.groups.config_reader import read_env_config

    block = settings.block(mode)
    envs, tag_specs, where = list[EnvSpec](), dict[str, TagSpec](), dict[str, str]()
    for tag, num_groups in zip(block.env_configs.tags, block.groups_of_tags, strict=True):
        of_tag, num_envs = settings.custom_envs[tag], num_groups * block.group_size
        env_type, config = read_env_config(tag, of_tag)
        if (sample := getattr(config, "sample_data", None)) is not None:
            _warn_once(env_type.name, sample)
        threads = (of_tag.max_workers or num_envs) if of_tag.parallel_friendly else 1
        tag_specs[tag] = TagSpec(tag, env_type.factory, config, threads, of_tag.max_actions_per_traj)
        if of_tag.parallel_friendly and of_tag.where == "both":
            raise BadSettings(
                f"`custom_envs.{tag}` is parallel_friendly and lives in both places. In the caller environments wait "
                "one after the other: leave out `where: both`, or parallel_friendly."
            )
        if of_tag.env_type in settings.es_manager.sequential_env_types:
            where[tag] = "caller"
        elif of_tag.where != "auto":
            where[tag] = of_tag.where
        else:
            where[tag] = "process" if of_tag.parallel_friendly else env_type.where
        envs += [
            EnvSpec(
                env_id=env_id,
                group_id=env_id // block.group_size,
                tag=tag,
                env_type=of_tag.env_type,
                config=config,
                max_actions_per_traj=of_tag.max_actions_per_traj,
                env_instruction=of_tag.env_instruction,
                max_tokens=of_tag.max_tokens,
            )
            for env_id in range(len(envs), len(envs) + num_envs)
        ]
    return EnvSpecs(tuple(envs), tag_specs, block.group_size, where)


@functools.cache
def _warn_once(env_type: str, sample: str) -> None:
    """Warn that environments play sample data, once a process for each type."""
    warnings.warn(f"env_type {env_type!r} plays {sample}", UserWarning, stacklevel=user_stacklevel())
