"""Who takes part: from the configuration to a seat for each environment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parallel_envs.groups.player import Recipe

if TYPE_CHECKING:
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
    """All seats, how the environments of a tag are made, and which tags need no worker."""

    seats: tuple[Seat, ...]
    recipes: Mapping[str, Recipe]
    group_size: int
    in_caller: frozenset[str]

    @property
    def tags(self) -> dict[int, str]:
        return {seat.env_id: seat.tag for seat in self.seats}

    @property
    def kinds(self) -> dict[int, str]:
        return {seat.env_id: seat.env_type for seat in self.seats}


def read_roster(settings: GroupsSettings, mode: str) -> Roster:
    """The seats of a mode."""
    block = settings.block(mode)
    named, seats = block.env_configs, list[Seat]()
    recipes, in_caller = dict[str, Recipe](), set[str]()
    for tag, num_groups in zip(named.tags, named.n_groups, strict=True):
        recipes[tag], light = _recipe(settings, tag, num_groups * block.group_size)
        if light:
            in_caller.add(tag)
        first = len(seats)
        seats += [
            _seat(settings, tag, recipes[tag], env_id, block.group_size)
            for env_id in range(first, first + num_groups * block.group_size)
        ]
    return Roster(tuple(seats), recipes, block.group_size, frozenset(in_caller))


def _recipe(settings: GroupsSettings, tag: str, num_envs: int) -> tuple[Recipe, bool]:
    """How a tag's environments are made, and whether they live in the caller."""
    from parallel_envs.groups.settings import read_env_config

    block = settings.custom_envs[tag]
    kind, config = read_env_config(tag, block)
    threads = (block.max_workers or num_envs) if block.parallel_friendly else 1
    in_caller = (
        block.env_type in settings.es_manager.sequential_env_types
        or block.where == "caller"
        or (block.where == "auto" and kind.light and not block.parallel_friendly)
    )
    return Recipe(tag, kind.factory, config, threads), in_caller


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
