"""JSON that is read piece by piece, with the line of each piece; and whether a text is JSON Lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from parallel_envs.groups.envs.faults import DataFileError, fault

_DECODER = json.JSONDecoder()
_SPACE = " \t\n\r"

Line = tuple[int, str]
"""A line that is not blank, and its number."""


class Cursor:
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

    def fault(self, what: str) -> DataFileError:
        return fault(self.path, self.line, what)

    def peek(self) -> str:
        """The next character that is not space; empty at the end."""
        while self.content[self.place : self.place + 1] and self.content[self.place] in _SPACE:
            self.place += 1
        return self.content[self.place : self.place + 1]

    def take(self, wanted: str) -> str:
        found = self.peek()
        if not found or found not in wanted:
            raise self.fault(f"{found or 'the end'!r} stands where one of {wanted!r} is wanted.")
        self.place += 1
        return found

    def value(self) -> Any:
        """The next value, whole."""
        self.peek()
        try:
            value, self.place = _DECODER.raw_decode(self.content, self.place)
        except json.JSONDecodeError as error:
            raise fault(self.path, error.lineno, not_json(error)) from error
        except (ValueError, RecursionError) as error:  # numbers of thousands of digits, brackets without end
            raise self.fault(f"this cannot be read ({error}).") from error
        return value

    def pieces(self) -> Iterator[str | None]:
        """Go through an array or an object: at each of its values, the key that it has in an object.

        Whoever asks has to read the value before the next one is asked for.
        """
        opened = self.take("[{")
        closing = "]" if opened == "[" else "}"
        if self.peek() == closing:
            self.take(closing)
            return
        while True:
            self.peek()
            yield self._key() if opened == "{" else None
            if self.take("," + closing) == closing:
                return

    def _key(self) -> str:
        line, key = self.line, self.value()
        if not isinstance(key, str):
            raise fault(self.path, line, f"{brief(key)} is no key: keys are texts.")
        self.take(":")
        return key


def brief(value: Any) -> str:
    """A value as JSON, cut off where it is long."""
    words = json.dumps(value)
    return words if len(words) <= 60 else f"{words[:57]}..."


def not_json(error: json.JSONDecodeError) -> str:
    return f"this is not JSON ({error.msg}, column {error.colno})."


# ---- lines ----------------------------------------------------------------------------------------


def lines_of(content: str) -> Iterator[Line]:
    """The lines that are not blank. Files are large: no line is copied before it is asked for."""
    start, number = 0, 0
    while start <= len(content):
        end, number = content.find("\n", start), number + 1
        end = len(content) if end < 0 else end
        words = content[start:end]
        if words.strip():
            yield number, words
        start = end + 1


def is_in_lines(content: str) -> bool:
    """Whether each line is a value, rather than the whole.

    The first line is an object then, and has fields of its own or others beside it. If it is broken, the second line
    cannot go on with it, or the last one is an object: no object that begins above can end in one.
    """
    lines = (words.strip() for _, words in lines_of(content))
    first, second = next(lines, ""), next(lines, "")
    if not first.startswith("{") or first == "{":
        return False
    if not second:
        return _has_fields(first)
    return _is_object(first) or (_is_object(second) and _breaks_off(first, second)) or _is_object(_last_line(content))


def _has_fields(words: str) -> bool:
    """Whether an object is an entry by itself, rather than one of entries, or of lists of them, by their keys."""
    cursor = Cursor("", words)
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
    """Whether what begins in one line cannot go on with the next."""
    try:
        json.loads(f"{first}\n{second}")
    except json.JSONDecodeError as error:
        return error.pos <= len(first) + 1
    except (ValueError, RecursionError):
        pass
    return False


def _last_line(content: str) -> str:
    end = len(content.rstrip(_SPACE))
    return content[content.rfind("\n", 0, end) + 1 : end]


def _is_object(words: str) -> bool:
    try:
        return isinstance(json.loads(words), dict)
    except (ValueError, RecursionError):
        return False
