"""Files and folders that appear all at once, and the one way in which this package opens what it writes.

    write_whole(path, write)          a file: the old one or the new one, never half of one
    with new_folder(place_of(path)):  the same for a folder of files
    write_down(path, write)           a file inside such a new folder
    open_to_append(path)              a log that grows
    with private_folder(path):        for a program that opens its files itself, such as ffmpeg

The target may lie in a folder that others may write to, where a link under a name that can be guessed would lead a
draft into a file of somebody's. So each draft has a random name and is created by this process or not at all
(O_EXCL), links are not followed (O_NOFOLLOW), and the files of a new folder are drafted where nobody else can look.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

__all__ = [
    "discard",
    "is_file",
    "new_folder",
    "open_to_append",
    "place_of",
    "private_folder",
    "remove",
    "short_name",
    "sweep",
    "sync_folder",
    "write_down",
    "write_whole",
]

_HERE = -100  # AT_FDCWD: paths as they stand
_EXCHANGE = 2  # RENAME_EXCHANGE
_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)  # neither is there on every system
_ENDINGS = (".new", ".old")
"""Of names of drafts. Earlier versions wrote `.NAME.new`, `.NAME.PID.new` and `.NAME.old`, which are swept, too."""

# ---- files --------------------------------------------------------------------------------------------------------


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file beside `path`, have the disk hold it, and rename it: readers see the old file or the new one."""
    draft = path.with_name(f".{short_name(path.name, 100)}.{secrets.token_hex(8)}.new")
    try:
        write_down(draft, write)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(path.parent)


def write_down(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Create a file and have the disk hold what is written to it. FileExistsError if anything has its name."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o666), "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def open_to_append(path: Path) -> io.FileIO:
    """Open a file to be added to, without a buffer, and create it if need be. OSError if it is a link."""
    return io.FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _PLAIN, 0o666), "ab")


def is_file(path: str | Path) -> bool:
    """Return whether a file is there. False also for a name that no file can have, such as one of 300 letters."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def short_name(name: str, at_most: int) -> str:
    """Return the name, or a shorter one of its own if it takes more than so many bytes.

    File systems have 255 bytes for a name. What is cut off is told apart by eight digits of its checksum.
    """
    data = name.encode("utf-8", "surrogateescape")
    if len(data) <= at_most:
        return name
    return f"{data[: at_most - 9].decode('utf-8', 'ignore')}-{hashlib.sha256(data).hexdigest()[:8]}"


# ---- folders ------------------------------------------------------------------------------------------------------


def place_of(folder: str | Path) -> Path:
    """Where a folder is, or is to be: behind links, which stay as they are.

    ValueError for one that has no name of its own, such as the one that the process works in: it could not be replaced
    under those who are in it. FileExistsError for a link that leads back to itself.
    """
    if Path(folder).name in ("", ".."):
        raise ValueError(f"{str(folder)!r} names no folder that could be written anew. Give one a name of its own.")
    place = Path(os.path.realpath(folder))
    if place.is_symlink():
        raise FileExistsError(f"{folder} is a link that leads nowhere but back to itself. Remove it.")
    return place


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to be filled with files that are on the disk; it becomes `target` at the end of the context.

    What was there before is gone then. If the context raises, or the process dies, `target` is as it was. A draft that
    a killed process left beside it is removed by the next process that makes the same folder anew, so only one process
    at a time may do so. `target` is no link: see `place_of`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent, of=target.name)
    with private_folder(target) as private:
        draft = private / "new"
        draft.mkdir()
        yield draft
        _put_in_place(draft, target, aside=private / "old")  # what was there before goes with the private folder


@contextlib.contextmanager
def private_folder(beside: Path) -> Iterator[Path]:
    """A folder in the same place, under a random name, that only this user can look into. It is removed at the end."""
    folder = tempfile.mkdtemp(prefix=f".{short_name(beside.name, 100)}.", suffix=".new", dir=beside.parent)
    try:
        yield Path(folder)
    finally:
        remove(Path(folder))


def discard(folder: Path) -> None:
    """Remove a folder, under another name first: one that is half removed must not be taken for a whole one."""
    with private_folder(folder) as private:
        folder.rename(private / "old")


def sweep(folder: Path, of: str | None = None) -> None:
    """Remove the drafts that killed processes left in a folder: all of them, or those of the file or folder `of`."""
    prefix = "." if of is None else f".{short_name(of, 100)}."
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        middle = path.name.removeprefix(prefix).rpartition(".")[0]
        if path.name.startswith(prefix) and path.name.endswith(_ENDINGS) and (of is None or "." not in middle):
            with contextlib.suppress(OSError):  # it may be another user's
                remove(path)


def remove(folder: Path) -> None:
    """Have nothing be there: of a link, only the link is removed."""
    if folder.is_symlink() or folder.is_file():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


def sync_folder(folder: Path) -> None:
    """Have the disk hold the names in a folder."""
    if sys.platform == "win32":
        return  # folders cannot be opened there
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _put_in_place(draft: Path, target: Path, aside: Path) -> None:
    for folder, _, _ in os.walk(draft):
        sync_folder(Path(folder))
    if not target.exists():
        draft.rename(target)
    elif not _exchanged(draft, target):
        target.rename(aside)  # in two steps, between which the old folder stands under another name
        try:
            draft.rename(target)
        except BaseException:
            aside.rename(target)
            raise
    sync_folder(target.parent)


def _exchanged(draft: Path, target: Path) -> bool:
    """Swap the two names in one step, as Linux can; False where that cannot be done."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and rename(_HERE, os.fsencode(draft), _HERE, os.fsencode(target), _EXCHANGE) == 0
