"""Files of data: JSON Lines, JSON with one array or one object of entries, or Parquet. Errors name file and line.

Parquet is read with `pyarrow`, which the extra `data` installs; the line of an entry is the number of its row.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from parallel_envs.extras import explained
from parallel_envs.groups.envs.faults import DataFileError, fault
from parallel_envs.groups.envs.json_text import Cursor, brief, is_in_lines, lines_of, not_json


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a file: its value, the key it has in an object, and where it stands."""

    value: Any
    path: str
    line: int
    key: str | None = None

    def fault(self, what: str) -> DataFileError:
        return fault(self.path, self.line, what)

    def has(self, name: str) -> bool:
        """Whether there is anything in a field. What tables without a value there write is nothing: NaN."""
        found = self.value.get(name) if isinstance(self.value, dict) else None
        return found is not None and found == found

    def text(self, name: str) -> str:
        """The text in a field that must hold one."""
        found = self.field(name)
        if not isinstance(found, str):
            raise self.fault(f"`{name}` is {brief(found)}, where a text is wanted.")
        return found

    def field(self, name: str) -> Any:
        if not isinstance(self.value, dict):
            raise self.fault(f"{brief(self.value)} is not an object with fields. Write {{...}}.")
        if name not in self.value:
            raise self.fault(f"the field `{name}` is missing. There are {', '.join(sorted(self.value)) or 'none'}.")
        return self.value[name]

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts in a field that must hold a list of them."""
        found = self.field(name)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise self.fault(f"`{name}` is {brief(found)}, where a list of texts is wanted.")
        return tuple(found)


def read_entries(path: str, most: int | None = None, fields: Sequence[str] = ()) -> Iterator[Entry]:
    """The entries of a file in their order, the first `most` of them.

    A file whose name ends in `.parquet` is a table of entries, of which only `fields` are read if it has all of them.
    Of others each line is an entry if the name ends in `.jsonl`, or if the first line looks like one (see
    `is_in_lines`); else the file is one JSON value, whose items are.
    """
    if path.endswith(".parquet"):
        yield from islice(_rows(path, fields), most)
        return
    content = _content(path)
    yield from islice(_lines(path, content) if _by_line(path, content) else _items(path, content, lists=None), most)


def read_lists(path: str, what: str) -> Iterator[Entry]:
    """The same of a file whose object has a list of entries under each key: all of these, each with its list's key.

    `what` they are, for errors.
    """
    content = _content(path)
    yield from _lines(path, content) if _by_line(path, content) else _items(path, content, lists=what)


def _rows(path: str, fields: Sequence[str]) -> Iterator[Entry]:
    """The rows of a Parquet file, a batch at a time."""
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
        raise fault(path, None, f"cannot be read ({error}). Give the path of a Parquet file.") from error


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise fault(path, None, f"cannot be read ({error}). Give the path of a file of JSON or JSON Lines.") from error


def _by_line(path: str, content: str) -> bool:
    return path.endswith(".jsonl") or is_in_lines(content)


def _lines(path: str, content: str) -> Iterator[Entry]:
    for line, words in lines_of(content):
        try:
            yield Entry(json.loads(words), path, line)
        except json.JSONDecodeError as error:
            raise fault(path, line, not_json(error)) from error
        except (ValueError, RecursionError) as error:  # as in `Cursor.value`
            raise fault(path, line, f"this cannot be read ({error}).") from error


def _items(path: str, content: str, lists: str | None) -> Iterator[Entry]:
    cursor = Cursor(path, content)
    for key in cursor.pieces():
        if key is None or lists is None:
            yield _item(cursor, key)
        else:
            yield from _listed(cursor, key, lists)
    if cursor.peek():
        raise cursor.fault(f"more stands behind the last {content[: cursor.place].rstrip()[-1]!r}.")


def _listed(cursor: Cursor, key: str, what: str) -> Iterator[Entry]:
    if cursor.peek() != "[":
        raise cursor.fault(f"this is not a list of {what}.")
    for _ in cursor.pieces():
        yield _item(cursor, key)


def _item(cursor: Cursor, key: str | None) -> Entry:
    cursor.peek()
    line = cursor.line
    return Entry(cursor.value(), cursor.path, line, key)
