"""The seeds of groups: equal for all members, different between groups, resets and modes."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from parallel_envs.seeding import SeedTree


@dataclass(frozen=True, slots=True)
class GroupSeeds:
    """Where a mode's seeds come from.

    Attributes:
        mode: `train` goes on to the next seeds with each reset, `val` begins with the same ones each time.
        root: What they are drawn from. None: whatever comes.
        num_resets: How many resets have drawn from it.
    """

    mode: str
    root: int | None
    num_resets: int = 0

    def drawn(self, seed: int | None, num_groups: int) -> tuple[GroupSeeds, list[int]]:
        """The seed of each group, and where the next ones come from. `seed`: begin anew from there."""
        root, count = self._from_here() if seed is None else (seed, 0)
        seeds = SeedTree(root).child("groups", self.mode, count).seeds(num_groups)
        return self if self.mode == "val" else GroupSeeds(self.mode, root, count + 1), seeds

    def _from_here(self) -> tuple[int, int]:
        return secrets.randbits(31) if self.root is None else self.root, self.num_resets
