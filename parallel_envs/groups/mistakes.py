"""The mistakes in a configuration as pydantic has them, in words: where, what, and what it may have meant."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from parallel_envs.groups.blocks import (
    SEED_FORMS,
    EnvConfigs,
    GroupsSettings,
    ManagerBlock,
    ModeBlock,
    SeedBlock,
    TagBlock,
)
from parallel_envs.spelling import advice


def told_of_settings(error: ValidationError) -> str:
    """A line for each mistake in the blocks."""
    return "".join(f"\n  {_told(mistake)}" for mistake in error.errors())


def told_of_config(error: ValidationError) -> str:
    """The same for what an environment is made with."""
    return "".join(f"\n  {_of_config(mistake)}" for mistake in error.errors())


def _told(mistake: Mapping[str, Any]) -> str:
    path = [part for part in mistake["loc"] if part not in SEED_FORMS]
    name = ".".join(map(str, path))
    if mistake["type"] == "extra_forbidden":
        if (place := _right_place(str(path[-1]), "val" if "val" in path[1:2] else "train")) is not None:
            return f"`{name}` is unknown. {place}"
        return f"`{name}` is unknown. {advice(str(path[-1]), _fields_beside(path))}{_for_env(path)}"
    if mistake["type"] == "missing":
        return f"`{name}` is missing."
    if mistake["type"] == "literal_error":
        return _unknown_word(name, mistake)
    return f"`{name}: {mistake['input']!r}`: {_sentence(mistake['msg'])}"


def _unknown_word(name: str, mistake: Mapping[str, Any]) -> str:
    known = re.findall("'(.*?)'", mistake["ctx"]["expected"])
    return f"`{name}: {mistake['input']!r}` is unknown. {advice(str(mistake['input']), known)}"


def _right_place(word: str, mode: str) -> str | None:
    """Where a word stands that is one of the configuration's, and was found in some other block."""
    places: list[tuple[type[BaseModel], str]] = [
        (ManagerBlock, "es_manager."),
        (ModeBlock, f"es_manager.{mode}."),
        (EnvConfigs, f"es_manager.{mode}.env_configs."),
        (TagBlock, "custom_envs.TAG."),
        (GroupsSettings, ""),
    ]
    if word == "mode":
        return "It is an argument: EnvStateManager(config, mode='val')."
    found = [f"`{place}{word}`" for block, place in places if word in block.model_fields]
    return f"It stands elsewhere: write it as {' or '.join(found)}." if found else None


def _for_env(path: Sequence[Any]) -> str:
    """Where words stand that an environment's type has, in the place of which the last one of `path` may be."""
    if path[0] != "custom_envs":
        return ""
    return f" What the environment is made with stands in `{'.'.join(map(str, path[:-1]))}.env_config`."


def _sentence(message: str) -> str:
    said = re.sub("^Value error, | or instance of [A-Za-z]+", "", message)
    return said if said.endswith((".", "?")) else f"{said}."


def _fields_beside(path: Sequence[Any]) -> list[str]:
    """The names that could stand where the last one of `path` does."""
    match path:
        case ("es_manager", _):
            kind: type[BaseModel] = ManagerBlock
        case ("es_manager", _, _):
            kind = ModeBlock
        case ("es_manager", _, "env_configs", _):
            kind = EnvConfigs
        case ("custom_envs", _, _):
            kind = TagBlock
        case _:
            kind = SeedBlock
    return list(kind.model_fields)


def _of_config(mistake: Mapping[str, Any]) -> str:
    name = ".".join(map(str, mistake["loc"]))
    if mistake["type"] == "missing":
        return f"`{name}` is missing."
    if mistake["type"] == "literal_error":
        return _unknown_word(name, mistake)
    said = _sentence(mistake["msg"])
    if mistake["type"] == "dict_type" and isinstance(mistake["input"], list):
        said += f" Did you mean `{dict(enumerate(mistake['input']))}`?"
    return f"`{name}: {mistake['input']!r}`: {said}" if name else said
