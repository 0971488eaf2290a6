"""A space of a class Gymnasium has never heard of. Workers import this module by its name."""

from __future__ import annotations

from typing import Any

from gymnasium import spaces

LETTERS = "abcde"


class WordSpace(spaces.Space[tuple[str, ...]]):
    """Tuples of up to `max_words` words: neither arrays nor of a fixed shape."""

    def __init__(self, max_words: int = 3) -> None:
        super().__init__()
        self.max_words = max_words

    def sample(self, mask: Any = None, probability: Any = None) -> tuple[str, ...]:
        num_words = int(self.np_random.integers(self.max_words + 1))
        return tuple("".join(self.np_random.choice(list(LETTERS), 3)) for _ in range(num_words))

    def contains(self, x: Any) -> bool:
        return isinstance(x, tuple) and len(x) <= self.max_words

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WordSpace) and other.max_words == self.max_words

    def __hash__(self) -> int:
        return hash(self.max_words)

    def __repr__(self) -> str:
        return f"WordSpace({self.max_words})"
