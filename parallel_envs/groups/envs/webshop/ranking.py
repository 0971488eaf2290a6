"""Full-text search: Okapi BM25 over an inverted index."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

K1, B = 0.9, 0.4  # Lucene's users of WebShop have these from Pyserini

_WORD = re.compile(r"[a-z0-9]+")
# What Lucene leaves out of English texts.
_STOP_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
        a an and are as at be but by for if in into is it no not of on or such that the their then there these they
        this to was will with
        """,
    )
)


def words_of(text: str) -> list[str]:
    """The words of a text that are looked for: lower case, without plurals, without those that say nothing."""
    return [_singular(word) for word in _WORD.findall(text.lower()) if word not in _STOP_WORDS]


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


class Index:
    """Which document has which word, how often."""

    def __init__(self, documents: Iterable[str]) -> None:
        postings: dict[str, tuple[array[int], array[float]]] = {}
        lengths: list[int] = []
        for number, document in enumerate(documents):
            words = words_of(document)
            lengths.append(len(words))
            for word, times in Counter(words).items():
                where, how_often = postings.setdefault(word, (array("i"), array("f")))
                where.append(number)
                how_often.append(times)
        self._postings = postings
        self._num_documents = len(lengths)
        mean = max(sum(lengths) / max(len(lengths), 1), 1.0)
        self._norms = (K1 * (1 - B + B * np.array(lengths, np.float32) / mean)).astype(np.float32)

    def scores(self, query: str) -> NDArray[np.float32]:
        """How well each document meets a query; 0 where it has none of its words."""
        scores = np.zeros(self._num_documents, np.float32)
        for word, times in sorted(Counter(words_of(query)).items()):
            if word in self._postings:
                where, how_often = (np.frombuffer(column, column.typecode) for column in self._postings[word])
                weight = np.log(1 + (self._num_documents - len(where) + 0.5) / (len(where) + 0.5))
                scores[where] += times * weight * how_often * (K1 + 1) / (how_often + self._norms[where])
        return scores

    def search(self, query: str, most: int) -> tuple[int, ...]:
        """The numbers of the documents that meet a query best, in that order; of equals, the earlier one."""
        scores = self.scores(query)
        found = np.flatnonzero(scores)
        return tuple(found[np.argsort(-scores[found], kind="stable")][:most].tolist())
