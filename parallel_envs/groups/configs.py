"""What a tag's environments are made with, checked word by word."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import PydanticUserError, ValidationError

from parallel_envs.groups.blocks import TagBlock
from parallel_envs.groups.failures import BadSettings
from parallel_envs.groups.mistakes import told_of_config
from parallel_envs.groups.registry import EnvType, env_type_named, known_env_types
from parallel_envs.groups.scalars import maker_of
from parallel_envs.spelling import advice, nearest


def read_env_config(tag: str, block: TagBlock) -> tuple[EnvType, Any]:
    """The type of a tag's environments, and the config that its factory is to be given."""
    where = f"custom_envs.{tag}"
    try:
        kind = env_type_named(block.env_type)
    except BadSettings as error:
        raise BadSettings(f"In `{where}`: {error}") from None
    given = block.env_config or {}
    if kind.config is None:
        return kind, given
    for name in unknown_fields(block):
        known = _fields_of(kind)
        meant = advice(name, known) if known else f"{kind.name!r} takes nothing. Leave it out."
        raise BadSettings(f"`{where}.env_config.{name}` is unknown. {meant}")
    return kind, _made(kind.config, given, f"{where}.env_config")


def is_unknown_type(block: TagBlock) -> bool:
    """Return whether nobody knows a tag's `env_type`, and it is like none that is known."""
    return block.env_type not in known_env_types() and nearest(block.env_type, known_env_types()) is None


def unknown_fields(block: TagBlock) -> list[str]:
    """Return the names in a tag's `env_config` that its environments do not take."""
    if block.env_type not in known_env_types() or (kind := env_type_named(block.env_type)).config is None:
        return []
    return [name for name in block.env_config or {} if name not in _fields_of(kind)]


def _fields_of(kind: EnvType) -> set[str]:
    return {field.name for field in dataclasses.fields(kind.config) if field.init} if kind.config else set()


def _made(kind: type, given: Mapping[str, Any], where: str) -> Any:
    try:
        return _validator(kind)(given)
    except ValidationError as error:
        raise BadSettings(f"In `{where}`:{told_of_config(error)}") from None
    except (ValueError, TypeError) as error:  # the config's own check of itself
        raise BadSettings(f"In `{where}`: {error}") from None


def _validator(kind: type) -> Callable[[Mapping[str, Any]], Any]:
    """Makes a config, with its fields checked against their types where these can be."""
    try:
        return maker_of(kind)
    except (PydanticUserError, NameError):  # it has a field of a type of the user's own
        return lambda given: kind(**given)
