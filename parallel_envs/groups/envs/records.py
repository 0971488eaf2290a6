"""Files of data: JSON Lines, or JSON with one array or one object of entries. Errors name the file and the line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from parallel_envs.errors import ParallelEnvsError

_DECODER = json.JSONDecoder()
_SPACE = " \t\n\r"


class DataFileError(ParallelEnvsError, ValueError):
    """A file of data cannot be used. `path` names it; `line` is where, or None where that is nowhere in particular."""

    def __init__(self, text: str, *, path: str, line: int | None = None) -> None:
        super().__init__(text)
        self.path = path
        self.line = line

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.args[0], self.path, self.line)


def _rebuild(text: str, path: str, line: int | None) -> DataFileError:
    return DataFileError(text, path=path, line=line)


def fault(path: str, line: int | None, what: str) -> DataFileError:
    where = path if line is None else f"{path}, line {line}"
    return DataFileError(f"{where}: {what}", path=path, line=line)


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
            raise self.fault(f"`{name}` is {_brief(found)}, where a text is wanted.")
        return found

    def field(self, name: str) -> Any:
        if not isinstance(self.value, dict):
            raise self.fault(f"{_brief(self.value)} is not an object with fields. Write {{...}}.")
        if name not in self.value:
            raise self.fault(f"the field `{name}` is missing. There are {', '.join(sorted(self.value)) or 'none'}.")
        return self.value[name]

    def texts(self, name: str) -> tuple[str, ...]:
        """The texts in a field that must hold a list of them."""
        found = self.field(name)
        if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
            raise self.fault(f"`{name}` is {_brief(found)}, where a list of texts is wanted.")
        return tuple(found)


def read_entries(path: str, most: int | None = None) -> Iterator[Entry]:
    """The entries of a file in their order, the first `most` of them.

    Each line is an entry if the name ends in `.jsonl`, or if the first of several lines is an object; else the file is
    one JSON value, whose items are.
    """
    try:
        content = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise fault(path, None, f"cannot be read ({error}). Give the path of a file of JSON or JSON Lines.") from error
    in_lines = path.endswith(".jsonl") or _begins_with_a_line(content)
    yield from islice(_lines(path, content) if in_lines else _items(_Cursor(path, content)), most)


def _begins_with_a_line(content: str) -> bool:
    first, _, others = content.partition("\n")
    if not (first.startswith("{") and others.strip()):
        return False
    try:
        return isinstance(json.loads(first), dict)
    except (ValueError, RecursionError):
        return False


def _lines(path: str, content: str) -> Iterator[Entry]:
    for line, words in enumerate(content.split("\n"), start=1):
        if words.strip():
            try:
                yield Entry(json.loads(words), path, line)
            except (ValueError, RecursionError) as error:
                raise fault(path, line, f"this is not JSON ({error}).") from error


class _Cursor:
    """A place in a text that goes forward only, so that the lines are counted once."""

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

    def peek(self) -> str:
        """The next character that is not space; empty at the end."""
        while self.content[self.place : self.place + 1] and self.content[self.place] in _SPACE:
            self.place += 1
        return self.content[self.place : self.place + 1]

    def take(self, wanted: str) -> str:
        found = self.peek()
        if not found or found not in wanted:
            raise fault(self.path, self.line, f"{found or 'the end'!r} stands where one of {wanted!r} is wanted.")
        self.place += 1
        return found

    def value(self) -> Any:
        self.peek()
        try:
            value, self.place = _DECODER.raw_decode(self.content, self.place)
        except json.JSONDecodeError as error:
            raise fault(self.path, error.lineno, f"this is not JSON ({error.msg}, column {error.colno}).") from error
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets without end
            raise fault(self.path, self.line, f"this cannot be read ({error}).") from error
        return value


def _items(cursor: _Cursor) -> Iterator[Entry]:
    opened = cursor.take("[{")
    closing = "]" if opened == "[" else "}"
    if cursor.peek() == closing:
        return
    while True:
        yield _item(cursor, keyed=opened == "{")
        if cursor.take("," + closing) == closing:
            break
    if cursor.peek():
        raise fault(cursor.path, cursor.line, f"more stands behind the last {closing!r}.")


def _item(cursor: _Cursor, keyed: bool) -> Entry:
    cursor.peek()
    line = cursor.line
    key = None
    if keyed:
        key = cursor.value()
        if not isinstance(key, str):
            raise fault(cursor.path, line, f"{_brief(key)} is no key: keys are texts.")
        cursor.take(":")
    return Entry(cursor.value(), cursor.path, line, key)


def _brief(value: Any) -> str:
    words = json.dumps(value)
    return words if len(words) <= 60 else f"{words[:57]}..."


# ---- which file, and in what state ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Edition:
    """A file as it is now. Equal editions hold the same, so that what was read of one need not be read again."""

    path: str
    modified: int
    size: int


def edition(path: str) -> Edition:
    try:
        stat = Path(path).stat()
    except OSError as error:
        raise fault(path, None, f"cannot be read ({error}). Give the path of a file that is there.") from error
    return Edition(path, stat.st_mtime_ns, stat.st_size)


def shipped(name: str) -> str:
    """The path of a file that comes with the package."""
    return str(Path(__file__).parent / "data" / name)
