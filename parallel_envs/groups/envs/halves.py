"""What is trained on and what is validated on: two parts that share nothing, the same in every process."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def half(items: Sequence[Item], key: Callable[[Item], str], val_share: float, *, training: bool) -> tuple[Item, ...]:
    """The items to train on, or those to validate on, in their order.

    The keys are put in an order that looks random and depends on themselves alone; the first `val_share` of them are to
    validate on, at least one of two. Items of one key stay together. A share of 0 gives everything to both, as does a
    single key.
    """
    keys = sorted({key(item) for item in items}, key=_drawn)
    if val_share == 0.0 or len(keys) == 1:
        return tuple(items)
    chosen = set(keys[: min(max(round(val_share * len(keys)), 1), len(keys) - 1)])
    return tuple(item for item in items if (key(item) in chosen) != training)


def _drawn(key: str) -> bytes:
    spelt = key.encode(errors="surrogatepass")  # JSON can say half a character
    return hashlib.blake2b(spelt, digest_size=8).digest() + spelt
