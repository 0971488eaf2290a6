"""The Gymnasium front: `ParallelEnvManager`.

`manager` is Gymnasium's interface and its states; `fleet` lies between it and the engine; `slice` is what lives in a
worker; `buffers`, `layout`, `infos` and `actions` say where everything is and how it gets there.
"""

from parallel_envs.vector.manager import ParallelEnvManager, vector_entry_point

__all__ = ["ParallelEnvManager", "vector_entry_point"]
