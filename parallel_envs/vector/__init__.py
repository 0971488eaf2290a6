"""`ParallelEnvManager`: Gymnasium environments in workers.

One step: `manager` checks the call, `env_batch` rings the workers and reads the answers; in each worker `worker_envs`
holds the envs and `step_loop` steps them; actions and results lie in `shared_arrays`, infos as `infos` lays them out.
`recovery` holds requests that are not answered yet and deals with failed ones; `env_errors` makes their errors.
`env_states` saves and restores envs between two steps.

The names below are loaded on first use, so that modules that need no Gymnasium can be used without loading it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_envs.extras import on_first_use as _on_first_use

if TYPE_CHECKING:
    from parallel_envs.vector.env_states import EnvState, ReplayableEnv
    from parallel_envs.vector.manager import ParallelEnvManager, vector_entry_point

_HOMES = {
    "EnvState": "env_states",
    "ParallelEnvManager": "manager",
    "ReplayableEnv": "env_states",
    "vector_entry_point": "manager",
}

__all__ = ["EnvState", "ParallelEnvManager", "ReplayableEnv", "vector_entry_point"]

__getattr__, __dir__ = _on_first_use(__name__, _HOMES)
