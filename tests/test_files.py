"""Files and folders that appear all at once: where they are, what is left beside them, and no link leads elsewhere."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from parallel_envs import files
from parallel_envs.files import (
    discard,
    new_folder,
    open_to_append,
    place_of,
    private_folder,
    short_name,
    sweep,
    write_down,
    write_text,
)  # fmt: skip


def write(folder: Path, text: str) -> None:
    with new_folder(place_of(folder)) as draft:
        (draft / "file").write_text(text)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("exchanges", [True, False])
def test_a_link_stays_and_what_it_leads_to_is_written_again_and_again(
    exchanges: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not exchanges:
        monkeypatch.setattr(files, "_exchanged", lambda *_: False)
    (tmp_path / "elsewhere").mkdir()
    real, link = tmp_path / "elsewhere" / "real", tmp_path / "link"
    link.symlink_to(real)
    for text in ("1", "2", "3"):
        write(link, text)
        assert (real / "file").read_text() == text
        assert link.is_symlink()
        assert (names_in(tmp_path), names_in(real.parent)) == ({"elsewhere", "link"}, {"real"})


def test_folders_without_a_name_of_their_own_are_refused(tmp_path: Path) -> None:
    for folder in ("", ".", "..", "/", "a/.."):
        with pytest.raises(ValueError, match="names no folder that could be written anew"):
            place_of(folder)
    (tmp_path / "link").symlink_to("link")
    with pytest.raises(FileExistsError, match="leads nowhere but back to itself"):
        place_of(tmp_path / "link")


def test_drafts_of_files_have_names_that_cannot_be_guessed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, real = list[Path](), os.open

    def noted(path: str | Path, flags: int, *rest: int) -> int:
        if flags & os.O_WRONLY:
            opened.append(Path(path))
            assert flags & os.O_NOFOLLOW
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", noted)
    for number in range(20):
        write_text(tmp_path / "results.json", str(number))
    assert len(set(opened)) == 20
    assert all(len(path.name) > len(".results.json..new") + 12 for path in opened)
    assert (tmp_path / "results.json").read_text() == "19"
    assert names_in(tmp_path) == {"results.json"}


def test_no_link_is_followed_and_no_others_place_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    monkeypatch.setattr(secrets, "token_hex", lambda _: "guessed")
    for name in (".results.json.guessed.new", "link", "metrics.jsonl"):
        (tmp_path / name).symlink_to(victim)
    with pytest.raises(FileExistsError):  # though the name of the draft was guessed
        write_text(tmp_path / "results.json", "{}")
    for taken in (tmp_path / "link", victim):
        with pytest.raises(FileExistsError):
            write_down(taken, lambda file: file.write(b"mine"))
    with pytest.raises(OSError, match=r"metrics\.jsonl"):
        open_to_append(tmp_path / "metrics.jsonl")
    assert victim.read_text() == "precious"
    for _ in range(2):
        with open_to_append(tmp_path / "log") as log:
            log.write(b"line\n")
    assert (tmp_path / "log").read_text() == "line\nline\n"


def test_nobody_else_can_look_into_a_draft(tmp_path: Path) -> None:
    with new_folder(tmp_path / "folder") as draft:
        assert draft.parent.stat().st_mode & 0o777 == 0o700
        assert draft.parent.parent == tmp_path
    before = os.umask(0o022)
    os.umask(before)
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o777 & ~before
    with private_folder(tmp_path / "film.mp4") as private:
        assert private.stat().st_mode & 0o777 == 0o700
    assert names_in(tmp_path) == {"folder"}


def test_only_drafts_are_swept(tmp_path: Path) -> None:
    """A run folder may be a stranger's, and its `checkpoints` a link to anywhere."""
    kept = {".ssh", ".bashrc", "folder", "x.new"}
    for name in (*kept, ".9.new", ".9.old", ".9.k3d_9.new", ".a.77.new", ".a.b.77.new"):
        (tmp_path / name).mkdir()
    sweep(tmp_path, of="a")
    assert names_in(tmp_path) == kept | {".9.new", ".9.old", ".9.k3d_9.new", ".a.b.77.new"}
    sweep(tmp_path)
    assert names_in(tmp_path) == kept


def test_what_cannot_be_put_in_place_leaves_the_old_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_exchanged", lambda *_: False)
    write(tmp_path / "here", "old")
    real = Path.rename

    def full(path: Path, target: Path) -> Path:
        if path.name == "new":
            raise OSError(28, "No space left on device")
        return real(path, target)

    monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "here", "new")
    assert (tmp_path / "here" / "file").read_text() == "old"
    assert names_in(tmp_path) == {"here"}
    discard(tmp_path / "here")
    assert names_in(tmp_path) == set()


def test_names_may_be_as_long_as_the_file_system_takes_and_shortened_ones_differ(tmp_path: Path) -> None:
    for name in ("n" * 255, "ä" * 127):
        write_text(tmp_path / name, "1")
        (tmp_path / name).unlink()
        write(tmp_path / name, "2")
        assert names_in(tmp_path) == {name}
        discard(tmp_path / name)
    assert short_name("agent", 100) == "agent"
    names = {short_name("ä" * 300 + end, 100) for end in ("", "a", "b")}
    assert len(names) == 3
    assert all(len(name.encode()) <= 100 for name in names)
