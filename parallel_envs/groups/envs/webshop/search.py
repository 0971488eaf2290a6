"""Full-text search: Okapi BM25 over an inverted index."""

from __future__ import annotations

import bisect
import re
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

K1, B = 0.9, 0.4  # WebShop uses Lucene with these values, from Pyserini

_WORD = re.compile(r"[a-z0-9]+")
# Lucene's stop words of English.
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a an and are as at be but by for if in into is it no not of on or such that the their then there these they
        this to was will with
        """,
    )
)

Columns = dict[str, NDArray[Any]]
"""Arrays of an index, by name. Each may be a read-only memory map that processes share.

`words`: the words in order, one behind the other, as bytes, each of which ends at its `word_ends`. A word's `documents`
and how often they have it (`times`) end at its `ends`. `norms`: the factor for the length of each document.
"""


def words_of(text: str) -> list[str]:
    """Return the words of a text for the search: in lower case, without plurals and stop words."""
    return [
        word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
        for word in _WORD.findall(text.lower())
        if word not in _STOP_WORDS
    ]


def columns_of(documents: Iterable[str]) -> Columns:
    """Return the index of these documents."""
    postings: dict[str, tuple[array[int], array[float]]] = {}
    lengths: list[int] = []
    for number, document in enumerate(documents):
        words = words_of(document)
        lengths.append(len(words))
        for word, times in Counter(words).items():
            where, how_often = postings.setdefault(word, (array("i"), array("f")))
            where.append(number)
            how_often.append(times)
    mean = max(sum(lengths) / max(len(lengths), 1), 1.0)
    in_order = sorted(postings)
    ends = np.cumsum([len(postings[word][0]) for word in in_order], dtype=np.int64)
    documents_of = np.empty(ends[-1] if in_order else 0, np.int32)
    times_of = np.empty(len(documents_of), np.float32)
    begin = 0
    for word, end in zip(in_order, ends.tolist(), strict=True):
        where, how_often = postings.pop(word)
        documents_of[begin:end], times_of[begin:end] = where, how_often
        begin = end
    return {
        "words": np.frombuffer("".join(in_order).encode(), np.uint8),
        "word_ends": np.cumsum([len(word) for word in in_order], dtype=np.int64),
        "documents": documents_of,
        "times": times_of,
        "ends": ends,
        "norms": (K1 * (1 - B + B * np.array(lengths, np.float32) / mean)).astype(np.float32),
    }


class Index:
    """The documents of each word, and how often each document has it."""

    def __init__(self, columns: Columns) -> None:
        self.columns = columns
        self._words = _Words(columns["words"], columns["word_ends"])
        self._num_documents = len(columns["norms"])

    def scores(self, query: str) -> NDArray[np.float32]:
        """Return how well each document matches a query; 0 if it has none of its words."""
        columns, scores = self.columns, np.zeros(self._num_documents, np.float32)
        for word, times in sorted(Counter(words_of(query)).items()):
            sought = word.encode()
            place = bisect.bisect_left(self._words, sought)
            if place == len(self._words) or self._words[place] != sought:
                continue
            its = slice(int(columns["ends"][place - 1]) if place else 0, int(columns["ends"][place]))
            where, how_often = columns["documents"][its], columns["times"][its]
            weight = np.log(1 + (self._num_documents - len(where) + 0.5) / (len(where) + 0.5))
            scores[where] += times * weight * how_often * (K1 + 1) / (how_often + columns["norms"][where])
        return scores

    def search(self, query: str, most: int) -> tuple[int, ...]:
        """Return the numbers of the documents that match a query best, in that order; of equals, the earlier first."""
        scores = self.scores(query)
        found = np.flatnonzero(scores)
        return tuple(found[np.argsort(-scores[found], kind="stable")][:most].tolist())


class _Words(Sequence[bytes]):
    """The words of an index, in order."""

    def __init__(self, letters: NDArray[Any], ends: NDArray[Any]) -> None:
        self._letters, self._ends = letters, ends

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, place: Any) -> Any:
        return self._letters[int(self._ends[place - 1]) if place else 0 : int(self._ends[place])].tobytes()
