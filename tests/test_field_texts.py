"""What fields mean, read from below them: in `help`, and in `parallel-envs train --list`."""

from __future__ import annotations

import dataclasses
import pydoc
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel
from typer.testing import CliRunner

from parallel_envs.field_texts import Field, documents_fields, fields_of, texts_of, type_text


@dataclasses.dataclass(frozen=True)
class Plain:
    """Plain words."""

    first: int
    """The first
    of all."""
    second: tuple[int, ...] = (1,)
    third: dict[str, Any] = dataclasses.field(default_factory=dict)
    """The third."""


@documents_fields
@dataclasses.dataclass(frozen=True)
class Child(Plain):
    """A child's words."""

    second: tuple[int, ...] = (2,)
    """Now told."""


class Model(BaseModel):
    """A model."""

    first: Annotated[int, "more"]
    """Told."""
    second: list[int] = []


def test_texts_are_those_below_the_fields_with_those_that_are_inherited() -> None:
    assert texts_of(Plain) == {"first": "The first of all.", "third": "The third."}
    assert texts_of(Child) == {"first": "The first of all.", "second": "Now told.", "third": "The third."}
    assert texts_of(int) == {}
    made = dataclasses.make_dataclass("Made", [("one", int, 3)])  # without source
    assert [(one.name, one.text) for one in fields_of(made)] == [("one", "")]


def test_fields_have_types_and_defaults() -> None:
    first, second, third = fields_of(Child)
    assert (first.default, second.default, third.default) == (Field.required, (2,), {})
    assert (first.hint, second.text) == (int, "Now told.")
    assert [(one.name, one.default, one.text) for one in fields_of(Model)] == [
        ("first", Field.required, "Told."),
        ("second", [], ""),
    ]


def test_types_in_few_words() -> None:
    words: dict[Any, str] = {
        int: "int",
        float | None: "float or None",
        Annotated[int, 3]: "int",
        Literal["a", "b", "c"]: '"a", "b" or "c"',
        Literal[True, False, "free"]: 'True, False or "free"',
        tuple[int, ...]: "list of int",
        dict[str, Any]: "dict",
        Literal["a"] | Callable[[int], int]: '"a" or function',
    }
    assert {hint: type_text(hint) for hint in words} == words


def test_help_shows_the_text_of_each_field() -> None:
    told = pydoc.plain(pydoc.render_doc(Child))
    for line in (
        "A child's words.",
        "first (int): The first of all.",
        "second (list of int, by default (2,)): Now told.",
    ):
        assert line in told
    assert Child.__doc__ is Child.__doc__  # put together once


def test_help_of_the_configs_shows_the_text_of_each_field() -> None:
    pytest.importorskip("torch")
    from parallel_envs import DQNConfig, LoopOptions, PPOConfig, SACConfig

    for kind in (PPOConfig, DQNConfig, SACConfig, LoopOptions):
        told = " ".join(pydoc.plain(pydoc.render_doc(kind)).replace("|", " ").split())
        for field in dataclasses.fields(kind):
            assert re.search(rf" {field.name} \([^:]*\): \S", told), f"{kind.__name__}.{field.name} is not told"


def listed(*names: str, columns: int = 70, exit_code: int = 0) -> str:
    from parallel_envs import cli

    done = CliRunner().invoke(cli.app, ["train", "--list", *names], env={"COLUMNS": str(columns)})
    assert done.exit_code == exit_code, done.output
    return done.output


@pytest.mark.parametrize("columns", [70, 200])
def test_all_settings_are_listed_with_default_type_and_meaning(columns: int) -> None:
    pytest.importorskip("torch")
    from parallel_envs.cli.train import _sections
    from parallel_envs.learners.agent import configs_by_name
    from parallel_envs.learners.config import ParallelBlock, TrainSettings

    told, sections = listed(columns=columns), _sections()
    assert max(map(len, told.splitlines())) <= columns
    assert list(sections) == ["run", "env", "parallel", *configs_by_name()]
    shown = {field.name for name in ("run", "env") for field in sections[name][1]}
    assert shown == TrainSettings.model_fields.keys()
    assert {field.name for field in sections["parallel"][1]} == ParallelBlock.model_fields.keys()
    for _, fields in sections.values():
        for field in fields:
            assert field.text, f"{field.name} has no text below it"
            assert f" {field.name} " in told


def test_the_settings_of_one_section_that_there_is() -> None:
    pytest.importorskip("torch")
    told = listed("ppo")
    assert "clip_range = 0.2" in told
    assert '"mlp", "cnn" or "gru"' in told
    assert "buffer_size" not in told
    assert "buffer_size = 50000" in listed("dqn")
    told = listed("poo", columns=200, exit_code=2)
    assert "'poo' is no section of settings. Choose from run, env, parallel, ppo, dqn, sac. Did you mean 'ppo'?" in told
