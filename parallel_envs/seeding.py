"""Independent random streams from one seed.

    tree = SeedTree(7)
    tree.child("env", 3).generator()                 # a NumPy generator
    tree.child("env", 3, "episode", 12).seed()       # an int for env.reset(seed=...)

A stream is named by its path in the tree. It does not depend on the caller or on earlier samples. Streams of different
paths and of different root seeds are independent: seeds 0 and 1 share no stream, unlike `seed + i`.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from parallel_envs.checks import is_whole, suggests_keywords

__all__ = ["GlobalStates", "SeedTree", "env_seeds", "global_states_kept"]

_MOST_NUMBER = 1 << 32  # a spawn key holds this in one word; a larger number would become two
_SEED_BITS = 31  # every library accepts this: some environments store seeds in a C int


@dataclass(frozen=True, slots=True)
class SeedTree:
    """A node of the tree. `root` is the user's seed, `path` leads from the root to this node.

    Threads: a value that never changes; any number of threads may use it.
    """

    root: int
    path: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not is_whole(self.root):
            raise TypeError(f"seed={self.root!r} is not an integer. Give a whole number from 0 up.")
        if self.root < 0:
            raise ValueError(f"seed={self.root} is negative. Give a whole number from 0 up.")

    def child(self, *names: int | str) -> SeedTree:
        """Return the node that `names` lead to from here. A name is a word or a number from 0 up."""
        return SeedTree(self.root, self.path + tuple(part for name in names for part in _key(name)))

    def sequence(self) -> np.random.SeedSequence:
        return np.random.SeedSequence(int(self.root), spawn_key=self.path)

    def generator(self) -> np.random.Generator:
        """Return a new generator that always begins with the same samples."""
        return np.random.default_rng(self.sequence())

    def seed(self) -> int:
        """Return the seed of this node, for interfaces that take one number."""
        return int(self.sequence().generate_state(1, np.uint64)[0] >> np.uint64(64 - _SEED_BITS))

    def seeds(self, count: int) -> list[int]:
        """Return the seeds of the children 0 .. count - 1."""
        return [self.child(index).seed() for index in range(count)]


@suggests_keywords
def env_seeds(seed: int, num_envs: int) -> list[int]:
    """Return seeds for `envs.reset(seed=...)`: one independent stream for each environment.

    Threads: any number of threads may call it at once.
    """
    if not is_whole(num_envs) or num_envs < 0:
        raise ValueError(f"num_envs={num_envs!r} is not a number of environments. Give a whole number from 0 up.")
    return SeedTree(seed).child("env").seeds(num_envs)


def _key(name: int | str) -> tuple[int, ...]:
    """Return a name as numbers. Words and numbers differ in the first part, so they never collide."""
    if isinstance(name, bool) or not isinstance(name, str | int | np.integer):
        raise TypeError(f"{name!r} cannot name a stream. Streams are named by words and by whole numbers.")
    if isinstance(name, str):
        digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
        return 1, int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")
    if not 0 <= name < _MOST_NUMBER:
        raise ValueError(f"{name} cannot name a stream. Numbers in a seed path go from 0 to {_MOST_NUMBER - 1}.")
    return 0, int(name)


# ---- the generators of the process ----------------------------------------------------------------------------------


class GlobalStates(NamedTuple):
    """States of the global generators of Python, NumPy and torch. `torch` is None if it is not kept, or not loaded.

    Threads: the states never change; the generators belong to the whole process, so one thread restores at a time.
    """

    python: Any
    numpy: Any
    torch: Any = None

    @classmethod
    def now(cls, *, with_torch: bool = False) -> GlobalStates:
        """Return the states as they are."""
        torch = sys.modules.get("torch") if with_torch else None
        return cls(random.getstate(), np.random.get_state(), None if torch is None else torch.get_rng_state())

    def restore(self) -> None:
        """Set the generators to these states."""
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        if self.torch is not None:
            sys.modules["torch"].set_rng_state(self.torch)


@contextlib.contextmanager
def global_states_kept(*, with_torch: bool = False) -> Iterator[None]:
    """Restore the global generators at the end of the context."""
    before = GlobalStates.now(with_torch=with_torch)
    try:
        yield
    finally:
        before.restore()
