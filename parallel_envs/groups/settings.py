"""The configuration: a dict, a YAML file or `GroupsSettings`, checked word by word before anything starts.

seed: {train: 10000, val: 123}
es_manager:
  use_multiprocessing: true          # false: everything in the caller
  max_workers: 8
  sequential_env_types: [webshop]    # always in the caller
  format_penalty: -0.1               # added to an entry's penalty by each turn with an action that means nothing
  train: {env_groups: 8, group_size: 16, env_configs: {tags: [Small, Shop], n_groups: [6, 2]}}
  val: {env_groups: 512, group_size: 1, env_configs: {tags: [Small], n_groups: [512]}}
custom_envs:
  Small: {env_type: sokoban, max_actions_per_traj: 10, env_config: {dim_x: 6, dim_y: 6, num_boxes: 1}}
  Shop: {env_type: webshop, env_instruction: "You are shopping.", env_config: null}

Other names at the top belong to other parts of a larger file, and are left alone, unless they are words of these
blocks in the wrong place, and such as nobody else has: `tags` and `mode` are everybody's. All of `custom_envs` is
checked, whichever mode is asked for. Only a tag that neither mode names may have an `env_type` that nobody knows, and
that is like none that is known: a file for many experiments may have types that another script registers.

A configuration whose `es_manager` names no groups, and that has no `custom_envs`, gets those of `defaults.py`: 8 groups
of 16 rooms of Sokoban to train in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from parallel_envs.groups.blocks import GroupsSettings, ManagerBlock, ModeBlock, TagBlock
from parallel_envs.groups.configs import read_env_config
from parallel_envs.groups.defaults import with_default_groups
from parallel_envs.groups.failures import BadSettings
from parallel_envs.groups.mistakes import told_of_settings
from parallel_envs.groups.registry import known_env_types
from parallel_envs.spelling import advice, nearest
from parallel_envs.yaml_files import settings_in

__all__ = ["GroupsSettings", "read_env_config", "read_settings"]


def read_settings(given: Any) -> GroupsSettings:
    """Settings from a mapping, from the path of a YAML file, or as they are. Raises `BadSettings`."""
    if isinstance(given, GroupsSettings):
        settings = given
    elif isinstance(given, Mapping):
        settings = _checked(_plain(given), "the configuration")
    elif isinstance(given, str | Path):
        settings = _checked(settings_in(Path(given), BadSettings), str(given))
    else:
        raise BadSettings(
            f"The configuration is a {type(given).__name__}. Give a dict, the path of a YAML file, or GroupsSettings."
        )
    _check_sense(settings)
    return settings


def _plain(value: Any) -> Any:
    """Dicts and lists in the place of whatever mappings and sequences a configuration library has."""
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes | tuple):
        return [_plain(one) for one in value]
    return value


def _checked(content: dict[str, Any], where: str) -> GroupsSettings:
    ours = {key: value for key, value in content.items() if key in GroupsSettings.model_fields}
    for key in content.keys() - ours.keys():
        if (close := nearest(key, GroupsSettings.model_fields)) is not None:
            raise BadSettings(f"In {where}:\n  `{key}` is unknown. Did you mean `{close}`?")
        if (right := _right_place(key, content[key])) is not None:
            raise BadSettings(f"In {where}:\n  `{key}` does not stand at the top. Write it as `{right}`.")
        if "_" in str(key) and (close := nearest(key, ManagerBlock.model_fields, cutoff=0.85)) is not None:
            raise BadSettings(f"In {where}:\n  `{key}` is unknown. Did you mean `es_manager.{close}`?")
    try:
        return GroupsSettings.model_validate(with_default_groups(ours))
    except ValidationError as error:
        raise BadSettings(f"In {where}:{told_of_settings(error)}") from None


def _right_place(key: str, value: Any) -> str | None:
    """Where a word at the top has a meaning, if it has one somewhere and nowhere else."""
    if key in ("train", "val"):
        is_ours = isinstance(value, Mapping) and bool(ModeBlock.model_fields.keys() & value.keys())
        return f"es_manager.{key}" if is_ours else None
    if key in ModeBlock.model_fields:
        return f"es_manager.train.{key}"
    if isinstance(value, Mapping):
        return None
    if key == "n_groups":
        return "es_manager.train.env_configs.n_groups"
    if key in ManagerBlock.model_fields:
        return f"es_manager.{key}"
    return f"custom_envs.TAG.{key}" if key in TagBlock.model_fields else None


def _check_sense(settings: GroupsSettings) -> None:
    """What single words cannot show."""
    if not settings.custom_envs:
        raise BadSettings("`custom_envs` is empty. Give it a block for each tag: `Small: {env_type: sokoban}`.")
    for mode in ("train", "val"):
        if (block := getattr(settings.es_manager, mode)) is not None:
            _check_groups(block, f"es_manager.{mode}", settings.custom_envs)
    for name in settings.es_manager.sequential_env_types:
        if name not in known_env_types():
            raise BadSettings(
                f"`es_manager.sequential_env_types` has {name!r}, which is no env_type. "
                f"{advice(name, known_env_types())}"
            )
    _check_envs(settings)


def _check_envs(settings: GroupsSettings) -> None:
    """Every tag: a mistake in one that is not used now is found when it is written, not when it is used."""
    modes = (settings.es_manager.train, settings.es_manager.val)
    named = {tag for block in modes if block is not None for tag in block.env_configs.tags}
    for tag, block in settings.custom_envs.items():
        if tag in named or nearest(block.env_type, known_env_types()) is not None:
            read_env_config(tag, block)


def _check_groups(block: ModeBlock, where: str, tags: Mapping[str, TagBlock]) -> None:
    named = block.env_configs
    if len(named.tags) != len(named.n_groups):
        raise BadSettings(
            f"`{where}.env_configs` has {len(named.tags)} tags and {len(named.n_groups)} n_groups. Give one number of "
            "groups for each tag."
        )
    if sum(named.n_groups) != block.env_groups:
        raise BadSettings(
            f"`{where}.env_configs.n_groups` add up to {sum(named.n_groups)}, and `env_groups` is {block.env_groups}. "
            "Make them agree."
        )
    for tag in named.tags:
        if tag not in tags:
            raise BadSettings(
                f"The tag {tag!r} of `{where}.env_configs.tags` is not in `custom_envs`. {advice(tag, tags)}"
            )
