"""Files of settings: what is in them, and what keeps them from being read."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_envs.yaml_files import content_of, settings_in


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
