"""Folders that appear, and take the place of others, all at once."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from parallel_envs.rollouts.archives import sync_folder

_HERE = -100  # AT_FDCWD: paths as they stand
_EXCHANGE = 2  # RENAME_EXCHANGE


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


def remove(folder: Path) -> None:
    """Have nothing be there: of a link, only the link is removed."""
    if folder.is_symlink():
        folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """A folder to be filled with files that are on the disk; it becomes `target` at the end of the context.

    What was there before is gone then. If the context raises, or the process dies, `target` is as it was; what was
    drafted beside it is swept away by the next who makes the same folder anew. `target` is no link: see `place_of`.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{target.name}.new")
    remove(draft)
    draft.mkdir()
    try:
        yield draft
        _put_in_place(draft, target)
    finally:
        remove(draft)  # by now the one that was there before, or half a new one


def _put_in_place(draft: Path, target: Path) -> None:
    for folder, _, _ in os.walk(draft):
        sync_folder(Path(folder))
    if not target.exists():
        draft.rename(target)
    elif not _exchanged(draft, target):
        _replaced(draft, target)
    sync_folder(target.parent)


def _exchanged(draft: Path, target: Path) -> bool:
    """Swap the two names in one step, as Linux can; False where that cannot be done."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    return rename is not None and rename(_HERE, os.fsencode(draft), _HERE, os.fsencode(target), _EXCHANGE) == 0


def _replaced(draft: Path, target: Path) -> None:
    """In two steps, between which the old folder stands under another name."""
    old = target.with_name(f".{target.name}.old")
    remove(old)
    target.rename(old)
    draft.rename(target)
    remove(old)
