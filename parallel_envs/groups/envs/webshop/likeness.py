"""How alike two texts are, as the fuzzy comparison of WebShop has it."""

from __future__ import annotations

import re
from collections.abc import Iterable

_LONGEST = 300  # of texts that are compared sign by sign


def similarity(first: str, second: str) -> float:
    """From 0 to 100: how alike two texts are as sets of words. 100 if one has all words of the other."""
    one, other = set(words_in(first[:_LONGEST])), set(words_in(second[:_LONGEST]))
    if not one or not other:
        return 0.0
    common, rest, other_rest = one & other, one - other, other - one
    if common and not (rest and other_rest):
        return 100.0
    shared, whole, other_whole = _joined(common), _joined(common, rest), _joined(common, other_rest)
    pairs = [(whole, other_whole)]
    if common:
        pairs += [(shared, whole), (shared, other_whole)]
    return max(100.0 * 2 * common_length(left, right) / (len(left) + len(right)) for left, right in pairs)


def _joined(*parts: Iterable[str]) -> str:
    return " ".join(word for part in parts for word in sorted(part))


def words_in(text: str) -> list[str]:
    """Its words and numbers, in lower case."""
    return re.findall(r"[^\W_]+", text.lower())


def common_length(first: str, second: str) -> int:
    """The length of the longest common subsequence, a row of the usual table being the bits of a number."""
    places: dict[str, int] = {}
    for place, sign in enumerate(first):
        places[sign] = places.get(sign, 0) | 1 << place
    full = (1 << len(first)) - 1
    row = full
    for sign in second:
        here = row & places.get(sign, 0)
        row = (row + here) | (row - here)
    return len(first) - (row & full).bit_count()
