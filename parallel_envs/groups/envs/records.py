"""Data files: their entries, their versions, the split into train and val, and errors that name file and line.

A file is JSON Lines, JSON with one array or one object of entries, or Parquet. Parquet is read with `pyarrow`, which
the extra `data` installs; the line of an entry is then the number of its row.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from parallel_envs.errors import ParallelEnvsError
from parallel_envs.extras import explained

Item = TypeVar("Item")

_PLACE = re.compile(r"(?P<path>.*?), line (?P<line>\d+): |(?P<whole>.*?): ", re.DOTALL)
"""Beginning of every text that `data_file_error` writes."""


class DataFileError(ParallelEnvsError, ValueError):
    """A data file that cannot be used. `path` names it; `line` is the place, or None if it concerns no line.

    If an environment raises it, in a worker or in the caller, it is an `EnvError` too.
    """

    def __init__(self, text: str, *, path: str = "", line: int | None = None) -> None:
        super().__init__(text)
        self.path = path
        self.line = line

    def retell(self, text: str) -> None:
        """Take path and line from the text, which is all that arrives of an error that a worker raised."""
        if found := _PLACE.match(text):
            self.path = found["path"] or found["whole"]
            self.line = None if found["line"] is None else int(found["line"])

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.args[0],), {"path": self.path, "line": self.line}


def data_file_error(path: str, line: int | None, what: str) -> DataFileError:
    where = path if line is None else f"{path}, line {line}"
    return DataFileError(f"{where}: {what}", path=path, line=line)


# ---- versions and parts of files ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FileVersion:
    """A file in its present state. Equal versions have equal content, so they are read only once."""

    path: str
    modified: int
    size: int


def file_version(path: str) -> FileVersion:
    try:
        stat = Path(path).stat()
    except OSError as error:
        raise data_file_error(
            path, None, f"cannot be read ({error}). Give the path of a file that is there."
        ) from error
    return FileVersion(path, stat.st_mtime_ns, stat.st_size)


def included_file(name: str) -> str:
    """Return the path of a data file of this package."""
    return str(Path(__file__).parent / "data" / name)


def train_or_val_items(
    items: Sequence[Item], key: Callable[[Item], str], val_share: float, *, training: bool
) -> tuple[Item, ...]:
    """Return the items for training, or those for validation, in their order; the same in every process.

    The keys are sorted by their hash; the first `val_share` of them, and at least one of two, are for validation. Items
    with the same key stay together. With a share of 0 or a single key, both get all items.
    """

    def hashed(one: str) -> bytes:
        encoded = one.encode(errors="surrogatepass")  # JSON can hold half a character
        return hashlib.blake2b(encoded, digest_size=8).digest() + encoded

    keys = sorted({key(item) for item in items}, key=hashed)
    if val_share == 0.0 or len(keys) == 1:
        return tuple(items)
    chosen = set(keys[: min(max(round(val_share * len(keys)), 1), len(keys) - 1)])
    return tuple(item for item in items if (key(item) in chosen) != training)


# ---- entries --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a file: its value, its key in an object, and its place."""

    value: Any
    path: str
    line: int
    key: str | None = None

    def error(self, what: str) -> DataFileError:
        return data_file_error(self.path, self.line, what)

    def has(self, name: str) -> bool:
        """Return whether a field has a value. Tables write NaN for a missing value."""
        found = self.value.get(name) if isinstance(self.value, dict) else None
        return found is not None and found == found

    def field(self, name: str) -> Any:
        if not isinstance(self.value, dict):
            raise self.error(f"{_shortened(self.value)} is not an object with fields. Write {{...}}.")
        if name not in self.value:
            raise self.error(f"the field `{name}` is missing. There are {', '.join(sorted(self.value)) or 'none'}.")
        return self.value[name]

    def text(self, name: str) -> str:
        """Return the text in a field. Raise DataFileError if it is not a text."""
        found = self.field(name)
        if not isinstance(found, str):
            raise self.error(f"`{name}` is {_shortened(found)}, where a text is wanted.")
        return found

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the texts in a field. Raise DataFileError if it is not a list of texts."""
        found = self.field(name)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise self.error(f"`{name}` is {_shortened(found)}, where a list of texts is wanted.")
        return tuple(found)


def read_entries(
    path: str, most: int | None = None, fields: Sequence[str] = (), lists: str | None = None
) -> Iterator[Entry]:
    """Yield the entries of a file in their order, the first `most` of them.

    A file `.parquet` is a table of entries, of which only `fields` are read if it has all of them. In a file `.jsonl`,
    or if the lines look like entries (see `_is_in_lines`), each line is an entry. Else the file is one JSON array or
    object of entries, or with `lists`, their name in errors, an object of lists of entries.
    """
    if path.endswith(".parquet"):
        entries = _rows(path, fields)
    else:
        try:
            content = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            what = f"cannot be read ({error}). Give the path of a file of JSON or JSON Lines."
            raise data_file_error(path, None, what) from error
        by_line = path.endswith(".jsonl") or _is_in_lines(content)
        entries = _lines(path, content) if by_line else _items(path, content, lists)
    yield from islice(entries, most)


def _rows(path: str, fields: Sequence[str]) -> Iterator[Entry]:
    """Yield the rows of a Parquet file, reading a batch at a time."""
    with explained(f"The data file {path}"):
        import pyarrow as pa
        from pyarrow import parquet
    try:
        with parquet.ParquetFile(path) as table:
            known = table.schema_arrow.names
            columns = list(fields) if fields and set(fields) <= set(known) else None
            rows = itertools.count(1)
            for batch in table.iter_batches(columns=columns):
                yield from (Entry(value, path, row) for value, row in zip(batch.to_pylist(), rows, strict=False))
    except (OSError, pa.ArrowException) as error:
        raise data_file_error(path, None, f"cannot be read ({error}). Give the path of a Parquet file.") from error


def _nonblank_lines(content: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers. Files are large: lines are copied one at a time."""
    for number, found in enumerate(_LINE.finditer(content), start=1):
        if words := found[0].strip():
            yield number, words


def _is_in_lines(content: str) -> bool:
    """Return whether each line is an entry, rather than the whole text a value.

    The first line must be an object, and have other lines beside it or a field that holds neither an entry nor entries.
    """
    lines = (words for _, words in _nonblank_lines(content))
    first, second = next(lines, ""), next(lines, "")
    try:
        value = json.loads(first)
    except (ValueError, RecursionError):
        return False
    entries = value.values() if isinstance(value, dict) else ()
    return isinstance(value, dict) and (
        second != ""
        or any(not isinstance(item, dict) for one in entries for item in (one if isinstance(one, list) else [one]))
    )


def _lines(path: str, content: str) -> Iterator[Entry]:
    for line, words in _nonblank_lines(content):
        try:
            yield Entry(json.loads(words), path, line)
        except (ValueError, RecursionError) as error:
            raise _unreadable(path, line, error) from error


def _unreadable(path: str, line: int, error: Exception) -> DataFileError:
    """Return the error for JSON that is broken, or has numbers of thousands of digits or brackets without end."""
    if isinstance(error, json.JSONDecodeError):
        return data_file_error(path, line, f"this is not JSON ({error.msg}, column {error.colno}).")
    return data_file_error(path, line, f"this cannot be read ({error}).")


def _shortened(value: Any) -> str:
    """Return a value as JSON, cut off if it is long."""
    words = json.dumps(value)
    return words if len(words) <= 60 else f"{words[:57]}..."


# ---- JSON piece by piece --------------------------------------------------------------------------------------------

_DECODER = json.JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")
_LINE = re.compile(r"[^\n]*\n?")


def _items(path: str, content: str, lists: str | None) -> Iterator[Entry]:
    """Yield the items of a JSON array or object, of which no more is read than is needed."""
    cursor = _Cursor(path, content)
    for key in cursor.pieces():
        if key is None or lists is None:
            yield cursor.entry(key)
            continue
        if cursor.peek() != "[":
            raise cursor.error(f"this is not a list of {lists}.")
        for _ in cursor.pieces():
            yield cursor.entry(key)
    if cursor.peek():
        raise cursor.error(f"more stands behind the last {content[: cursor.place].rstrip()[-1]!r}.")


class _Cursor:
    """A place in a JSON text that only goes forward, so that lines are counted once."""

    def __init__(self, path: str, content: str) -> None:
        self._path, self._content = path, content
        self.place = 0
        self._line, self._counted = 1, 0

    def error(self, what: str) -> DataFileError:
        return data_file_error(self._path, self._line_here(), what)

    def _line_here(self) -> int:
        self._line += self._content.count("\n", self._counted, self.place)
        self._counted = self.place
        return self._line

    def peek(self) -> str:
        """Return the next character that is not space; empty at the end."""
        found = _SPACE.match(self._content, self.place)
        self.place = found.end() if found else self.place
        return self._content[self.place : self.place + 1]

    def _take(self, wanted: str) -> str:
        """Move past the next character, which must be one of `wanted`."""
        found = self.peek()
        if not found or found not in wanted:
            raise self.error(f"{found or 'the end'!r} stands where one of {wanted!r} is wanted.")
        self.place += 1
        return found

    def entry(self, key: str | None) -> Entry:
        """Return the next value, and its line."""
        self.peek()
        line = self._line_here()
        try:
            value, self.place = _DECODER.raw_decode(self._content, self.place)
        except (ValueError, RecursionError) as error:
            raise _unreadable(self._path, getattr(error, "lineno", line), error) from error
        return Entry(value, self._path, line, key)

    def pieces(self) -> Iterator[str | None]:
        """Go through an array or an object, stop before each value, and yield its key, or None in an array."""
        opened = self._take("[{")
        closing = "]" if opened == "[" else "}"
        if self.peek() == closing:
            self._take(closing)
            return
        while True:
            key: str | None = None
            if opened == "{":
                found = self.entry(None)
                key = found.value
                if not isinstance(key, str):
                    raise found.error(f"{_shortened(key)} is no key: keys are texts.")
                self._take(":")
            yield key
            if self._take("," + closing) == closing:
                return
