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


def read_entries(path: str, most: int | None = None, fields: Sequence[str] = ()) -> Iterator[Entry]:
    """Yield the entries of a file in their order, the first `most` of them.

    If the name ends in `.parquet`, the file is a table of entries, of which only `fields` are read if it has all of
    them. Otherwise each line is an entry if the name ends in `.jsonl`, or if the lines look like entries (see
    `is_in_lines`); else the file is one JSON value, whose items are the entries.
    """
    if path.endswith(".parquet"):
        yield from islice(_rows(path, fields), most)
        return
    content = _content(path)
    yield from islice(_lines(path, content) if _by_line(path, content) else _items(path, content, lists=None), most)


def read_lists(path: str, what: str) -> Iterator[Entry]:
    """Yield the entries of a file whose object has a list of entries under each key, each with the key of its list.

    `what` names the entries in errors.
    """
    content = _content(path)
    yield from _lines(path, content) if _by_line(path, content) else _items(path, content, lists=what)


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


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        what = f"cannot be read ({error}). Give the path of a file of JSON or JSON Lines."
        raise data_file_error(path, None, what) from error


def _by_line(path: str, content: str) -> bool:
    return path.endswith(".jsonl") or is_in_lines(content)


def _lines(path: str, content: str) -> Iterator[Entry]:
    for line, words in _nonblank_lines(content):
        try:
            yield Entry(json.loads(words), path, line)
        except json.JSONDecodeError as error:
            raise data_file_error(path, line, _not_json(error)) from error
        except (ValueError, RecursionError) as error:  # as in `_Cursor.value`
            raise data_file_error(path, line, f"this cannot be read ({error}).") from error


def _items(path: str, content: str, lists: str | None) -> Iterator[Entry]:
    """Yield the items of a JSON array or object. With `lists`, each value of the object is a list of items."""
    cursor = _Cursor(path, content)

    def item(key: str | None) -> Entry:
        cursor.peek()
        line = cursor.line
        return Entry(cursor.value(), path, line, key)

    for key in cursor.pieces():
        if key is None or lists is None:
            yield item(key)
            continue
        if cursor.peek() != "[":
            raise cursor.error(f"this is not a list of {lists}.")
        for _ in cursor.pieces():
            yield item(key)
    if cursor.peek():
        raise cursor.error(f"more stands behind the last {content[: cursor.place].rstrip()[-1]!r}.")


def _shortened(value: Any) -> str:
    """Return a value as JSON, cut off if it is long."""
    words = json.dumps(value)
    return words if len(words) <= 60 else f"{words[:57]}..."


def _not_json(error: json.JSONDecodeError) -> str:
    return f"this is not JSON ({error.msg}, column {error.colno})."


# ---- JSON piece by piece --------------------------------------------------------------------------------------------

_DECODER = json.JSONDecoder()
_SPACE = " \t\n\r"


class _Cursor:
    """A place in a JSON text that only goes forward, so that lines are counted once."""

    def __init__(self, path: str, content: str) -> None:
        self.path = path
        self.content = content
        self.place = 0
        self._line, self._counted = 1, 0

    @property
    def line(self) -> int:
        self._line += self.content.count("\n", self._counted, self.place)
        self._counted = self.place
        return self._line

    def error(self, what: str) -> DataFileError:
        return data_file_error(self.path, self.line, what)

    def peek(self) -> str:
        """Return the next character that is not space; empty at the end."""
        while self.content[self.place : self.place + 1] and self.content[self.place] in _SPACE:
            self.place += 1
        return self.content[self.place : self.place + 1]

    def take(self, wanted: str) -> str:
        """Move past the next character, which must be one of `wanted`."""
        found = self.peek()
        if not found or found not in wanted:
            raise self.error(f"{found or 'the end'!r} stands where one of {wanted!r} is wanted.")
        self.place += 1
        return found

    def value(self) -> Any:
        """Return the next value."""
        self.peek()
        try:
            value, self.place = _DECODER.raw_decode(self.content, self.place)
        except json.JSONDecodeError as error:
            raise data_file_error(self.path, error.lineno, _not_json(error)) from error
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets without end
            raise self.error(f"this cannot be read ({error}).") from error
        return value

    def pieces(self) -> Iterator[str | None]:
        """Go through an array or an object, stop before each value, and yield its key, or None in an array.

        The caller must read the value before it asks for the next key.
        """
        opened = self.take("[{")
        closing = "]" if opened == "[" else "}"
        if self.peek() == closing:
            self.take(closing)
            return
        while True:
            self.peek()
            key: str | None = None
            if opened == "{":
                line, key = self.line, self.value()
                if not isinstance(key, str):
                    raise data_file_error(self.path, line, f"{_shortened(key)} is no key: keys are texts.")
                self.take(":")
            yield key
            if self.take("," + closing) == closing:
                return


def _nonblank_lines(content: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that are not blank, with their numbers. Files are large: lines are copied one at a time."""
    start, number = 0, 0
    while start <= len(content):
        end, number = content.find("\n", start), number + 1
        end = len(content) if end < 0 else end
        words = content[start:end]
        if words.strip():
            yield number, words
        start = end + 1


def is_in_lines(content: str) -> bool:
    """Return whether each line is a value, rather than the whole text.

    The first line must be an object that has fields of its own, or that has other lines beside it. If the first line is
    broken, either the second line must not continue it, or the last line must be an object, with which no object that
    begins above can end.
    """
    lines = (words.strip() for _, words in _nonblank_lines(content))
    first, second = next(lines, ""), next(lines, "")
    if not first.startswith("{") or first == "{":
        return False
    if not second:
        return _has_fields(first)
    if _is_object(first) or (_is_object(second) and _breaks_off(first, second)):
        return True
    end = len(content.rstrip(_SPACE))
    return _is_object(content[content.rfind("\n", 0, end) + 1 : end])


def _has_fields(words: str) -> bool:
    """Return whether an object is itself an entry, rather than an object of entries or of lists of entries."""
    cursor = _Cursor("", words)
    try:
        for _ in cursor.pieces():
            match cursor.value():
                case dict() | [dict(), *_]:
                    return False
                case list():
                    continue
            return True
    except DataFileError:
        pass
    return False


def _breaks_off(first: str, second: str) -> bool:
    """Return whether a value that begins in one line cannot continue in the next."""
    try:
        json.loads(f"{first}\n{second}")
    except json.JSONDecodeError as error:
        return error.pos <= len(first) + 1
    except (ValueError, RecursionError):
        pass
    return False


def _is_object(words: str) -> bool:
    try:
        return isinstance(json.loads(words), dict)
    except (ValueError, RecursionError):
        return False
