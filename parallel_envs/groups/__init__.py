"""Groups of small environments for training agents and language models: `EnvStateManager`.

Names are resolved on first use, so that a worker that imports one module here imports no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_envs.extras import on_first_use as _on_first_use

if TYPE_CHECKING:
    from parallel_envs.groups.config import GroupsSettings
    from parallel_envs.groups.envs.records import DataFileError
    from parallel_envs.groups.episode import EnvStatus
    from parallel_envs.groups.failures import BadSettings, BadTurn, EnvFailure
    from parallel_envs.groups.interface import GroupEnv
    from parallel_envs.groups.manager import EnvStateManager
    from parallel_envs.groups.registry import known_env_types, register

_MODULES = {
    "BadSettings": "failures",
    "BadTurn": "failures",
    "DataFileError": "envs.records",
    "EnvFailure": "failures",
    "EnvStateManager": "manager",
    "EnvStatus": "episode",
    "GroupEnv": "interface",
    "GroupsSettings": "config",
    "known_env_types": "registry",
    "register": "registry",
}

__all__ = [
    "BadSettings",
    "BadTurn",
    "DataFileError",
    "EnvFailure",
    "EnvStateManager",
    "EnvStatus",
    "GroupEnv",
    "GroupsSettings",
    "known_env_types",
    "register",
]

__getattr__, __dir__ = _on_first_use(__name__, _MODULES)
