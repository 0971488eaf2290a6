"""Who takes part: from the configuration to a seat for each environment."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parallel_envs.engine.pool import user_stacklevel
from parallel_envs.groups.failures import BadSettings
from parallel_envs.groups.player import Recipe

if TYPE_CHECKING:
    from parallel_envs.groups.blocks import TagBlock
    from parallel_envs.groups.registry import EnvType
    from parallel_envs.groups.settings import GroupsSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """An environment of the manager's.

    Attributes:
        env_id: From 0 up.
        group_id: Its group: `env_id // group_size`. All members begin with the same seed.
        tag: Its block in `custom_envs`, which says the rest.
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
class Roster:
    """All seats, how the environments of a tag are made, and where they live: `process`, `caller` or `both`."""

    seats: tuple[Seat, ...]
    recipes: Mapping[str, Recipe]
    group_size: int
    where: Mapping[str, str]

    @property
    def tags(self) -> dict[int, str]:
        return {seat.env_id: seat.tag for seat in self.seats}

    @property
    def away(self) -> list[int]:
        """The environments that are to live in workers."""
        return [seat.env_id for seat in self.seats if self.where[seat.tag] != "caller"]

    @property
    def caller_works(self) -> bool:
        """Whether the caller is to be one of these workers."""
        return "process" not in self.where.values()

    @property
    def kinds(self) -> dict[int, str]:
        return {seat.env_id: seat.env_type for seat in self.seats}


def read_roster(settings: GroupsSettings, mode: str) -> Roster:
    """The seats of a mode."""
    block = settings.block(mode)
    named, seats = block.env_configs, list[Seat]()
    recipes, where = dict[str, Recipe](), dict[str, str]()
    for tag, num_groups in zip(named.tags, block.groups_of_tags, strict=True):
        recipes[tag], where[tag] = _recipe(settings, tag, num_groups * block.group_size)
        first = len(seats)
        seats += [
            _seat(settings, tag, recipes[tag], env_id, block.group_size)
            for env_id in range(first, first + num_groups * block.group_size)
        ]
    return Roster(tuple(seats), recipes, block.group_size, where)


def _recipe(settings: GroupsSettings, tag: str, num_envs: int) -> tuple[Recipe, str]:
    """How a tag's environments are made, and where they live."""
    from parallel_envs.groups.settings import read_env_config

    block = settings.custom_envs[tag]
    kind, config = read_env_config(tag, block)
    if (sample := getattr(config, "sample_data", None)) is not None:
        _say_once(kind.name, sample)
    threads = (block.max_workers or num_envs) if block.parallel_friendly else 1
    recipe = Recipe(tag, kind.factory, config, threads, block.max_actions_per_traj)
    return recipe, _where(settings, tag, block, kind)


@functools.cache
def _say_once(env_type: str, sample: str) -> None:
    """Warn that environments play sample data, once a process for each kind of them."""
    warnings.warn(f"env_type {env_type!r} plays {sample}", UserWarning, stacklevel=user_stacklevel())


def _where(settings: GroupsSettings, tag: str, block: TagBlock, kind: EnvType) -> str:
    if block.parallel_friendly and block.where == "both":
        raise BadSettings(
            f"`custom_envs.{tag}` is parallel_friendly and lives in both places. In the caller environments wait one "
            "after the other: leave out `where: both`, or parallel_friendly."
        )
    if block.env_type in settings.es_manager.sequential_env_types:
        return "caller"
    if block.where != "auto":
        return block.where
    return "process" if block.parallel_friendly else kind.where


def _seat(settings: GroupsSettings, tag: str, recipe: Recipe, env_id: int, group_size: int) -> Seat:
    block = settings.custom_envs[tag]
    return Seat(
        env_id=env_id,
        group_id=env_id // group_size,
        tag=tag,
        env_type=block.env_type,
        config=recipe.config,
        max_actions_per_traj=block.max_actions_per_traj,
        env_instruction=block.env_instruction,
        max_tokens=block.max_tokens,
    )
