"""Files and folders that appear complete or not at all. This package opens every file that it writes through here.

    write_whole(path, write)          a file: readers see the old one or the new one, never a part
    write_text, write_json            the same for text, and for values as JSON
    with new_folder(place_of(path)):  the same for a folder of files
    write_down(path, write)           a file inside such a new folder
    open_to_append(path)              a log that grows
    with private_folder(path):        for a program that opens its own files, such as ffmpeg

Other users may be able to write to the target's folder. If a draft had a name that they can guess, they could put a
link there, and this process would overwrite the file behind the link. So each draft has a random name and must not
exist before (O_EXCL), links are not followed (O_NOFOLLOW), and new folders are drafted where only this user can look.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

__all__ = [
    "discard",
    "is_file",
    "locked",
    "new_folder",
    "open_to_append",
    "place_of",
    "private_folder",
    "short_name",
    "sweep",
    "unwritable",
    "write_down",
    "write_json",
    "write_text",
    "write_whole",
]

_PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)  # some systems lack one of them
_ENDINGS = (".new", ".old")
"""How names of drafts end. `sweep` also removes those of earlier versions: `.NAME[.PID].new` and `.NAME.old`."""

# ---- files --------------------------------------------------------------------------------------------------------


def write_whole(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file beside `path`, sync it to disk, and rename it: readers see the old file or the new one."""
    draft = path.with_name(f".{short_name(path.name, 100)}.{secrets.token_hex(8)}.new")
    try:
        write_down(draft, write)
        draft.replace(path)
    except OSError as error:
        if error.filename == str(draft):  # a name that means nothing to a user
            error.filename = str(path)
        raise
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(path.parent)


def write_text(path: str | Path, text: str) -> None:
    """Write a file of text in UTF-8, completely or not at all."""
    write_whole(Path(path), lambda file: file.write(text.encode()))


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, completely or not at all."""
    write_text(path, json.dumps(content, indent=2))


def write_down(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Create a file, write it and sync it to disk. FileExistsError if the name is taken."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _PLAIN, 0o666), "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())


def open_to_append(path: Path) -> io.FileIO:
    """Open a file for appending, without a buffer, and create it if it is missing. OSError if it is a link."""
    return io.FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | _PLAIN, 0o666), "ab")


def is_file(path: str | Path) -> bool:
    """Return whether a file exists. False also for a name that no file can have, such as one of 300 letters."""
    try:
        return Path(path).is_file()
    except (OSError, ValueError):
        return False


def unwritable(path: Path) -> str:
    """Return the reason why a file cannot be written, or an empty text if none can be seen beforehand."""
    folder = path.parent
    try:
        if path.is_dir():
            return "it is a folder"
        if not folder.is_dir():
            return f"there is no folder {folder}"
        allowed = os.access(folder, os.W_OK) and (not path.exists() or os.access(path, os.W_OK))
    except (OSError, ValueError) as error:  # a name that no file can have
        return str(error)
    return "" if allowed else "you have no permission"


def short_name(name: str, at_most: int) -> str:
    """Return the name, or a shorter name that stands for it if it takes more than `at_most` bytes.

    File systems allow 255 bytes for a name. A shortened name ends with eight digits of the whole name's checksum, so
    two long names that begin alike stay different.
    """
    data = name.encode("utf-8", "surrogateescape")
    if len(data) <= at_most:
        return name
    return f"{data[: at_most - 9].decode('utf-8', 'ignore')}-{hashlib.sha256(data).hexdigest()[:8]}"


# ---- folders ------------------------------------------------------------------------------------------------------


def place_of(folder: str | Path) -> Path:
    """Return the path where a folder is, or will be created, with links resolved. The links stay as they are.

    ValueError for a path without a name, such as "." or "..": the folder behind it may be in use and could not be
    replaced. FileExistsError for a link that leads back to itself.
    """
    if Path(folder).name in ("", ".."):
        raise ValueError(f"{str(folder)!r} names no folder that could be written anew. Give one a name of its own.")
    place = Path(os.path.realpath(folder))
    if place.is_symlink():
        raise FileExistsError(f"{folder} is a link that leads nowhere but back to itself. Remove it.")
    return place


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield an empty folder to write files into (see `write_down`). It replaces `target` at the end of the context.

    If the context raises, or the process dies, `target` stays as it was. A killed process may leave a draft beside
    `target`: the next process that writes the same folder removes it, so only one process at a time may write one
    folder. `target` must not be a link: see `place_of`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    sweep(target.parent, of=target.name)
    with private_folder(target) as private:
        draft = private / "new"
        draft.mkdir()
        yield draft
        for folder, _, _ in os.walk(draft):
            _sync_folder(Path(folder))
        if not target.exists():
            draft.rename(target)
        elif not _exchanged(draft, target):
            target.rename(private / "old")  # in two steps: between them, no folder has the target's name
            try:
                draft.rename(target)
            except BaseException:
                (private / "old").rename(target)
                raise
        _sync_folder(target.parent)  # the old folder is removed with the private one


def _exchanged(draft: Path, target: Path) -> bool:
    """Swap the two names in one step and return True. Return False where the system cannot do that."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(draft), here, os.fsencode(target), exchange) == 0


@contextlib.contextmanager
def private_folder(beside: Path) -> Iterator[Path]:
    """Yield a new folder next to `beside`, under a random name, for this user only. It is removed at the end."""
    folder = Path(tempfile.mkdtemp(prefix=f".{short_name(beside.name, 100)}.", suffix=".new", dir=beside.parent))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Lock a folder for the context, as far as the system has locks. BlockingIOError if another process has it."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):  # the system has no locks
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            stack.callback(os.close, descriptor)  # which releases the lock, as the end of the process does
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise
            except OSError:  # the file system has no locks
                pass
        yield


def discard(folder: Path) -> None:
    """Rename a folder, then remove it: a half-removed folder is never seen under its name."""
    with private_folder(folder) as private:
        folder.rename(private / "old")


def sweep(folder: Path, of: str | None = None) -> None:
    """Remove the drafts that killed processes left in a folder: all, or only the drafts of the file or folder `of`."""
    prefix = "." if of is None else f".{short_name(of, 100)}."
    for path in list(folder.iterdir()) if folder.is_dir() else ():
        middle = path.name.removeprefix(prefix).rpartition(".")[0]
        if path.name.startswith(prefix) and path.name.endswith(_ENDINGS) and (of is None or "." not in middle):
            if path.is_symlink() or path.is_file():  # what a link leads to stays
                with contextlib.suppress(OSError):  # the draft may belong to another user
                    path.unlink()
            else:
                shutil.rmtree(path, ignore_errors=True)


def _sync_folder(folder: Path) -> None:
    """Sync to disk which names a folder contains."""
    if sys.platform == "win32":
        return  # Windows cannot open folders
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
