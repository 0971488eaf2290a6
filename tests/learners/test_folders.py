"""Folders that appear all at once: where they are, and what is left beside them."""

from __future__ import annotations

from pathlib import Path

import pytest

from parallel_envs.learners import folders
from parallel_envs.learners.folders import new_folder, place_of


def write(folder: Path, text: str) -> None:
    with new_folder(place_of(folder)) as draft:
        (draft / "file").write_text(text)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.fixture(params=["exchanged", "one after the other"])
def _ways(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "exchanged":
        monkeypatch.setattr(folders, "_exchanged", lambda *_: False)


@pytest.mark.usefixtures("_ways")
@pytest.mark.parametrize("is_there", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written_again_and_again(is_there: bool, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real", tmp_path / "link"
    link.symlink_to(real)
    if is_there:
        write(real, "0")
    for text in ("1", "2", "3"):
        write(link, text)
        assert (real / "file").read_text() == text
        assert link.is_symlink()
        assert (names_in(tmp_path), names_in(real.parent)) == ({"elsewhere", "link"}, {"real"})


@pytest.mark.parametrize("left_over", [".here.new", ".here.old"])
def test_a_link_that_stands_in_the_way_is_removed_and_not_followed(
    left_over: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An earlier version left such links."""
    monkeypatch.setattr(folders, "_exchanged", lambda *_: False)
    other = tmp_path / "other"
    for folder in (other, tmp_path / "here"):
        write(folder, "0")
    (tmp_path / left_over).symlink_to(other)
    write(tmp_path / "here", "1")
    assert names_in(tmp_path) == {"here", "other"}
    assert names_in(other) == {"file"}


@pytest.mark.parametrize("folder", ["", ".", "..", "/", "a/.."])
def test_folders_without_a_name_of_their_own_are_refused(folder: str) -> None:
    with pytest.raises(ValueError, match="names no folder that could be written anew"):
        place_of(folder)


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(FileExistsError, match="leads nowhere but back to itself"):
        place_of(tmp_path / "link")
