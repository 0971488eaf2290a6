"""Files of arrays and a JSON header, without pickle, that are whole or not there."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from parallel_envs.files import write_whole

Array = npt.NDArray[Any]

_HEADER = "header.json"  # has a dot, so it is the name of no array
_DAMAGED = (
    *(OSError, EOFError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RuntimeError),
    *(MemoryError, SyntaxError, zipfile.BadZipFile, zlib.error),
)
"""What zipfile, NumPy and JSON raise for bytes that are not theirs."""


def write_archive(path: str | Path, header: dict[str, Any], arrays: dict[str, Array]) -> None:
    """An npz file of these arrays, with a header that JSON can say. It takes the place of what was there at once."""
    write_whole(Path(path), archive_writer(header, arrays))


def archive_writer(header: dict[str, Any], arrays: dict[str, Array]) -> Callable[[IO[bytes]], None]:
    """A function that writes such a file into one that is open."""
    text = np.frombuffer(json.dumps(header).encode(), np.uint8)
    entries: dict[str, Any] = {_HEADER: text, **arrays}
    return lambda file: np.savez(file, **entries)


def read_archive(path: str | Path) -> tuple[dict[str, Any], dict[str, Array]]:
    """Header and arrays. Raises ValueError, naming the file, if it is damaged or was not written by `write_archive`."""
    try:
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            entries = {name: file[name] for name in file.files}
        return dict(json.loads(entries.pop(_HEADER).tobytes())), entries
    except FileNotFoundError:
        raise
    except _DAMAGED as error:
        raise ValueError(f"{path} is damaged, or is not a file of stored arrays: {error}") from error
