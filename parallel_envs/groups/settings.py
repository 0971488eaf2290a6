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

Without `n_groups` the `env_groups` are split evenly among the tags. A file may have Hydra's list `defaults` and
interpolations (see `compositions`), so RAGEN's `base.yaml` beside its `envs.yaml` can be given as it is.

Other names at the top belong to other parts of a larger file, and are left alone, unless they are words of these
blocks in the wrong place, and such as nobody else has: `tags` and `mode` are everybody's. All of `custom_envs` is
checked, whichever mode is asked for. But a tag that neither mode names may have an `env_type` that nobody knows, and
that is like none that is known, and fields that its environment does not have: a file for many experiments may have
types that another script registers, and what other versions of an environment take.

A configuration whose `es_manager` names no groups, and that has no `custom_envs`, gets those of `defaults.py`: 8 groups
of 16 rooms of Sokoban to train in.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from parallel_envs.engine.pool import user_stacklevel
from parallel_envs.groups.blocks import GroupsSettings, ManagerBlock, ModeBlock, TagBlock
from parallel_envs.groups.compositions import composed, resolved
from parallel_envs.groups.configs import is_unknown_type, read_env_config, unknown_fields
from parallel_envs.groups.defaults import with_default_groups
from parallel_envs.groups.failures import BadSettings
from parallel_envs.groups.mistakes import told_of_settings
from parallel_envs.groups.registry import known_env_types
from parallel_envs.spelling import advice, nearest

_log = logging.getLogger(__name__)
__all__ = ["GroupsSettings", "read_env_config", "read_settings"]


def read_settings(given: Any) -> GroupsSettings:
    """Settings from a mapping, from the path of a YAML file, or as they are. Raises `BadSettings`."""
    if isinstance(given, GroupsSettings):
        settings = given
    elif isinstance(given, Mapping):
        settings = _checked(given, "the configuration")
    elif isinstance(given, str | Path):
        content, not_there = composed(Path(given), GroupsSettings.model_fields)
        settings = _checked(content, str(given), not_there)
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


def _read(content: Mapping[str, Any], *path: str) -> Any:
    """Return what stands at a path of names as plain dicts and lists, with its interpolations resolved."""
    value: Any = content
    try:
        for part in path:
            value = value[part]
        value = _plain(value)
    except Exception as error:  # OmegaConf's: an interpolation that leads nowhere, a value that is still to be given
        raise BadSettings(f"`{'.'.join(path)}` cannot be read: {type(error).__name__}: {error}") from error
    return resolved(content, value, path) if isinstance(content, dict) else value  # OmegaConf resolves its own


def _checked(content: Mapping[str, Any], where: str, not_there: Sequence[str] = ()) -> GroupsSettings:
    """Return the settings in a configuration. `not_there`: files that it names in its `defaults` and that are missing.

    Nothing but our own blocks is read: OmegaConf's may hold values elsewhere that cannot be.
    """
    for key in content.keys() - GroupsSettings.model_fields.keys():
        close = nearest(key, GroupsSettings.model_fields)
        if close in content:  # RAGEN has a `ctx_manager` beside `es_manager`
            close = nearest(key, GroupsSettings.model_fields, cutoff=0.9)
        if close is not None:
            raise BadSettings(f"In {where}:\n  `{key}` is unknown. Did you mean `{close}`?")
        if (right := _right_place(key, content)) is not None:
            raise BadSettings(f"In {where}:\n  `{key}` does not stand at the top. Write it as `{right}`.")
        if "_" in str(key) and (close := nearest(key, ManagerBlock.model_fields, cutoff=0.85)) is not None:
            raise BadSettings(f"In {where}:\n  `{key}` is unknown. Did you mean `es_manager.{close}`?")
    try:
        ours = {key: _read(content, key) for key in ("es_manager", "seed") if key in content}
        if "custom_envs" in content:
            ours["custom_envs"] = _read_tags(content, _named_tags(ours.get("es_manager")))
        return GroupsSettings.model_validate(with_default_groups(ours))
    except ValidationError as error:
        text = f"In {where}:{told_of_settings(error)}"
    except BadSettings as error:
        text = f"In {where}:\n  {error}"
    files = ", ".join(f"{name}.yaml" for name in not_there)
    raise BadSettings(text + (f"\n  Its `defaults` name files that are not beside it: {files}." if files else ""))


def _named_tags(manager: Any) -> set[str] | None:
    """Return the tags that `train` and `val` name. None: these blocks are not as they should be, and are told of."""
    tags: set[str] = set()
    for mode in ("train", "val"):
        try:
            if (block := manager.get(mode)) is not None:
                tags.update(block["env_configs"]["tags"])
        except (AttributeError, KeyError, TypeError):
            return None
    return tags


def _read_tags(content: Mapping[str, Any], named: set[str] | None) -> Any:
    """Return the block `custom_envs` without tags that no mode names and that cannot be read or have more fields."""
    if named is None or not isinstance(content["custom_envs"], Mapping):
        return _read(content, "custom_envs")
    blocks = {}
    for tag in content["custom_envs"]:
        try:
            block = _read(content, "custom_envs", tag)
        except BadSettings as error:
            if tag in named:
                raise
            _log.debug("custom_envs.%s is left out, as neither train nor val names it: %s", tag, error)
            continue
        if tag in named or not isinstance(block, dict) or block.keys() <= TagBlock.model_fields.keys():
            blocks[tag] = block
    return blocks


def _right_place(key: str, content: Mapping[str, Any]) -> str | None:
    """Where a word at the top has a meaning, if it has one somewhere and nowhere else."""
    try:
        value = content[key]
    except Exception:  # noqa: BLE001  # OmegaConf's, and nobody's business: it stands in a block of somebody else's
        return None
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
    if (penalty := settings.es_manager.format_penalty) > 0:
        warnings.warn(
            f"es_manager.format_penalty={penalty} is positive. It is added, so turns without a valid action are "
            f"rewarded. Give {-penalty} to punish them.",
            UserWarning,
            stacklevel=user_stacklevel(),
        )


def _check_envs(settings: GroupsSettings) -> None:
    """Every tag: a mistake in one that is not used now is found when it is written, not when it is used."""
    modes = (settings.es_manager.train, settings.es_manager.val)
    named = {tag for block in modes if block is not None for tag in block.env_configs.tags}
    for tag, block in settings.custom_envs.items():
        if tag in named or not (is_unknown_type(block) or unknown_fields(block)):
            read_env_config(tag, block)


def _check_groups(block: ModeBlock, where: str, tags: Mapping[str, TagBlock]) -> None:
    named = block.env_configs
    if named.n_groups is None and (not named.tags or block.env_groups % len(named.tags)):
        raise BadSettings(
            f"`{where}` has {block.env_groups} env_groups and {len(named.tags)} tags, which do not split evenly. Give "
            "`env_configs.n_groups`, a number of groups for each tag."
        )
    if named.n_groups is not None and len(named.tags) != len(named.n_groups):
        raise BadSettings(
            f"`{where}.env_configs` has {len(named.tags)} tags and {len(named.n_groups)} n_groups. Give one number of "
            "groups for each tag."
        )
    if sum(block.groups_of_tags) != block.env_groups:
        raise BadSettings(
            f"`{where}.env_configs.n_groups` add up to {sum(block.groups_of_tags)}, and `env_groups` is "
            f"{block.env_groups}. Make them agree."
        )
    for tag in named.tags:
        if tag not in tags:
            raise BadSettings(
                f"The tag {tag!r} of `{where}.env_configs.tags` is not in `custom_envs`. {advice(tag, tags)}"
            )
