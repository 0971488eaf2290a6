"""The Gymnasium front: `ParallelEnvManager`.

`manager` is Gymnasium's interface and its states; `fleet` lies between it and the engine; `slice` is what lives in a
worker; `buffers`, `layout`, `infos` and `actions` say where everything is and how it gets there.

The names are resolved on first use: who needs a module of this room that knows nothing of Gymnasium does not load that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_envs.lazy import on_first_use as _on_first_use

if TYPE_CHECKING:
    from parallel_envs.vector.manager import ParallelEnvManager, vector_entry_point

_HOMES = {"ParallelEnvManager": "manager", "vector_entry_point": "manager"}

__all__ = ["ParallelEnvManager", "vector_entry_point"]

__getattr__, __dir__ = _on_first_use(__name__, _HOMES)
