"""The descriptors that belong to the user's side of the engine.

A child forked from the user's process inherits all of them and must let go of them at once: a sibling's pipe end kept
open there would keep that sibling from seeing that its parent has gone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection

owned: set[int] = set()
"""Open descriptors of all pools and of the keeper in this process."""


def close_in_child(kept: Collection[int]) -> None:
    """Close all of them but those that the child is to keep."""
    for fd in owned.difference(kept):
        with contextlib.suppress(OSError):
            os.close(fd)
    owned.clear()
