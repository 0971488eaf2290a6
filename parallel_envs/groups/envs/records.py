"""Data files: their entries, their versions, the split into train and val, and errors that name file and line.

A file is JSON Lines (`.jsonl`), JSON with one array or one object of entries, or Parquet. Parquet is read with
`pyarrow`, which the extra `data` installs; the line of an entry is then the number of its row.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
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


def train_val_split(
    items: Sequence[Item], key: Callable[[Item], str], val_share: float
) -> tuple[Sequence[Item], Sequence[Item]]:
    """Return the items for training and those for validation, in their order; the same in every process.

    The keys are sorted by their hash; the first `val_share` of them, and at least one of two, are for validation. Items
    with the same key stay together. With a share of 0 or a single key, both get all items.
    """

    def hashed(one: str) -> bytes:
        encoded = one.encode(errors="surrogatepass")  # JSON can hold half a character
        return hashlib.blake2b(encoded, digest_size=8).digest() + encoded

    keys = sorted({key(item) for item in items}, key=hashed)
    if val_share == 0.0 or len(keys) == 1:
        return items, items
    chosen = set(keys[: min(max(round(val_share * len(keys)), 1), len(keys) - 1)])
    return [item for item in items if key(item) not in chosen], [item for item in items if key(item) in chosen]


def split_file(
    path: str, read: Callable[..., Iterable[Item]], key: Callable[[Item], str], val_share: float, *options: Any
) -> tuple[Sequence[Item], Sequence[Item]]:
    """Return what `read(path, *options)` yields, split. A process reads and splits each version of a file once."""
    return _split_version(file_version(path), read, key, val_share, options)


@lru_cache(maxsize=16)
def _split_version(
    source: FileVersion, read: Any, key: Callable[[Any], str], val_share: float, options: tuple[Any, ...]
) -> tuple[Sequence[Any], Sequence[Any]]:
    items = tuple(read(source.path, *options))
    if not items:
        raise data_file_error(source.path, None, "there are no entries that can be used. Give another file.")
    return train_val_split(items, key, val_share)


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

    def text_or_empty(self, name: str) -> str:
        return self.text(name) if self.has(name) else ""

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

    A file `.parquet` is a table of entries, of which only `fields` are read if it has all of them. In a file `.jsonl`
    each line is an entry. Any other file is one JSON array or object of entries, or with `lists`, their name in errors,
    an object of lists of entries.
    """
    if path.endswith(".parquet"):
        entries = _rows(path, fields)
    else:
        try:
            content = Path(path).read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            what = f"cannot be read ({error}). Give the path of a file of JSON or JSON Lines."
            raise data_file_error(path, None, what) from error
        entries = _lines(path, content) if path.endswith(".jsonl") else _items(path, content, lists)
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


def _lines(path: str, content: str) -> Iterator[Entry]:
    for line, found in enumerate(_LINE.finditer(content), start=1):  # files are large: one line at a time is copied
        if words := found[0].strip():
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
    if found := cursor.peek():
        raise cursor.error(f"{found!r} stands behind the end. A file with an entry in each line is named `.jsonl`.")


class _Cursor:
    """A place in a JSON text that only goes forward, so that lines are counted once."""

    def __init__(self, path: str, content: str) -> None:
        self._path, self._content = path, content
        self._place, self._counted, self._line = 0, 0, 1

    def peek(self) -> str:
        """Move to the next character that is not space, and return it; empty at the end."""
        self._place = _SPACE.match(self._content, self._place).end()  # type: ignore[union-attr]  # it always matches
        self._line += self._content.count("\n", self._counted, self._place)
        self._counted = self._place
        return self._content[self._place : self._place + 1]

    def error(self, what: str) -> DataFileError:
        return data_file_error(self._path, self._line, what)

    def entry(self, key: str | None) -> Entry:
        """Return the next value, and its line."""
        self.peek()
        try:
            value, self._place = _DECODER.raw_decode(self._content, self._place)
        except (ValueError, RecursionError) as error:
            raise _unreadable(self._path, getattr(error, "lineno", self._line), error) from error
        return Entry(value, self._path, self._line, key)

    def _take(self, wanted: str) -> str:
        """Move past the next character, which must be one of `wanted`."""
        if (found := self.peek()) == "" or found not in wanted:
            raise self.error(f"{found or 'the end'!r} stands where one of {wanted!r} is wanted.")
        self._place += 1
        return found

    def pieces(self) -> Iterator[str | None]:
        """Stop before each value of an array or an object, and yield its key, or None in an array."""
        is_object = self._take("[{") == "{"
        closing = "}" if is_object else "]"
        found = "" if self.peek() != closing else self._take(closing)
        while found != closing:
            key = self.entry(None) if is_object else None
            if key is not None:
                if not isinstance(key.value, str):
                    raise key.error(f"{_shortened(key.value)} is no key: keys are texts.")
                self._take(":")
            yield None if key is None else key.value
            found = self._take("," + closing)
