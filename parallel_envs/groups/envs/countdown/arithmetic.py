"""Arithmetic as a language model writes it, read without being run.

    answer  = sum [ "=" [ "+" | "-" ] number ]
    sum     = product { ("+" | "-") product }
    product = signed { ("*" | "/") signed }
    signed  = [ "+" | "-" ] ( number | "(" sum ")" )

The typographic signs of multiplication, division and minus are read as * / -. Values are exact fractions. There is
nothing else: no powers, no names, no calls. An answer has at most 100 numbers of at most 12 digits, and brackets go 50
deep, so that time and memory are bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

_MOST_NUMBERS = 100
_MOST_DIGITS = 12
_DEEPEST = 50

_TOKEN = re.compile(r"\s*(?:([0-9]+)|([-+*/()=]))")
_SIGNS = str.maketrans({"\u00d7": "*", "\u00b7": "*", "\u00f7": "/", "\u2212": "-"})


class BadExpression(ValueError):
    """A text that is no arithmetic. The text of the error says why, in words for whoever wrote it."""


@dataclass(frozen=True, slots=True)
class Expression:
    """What an answer comes to, and what it is made of."""

    value: Fraction
    numbers: tuple[int, ...]
    """In the order in which they stand there."""
    operators: frozenset[str]
    """The sign of a negative number is one, too."""


def read_expression(text: str) -> Expression:
    """The expression that a text is. Raises BadExpression."""
    return _Reader(text).whole()


class _Reader:
    """Reads tokens one after the other, each method one line of the grammar."""

    def __init__(self, text: str) -> None:
        self._tokens = list(_tokens(text))
        self._place = 0
        self._depth = 0
        self._numbers: list[int] = []
        self._operators: set[str] = set()

    def whole(self) -> Expression:
        value = self._sum()
        numbers = tuple(self._numbers)
        if self._take("="):
            told = self._told()
            if told != value:
                raise BadExpression(f"it comes to {value}, not to {told}")
        if self._peek():
            raise BadExpression(f"{self._peek()!r} stands where nothing more is wanted")
        return Expression(value, numbers, frozenset(self._operators))

    def _sum(self) -> Fraction:
        value = self._product()
        while sign := self._take("+", "-"):
            self._operators.add(sign)
            other = self._product()
            value = value + other if sign == "+" else value - other
        return value

    def _product(self) -> Fraction:
        value = self._signed()
        while sign := self._take("*", "/"):
            self._operators.add(sign)
            value = value * self._signed() if sign == "*" else _divided(value, self._signed())
        return value

    def _signed(self) -> Fraction:
        sign = self._take("+", "-")
        if sign == "-":
            self._operators.add(sign)  # else 5 + -3 would be a way to subtract where nobody may
        return -self._plain() if sign == "-" else self._plain()

    def _plain(self) -> Fraction:
        if self._take("("):
            return self._bracket()
        value = self._digits()
        if len(self._numbers) == _MOST_NUMBERS:
            raise BadExpression(f"it has more than {_MOST_NUMBERS} numbers")
        self._numbers.append(value)
        return Fraction(value)

    def _told(self) -> int:
        return -self._digits() if self._take("+", "-") == "-" else self._digits()

    def _digits(self) -> int:
        token = self._peek()
        if not token.isdigit():
            raise BadExpression(f"a number is wanted where {repr(token) if token else 'the end'} is")
        self._place += 1
        return int(token)

    def _bracket(self) -> Fraction:
        self._depth += 1
        if self._depth > _DEEPEST:
            raise BadExpression(f"its brackets are more than {_DEEPEST} deep")
        value = self._sum()
        if not self._take(")"):
            raise BadExpression("a bracket is not closed")
        self._depth -= 1
        return value

    def _peek(self) -> str:
        return self._tokens[self._place] if self._place < len(self._tokens) else ""

    def _take(self, *wanted: str) -> str:
        """The next token if it is one of these; else nothing."""
        token = self._peek()
        if token not in wanted:
            return ""
        self._place += 1
        return token


def _divided(value: Fraction, other: Fraction) -> Fraction:
    if other == 0:
        raise BadExpression("it divides by zero")
    return value / other


def _tokens(text: str) -> Iterator[str]:
    text = text.translate(_SIGNS).strip()
    place = 0
    while place < len(text):
        found = _TOKEN.match(text, place)
        if found is None:
            raise BadExpression(f"{text[place:].lstrip()[:1]!r} is not part of arithmetic")
        place = found.end()
        token = found[1] or found[2]
        if len(token) > _MOST_DIGITS:
            raise BadExpression(f"a number has more than {_MOST_DIGITS} digits")
        yield token
