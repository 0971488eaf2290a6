"""Files of settings: what is in them, and what keeps them from being read."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_envs.yaml_files import content_of, settings_in, value_of


class Mistake(Exception):
    """What the reader wants raised."""


def test_settings_are_what_the_file_says(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("seed: 3\nenv: {name: x}\n")
    assert settings_in(tmp_path / "a.yaml", Mistake) == {"seed": 3, "env": {"name": "x"}}
    assert content_of(str(tmp_path / "a.yaml"), Mistake)["seed"] == 3


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
def test_what_is_wrong_is_the_readers_mistake_and_names_the_file(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
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


def test_what_is_merged_may_be_said_otherwise(tmp_path: Path) -> None:
    """That is what merging is for: it is no name given twice."""
    (tmp_path / "a.yaml").write_text("base: &base {x: 1, y: 2}\nown: {<<: *base, x: 3}\n")
    assert settings_in(tmp_path / "a.yaml", Mistake)["own"] == {"x": 3, "y": 2}


@pytest.mark.parametrize("date", ["2024-01-01", "2024-01-01 10:30:00", "2024-13-45", "2024-01-01T00:00:00Z"])
def test_a_date_is_text(date: str, tmp_path: Path) -> None:
    """So it is when the settings have been written down as JSON or YAML, and are read again."""
    (tmp_path / "a.yaml").write_text(f"day: {date}\n")
    assert settings_in(tmp_path / "a.yaml", Mistake) == {"day": date}


def test_aliases_are_counted_as_what_they_stand_for(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    lines = ["a: &a [1,1,1,1,1,1,1,1,1,1]"]
    lines += [f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]" for before, name in ("ab", "bc", "cd", "de", "ef")]
    path.write_text("\n".join(lines[:4]))
    assert len(settings_in(path, Mistake)["d"]) == 10
    path.write_text("\n".join(lines))
    with pytest.raises(Mistake, match="more than 100,000 values"):
        settings_in(path, Mistake)


def test_fifty_blocks_within_one_another_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: " + "[" * 48 + "1" + "]" * 48)
    assert settings_in(tmp_path / "a.yaml", Mistake)


@pytest.mark.parametrize("name", ["n" * 300 + ".yaml", "a\0b.yaml"])
def test_names_that_no_file_has_are_the_readers_mistake(name: str, tmp_path: Path) -> None:
    with pytest.raises(Mistake, match="cannot be read"):
        content_of(tmp_path / name, Mistake)


@pytest.mark.parametrize("left_out", ["  ...", "...", "  ...   # and so on"])
def test_a_line_of_three_dots_says_nothing(left_out: str) -> None:
    text = f"env:\n  name: a\ntrain:\n  steps: 3\n{left_out}\nseed: 1\n"
    assert value_of(text, "it", Mistake) == {"env": {"name": "a"}, "train": {"steps": 3}, "seed": 1}


def test_three_dots_stay_where_they_are_a_text() -> None:
    text = "prompt: |\n  first\n  ...\n  last\nlist:\n  - ...\n"
    assert value_of(text, "it", Mistake) == {"prompt": "first\n...\nlast\n", "list": ["..."]}


def test_a_mistake_beside_three_dots_is_told_where_it_stands() -> None:
    with pytest.raises(Mistake, match=r"(?s)it is not YAML.*line 5"):
        value_of("a:\n  b: 2\n  ...\nc: [\n", "it", Mistake)
