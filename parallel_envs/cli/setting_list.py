"""`parallel-envs train --list`: each setting with type, default and meaning, read from the classes that check it.

A section is a class: its fields, and the text below each. Nothing about a setting is written down here.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer

from parallel_envs.spelling import hint

if TYPE_CHECKING:
    from rich.console import RenderableType

    from parallel_envs.field_texts import Field

_NARROWEST, _WIDEST = 40, 100
_FIRST_COLUMN = 28


def print_settings(names: Sequence[str]) -> None:
    """Print these sections to stdout, or all of them. BadParameter for a name that is no section."""
    from rich.console import Console

    sections = _sections()
    for name in names:
        if name not in sections:
            known = ", ".join(sections)
            raise typer.BadParameter(f"{name!r} is no section of settings. Choose from {known}.{hint(name, sections)}")
    found = Console()
    console = Console(width=min(max(found.width, _NARROWEST), _WIDEST))
    for name in dict.fromkeys(names or sections):
        console.print(_table(name, *sections[name]))


def _sections() -> dict[str, tuple[str, Sequence[Field]]]:
    """By name, where the settings stand in a file, and the settings."""
    from parallel_envs.field_texts import fields_of
    from parallel_envs.learners.agent import configs_by_name
    from parallel_envs.learners.config import EnvSettings, ParallelBlock

    algorithms = {
        name: (f"in the block `algorithm`, with `name: {name}`", fields_of(kind))
        for name, kind in configs_by_name().items()
    }
    return {
        "run": ("at the top of a settings file", tuple(_of_runs())),
        "env": ("at the top of a settings file", fields_of(EnvSettings)),
        "parallel": ("in the block `parallel`", fields_of(ParallelBlock)),
        **algorithms,
    }


def _of_runs() -> Iterator[Field]:
    """The settings of a run but those of its environments; `LoopOptions` says what the fields mean that it shares."""
    import dataclasses

    from parallel_envs.field_texts import fields_of, texts_of
    from parallel_envs.learners.config import EnvSettings, TrainSettings
    from parallel_envs.learners.loops.options import LoopOptions

    shared = texts_of(LoopOptions)
    for field in fields_of(TrainSettings):
        if field.name not in EnvSettings.model_fields:
            yield field if field.text else dataclasses.replace(field, text=shared.get(field.name, ""))


def _table(name: str, place: str, fields: Sequence[Field]) -> RenderableType:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, title=Text(f"{name}: {place}"), title_justify="left", padding=(0, 1, 0, 0))
    table.add_column("setting = default, type", width=_FIRST_COLUMN, overflow="fold")
    table.add_column("meaning", overflow="fold")
    for field in fields:
        table.add_row(Text(_told(field)), Text(field.text))
    return table


def _told(field: Field) -> str:
    from parallel_envs.field_texts import Field, type_text

    default = " (required)" if field.default is Field.required else f" = {_in_yaml(field.default)}"
    return f"{field.name}{default}\n  {type_text(field.hint, none='null')}"


def _in_yaml(value: Any) -> str:
    return json.dumps(list(value) if isinstance(value, tuple) else value)
