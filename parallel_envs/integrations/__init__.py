"""Other libraries on environments of this package: one module for each library, loaded when a name of it is first used.

    from parallel_envs.integrations import to_sb3

    model = PPO("MlpPolicy", to_sb3([make_env] * 8))

`sb3.py` is about stable-baselines3, sb3-contrib and SBX (extra `sb3`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_envs.extras import on_first_use as _on_first_use

if TYPE_CHECKING:
    from parallel_envs.integrations.sb3 import ParallelVecEnv as ParallelVecEnv
    from parallel_envs.integrations.sb3 import from_sb3 as from_sb3
    from parallel_envs.integrations.sb3 import to_sb3 as to_sb3

_HOMES = {"ParallelVecEnv": "sb3", "from_sb3": "sb3", "to_sb3": "sb3"}

__getattr__, __dir__ = _on_first_use(__name__, _HOMES)
