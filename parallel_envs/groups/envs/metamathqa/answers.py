"""Which answers are the same. Texts are compared, and numbers by value; nothing is run."""

from __future__ import annotations

import re
from fractions import Fraction

MARK = "The answer is:"
"""What stands before the answer, in the data and often in what a model says."""

_MARK = re.compile(re.escape(MARK), re.IGNORECASE)
_NUMBER = re.compile(r"([-+]?)([0-9]{1,40})(?:\.([0-9]{1,40}))?(?:/([0-9]{1,40}))?(%?)")
_THOUSANDS = re.compile(r"[-+]?[0-9]{1,3}(?:,[0-9]{3}){1,12}(?:\.[0-9]{1,40})?%?")
_FRACTION = re.compile(r"\\[dt]?frac\{([^{}]{1,40})\}\{([^{}]{1,40})\}")
_BOXED = re.compile(r"\\(?:boxed|text|mathrm|textbf)\{([^{}]*)\}")
_DROPPED = re.compile(r"\\left|\\right|\\[,;!: ]|\\\$|[$\s]")


def answer_in(text: str) -> str | None:
    """What follows the last mark; None where there is none."""
    *_, behind = _MARK.split(text)
    return None if behind == text else behind.strip()


def given_answer(text: str) -> str:
    """What somebody answers: what follows the mark, or all that is said."""
    found = answer_in(text)
    return text.strip() if found is None else found


def same(answer: str, wanted: str) -> bool:
    """Whether two answers are the same but for how they are written."""
    answer, wanted = plain(answer), plain(wanted)
    if answer == wanted:
        return answer != ""
    value = number(answer)
    return value is not None and value == number(wanted)


def plain(text: str) -> str:
    """An answer without what belongs to typesetting: case, space, dollar signs, a full stop, LaTeX's wrapping."""
    text = _BOXED.sub(r"\1", _FRACTION.sub(r"\1/\2", text.replace("{,}", ",")))
    return _DROPPED.sub("", text).lower().rstrip(".")


def number(text: str) -> Fraction | None:
    """The value of a plain number: 1,250 and -3.50 and 1/2 and 50%; None for anything else."""
    if _THOUSANDS.fullmatch(text):
        text = text.replace(",", "")
    found = _NUMBER.fullmatch(text)
    if found is None:
        return None
    sign, whole, decimals, below, percent = found.groups()
    if below is not None and int(below) == 0:
        return None
    value = Fraction(f"{whole}.{decimals}" if decimals else whole) / int(below or 1)
    return (-value if sign == "-" else value) / (100 if percent else 1)
