"""Files of settings: what is in them, and what keeps them from being read."""

from __future__ import annotations

import dataclasses
import pydoc
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from parallel_envs.errors import EnvError, ParallelEnvsError
from parallel_envs.groups import BadSettings as GroupsBadSettings
from parallel_envs.settings import BadSettings, content_of, documents_fields, fields_of, settings_in, texts_of


class Mistake(Exception):
    """What the reader wants raised."""


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("seed: 3\nenv: {name: x}\n", {"seed": 3, "env": {"name": "x"}}),
        ("base: &base {x: 1, y: 2}\nown: {<<: *base, x: 3}\n", {"base": {"x": 1, "y": 2}, "own": {"x": 3, "y": 2}}),
        *((f"day: {day}\n", {"day": day}) for day in ("2024-01-01", "2024-01-01 10:30:00", "2024-13-45")),
        ("day: 2024-01-01T00:00:00Z\n", {"day": "2024-01-01T00:00:00Z"}),
        ("prompt: |\n  first\n  ...\n  last\nlist:\n  - ...\n", {"prompt": "first\n...\nlast\n", "list": ["..."]}),
    ],
)
def test_settings_are_what_the_file_says(text: str, settings: Any, tmp_path: Path) -> None:
    """A date is text, as it is when it was written down as JSON; what is merged is no name given twice."""
    (tmp_path / "a.yaml").write_text(text)
    assert settings_in(tmp_path / "a.yaml", Mistake) == content_of(str(tmp_path / "a.yaml"), Mistake) == settings


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "cannot be read"),
        (b"\xff\xfe\xfa", "cannot be read"),
        (b"a: [", "is not YAML"),
        (b"- 1", "holds list"),
        (b"a: 1\nb: 2\na: 1", r"is not YAML: `a` stands twice[^;]*line 1"),
        (b"a: {b: 1, b: 2}", "`b` stands twice"),
        (b"[" * 10_000, "is not YAML: more than 50 blocks within one another"),
        (b"- " * 10_000, "is not YAML: more than 50 blocks within one another"),
        (b"&a [*a]", "is not YAML: a block that contains itself"),
        (b"a: &a {b: {c: *a}}", "is not YAML: a block that contains itself"),
        (b"a: &a {<<: *a}", "is not YAML: a block that contains itself"),
        (b"a: " + b"9" * 5_000, "is not YAML: Exceeds the limit"),
        (b"a: 0b_", "is not YAML: invalid literal"),
        (b"a: !!timestamp 2024-01-01", "the tag '[^']*timestamp' is not allowed"),
        (b"a: !!binary aGk=", "the tag '[^']*binary' is not allowed"),
        (b"a: !!set {b: null}", "the tag '[^']*set' is not allowed"),
        (b'a: "\\ud800"', "half a character"),
        (b"1: 2", "a setting called 1, which is not a word"),
        (b"a: b\0", "holds str|not allowed|unacceptable"),
    ],
)
def test_what_is_wrong_is_told_with_the_file(tmp_path: Path, content: bytes | None, said: str) -> None:
    path = tmp_path / "a.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Mistake, match=said) as raised:
        settings_in(path, Mistake)
    assert str(path) in str(raised.value)


def test_a_file_beside_it_may_have_been_meant(tmp_path: Path) -> None:
    (tmp_path / "cartpole.yaml").touch()
    with pytest.raises(
        Mistake, match=r"cartpol\.yaml cannot be read: No such file or directory\. Did you mean '.*pole\."
    ):
        content_of(tmp_path / "cartpol.yaml", Mistake)
    with pytest.raises(Mistake, match=r"No such file or directory\.$"):
        content_of(tmp_path / "nowhere" / "cartpole.yaml", Mistake)
    with pytest.raises(Mistake, match=r"No such file or directory\.$"):  # all in a folder begin alike
        content_of(tmp_path / "spread.yaml", Mistake)
    with pytest.raises(Mistake, match=r"Is a directory\.$"):
        content_of(tmp_path, Mistake)
    for name in ("n" * 300 + ".yaml", "a\0b.yaml"):  # that no file has
        with pytest.raises(Mistake, match="cannot be read"):
            content_of(tmp_path / name, Mistake)


def test_aliases_are_counted_as_what_they_stand_for(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    lines = ["a: &a [1,1,1,1,1,1,1,1,1,1]"]
    lines += [f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]" for before, name in ("ab", "bc", "cd", "de", "ef")]
    path.write_text("\n".join(lines[:4]))
    assert len(settings_in(path, Mistake)["d"]) == 10
    path.write_text("\n".join(lines))
    with pytest.raises(Mistake, match="more than 100,000 values"):
        settings_in(path, Mistake)
    path.write_text("a: " + "[" * 48 + "1" + "]" * 48)
    assert settings_in(path, Mistake)  # fifty blocks within one another are read


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


def test_texts_are_those_below_the_fields_or_inherited_and_help_shows_them() -> None:
    assert texts_of(Plain) == {"first": "The first of all.", "third": "The third."}
    assert texts_of(Child) == {"first": "The first of all.", "second": "Now told.", "third": "The third."}
    assert texts_of(int) == {}
    made = dataclasses.make_dataclass("Made", [("one", int, 3)])  # without source
    assert [(one.name, one.text) for one in fields_of(made)] == [("one", "")]
    told = pydoc.plain(pydoc.render_doc(Child))
    second = "second (list of int, by default (2,)): Now told."
    assert all(line in told for line in ("A child's words.", "first (int): The first of all.", second))
    assert Child.__doc__ is Child.__doc__  # put together once


def listed(*names: str, columns: int = 70, exit_code: int = 0) -> str:
    from parallel_envs import cli

    done = CliRunner().invoke(cli.app, ["train", "--list", *names], env={"COLUMNS": str(columns)})
    assert done.exit_code == exit_code, done.output
    return done.output


@pytest.mark.parametrize("columns", [70])
def test_all_settings_are_listed_with_default_type_and_meaning(columns: int) -> None:
    pytest.importorskip("torch")
    from parallel_envs.cli.train import _sections
    from parallel_envs.learners.agent import configs_by_name
    from parallel_envs.learners.config import ParallelBlock, TrainSettings

    told, sections = listed(columns=columns), _sections()
    assert max(map(len, told.splitlines())) <= columns
    assert list(sections) == ["run", "env", "parallel", "wandb", "mlflow", "trackio", *configs_by_name()]
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
    assert "'poo' is no section of settings. Choose from run, env, parallel, wandb, mlflow, trackio, ppo, " in told
    assert "Did you mean 'ppo'?" in told


def test_bad_settings_are_an_error_of_the_package_also_from_a_worker() -> None:
    assert GroupsBadSettings is BadSettings
    assert issubclass(BadSettings, ParallelEnvsError)
    text = {"type_name": "parallel_envs.settings.BadSettings", "remote_message": "`seed` is missing."}
    error = EnvError.retold("The environment raised.", attributes={}, **text)
    assert isinstance(error, BadSettings)
    assert isinstance(error, ValueError)
    assert str(error) == "The environment raised."
