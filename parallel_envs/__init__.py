"""Many reinforcement-learning environments and many agents at once, in Python.

Names are resolved on first use: importing this package loads nothing else.
"""

from __future__ import annotations

import logging
import sys

if sys.version_info < (3, 11):  # noqa: UP036  # checked before anything is imported that an older Python cannot read
    raise ImportError(f"parallel_envs needs Python 3.11 or later; this is {'.'.join(map(str, sys.version_info[:3]))}.")

from typing import TYPE_CHECKING

from parallel_envs.lazy import on_first_use as _on_first_use

if TYPE_CHECKING:
    from parallel_envs.errors import (
        ClosedError,
        CollectionInterrupted,
        ConcurrentCall,
        EnvError,
        EpisodeFailed,
        MissingExtra,
        ParallelEnvsError,
        PolicyError,
        RemoteError,
        StepTimeout,
        UntrustedName,
        WorkerDied,
        WorkerStartError,
        WorkerTimeout,
    )
    from parallel_envs.evaluation.evaluate import evaluate
    from parallel_envs.groups import EnvStateManager
    from parallel_envs.learners import DQNConfig, IndependentLearners, LoopOptions, PPOConfig, SACConfig
    from parallel_envs.meta import MultiEpisodeWrapper, VariBadWrapper, make_env, make_parallel_env
    from parallel_envs.multiagent import MultiAgentEnvManager, tuple_agents
    from parallel_envs.rollouts import collect
    from parallel_envs.seeding import SeedTree, env_seeds
    from parallel_envs.vector import ParallelEnvManager, vector_entry_point
    from parallel_envs.wrappers import Rules, WrappedMultiAgentPolicy

logging.getLogger(__name__).addHandler(logging.NullHandler())  # quiet unless the program asks for a log

__version__ = "0.1.0"

_HOMES = {
    "ClosedError": "errors",
    "CollectionInterrupted": "errors",
    "ConcurrentCall": "errors",
    "DQNConfig": "learners",
    "EnvError": "errors",
    "EnvStateManager": "groups",
    "EpisodeFailed": "errors",
    "IndependentLearners": "learners",
    "LoopOptions": "learners",
    "MissingExtra": "errors",
    "MultiAgentEnvManager": "multiagent",
    "MultiEpisodeWrapper": "meta",
    "PPOConfig": "learners",
    "ParallelEnvManager": "vector",
    "ParallelEnvsError": "errors",
    "PolicyError": "errors",
    "RemoteError": "errors",
    "Rules": "wrappers",
    "SACConfig": "learners",
    "SeedTree": "seeding",
    "StepTimeout": "errors",
    "UntrustedName": "errors",
    "VariBadWrapper": "meta",
    "WorkerDied": "errors",
    "WorkerStartError": "errors",
    "WorkerTimeout": "errors",
    "WrappedMultiAgentPolicy": "wrappers",
    "collect": "rollouts",
    "env_seeds": "seeding",
    "evaluate": "evaluation",
    "make_env": "meta",
    "make_parallel_env": "meta",
    "tuple_agents": "multiagent",
    "vector_entry_point": "vector",
}

__all__ = [
    "ClosedError",
    "CollectionInterrupted",
    "ConcurrentCall",
    "DQNConfig",
    "EnvError",
    "EnvStateManager",
    "EpisodeFailed",
    "IndependentLearners",
    "LoopOptions",
    "MissingExtra",
    "MultiAgentEnvManager",
    "MultiEpisodeWrapper",
    "PPOConfig",
    "ParallelEnvManager",
    "ParallelEnvsError",
    "PolicyError",
    "RemoteError",
    "Rules",
    "SACConfig",
    "SeedTree",
    "StepTimeout",
    "UntrustedName",
    "VariBadWrapper",
    "WorkerDied",
    "WorkerStartError",
    "WorkerTimeout",
    "WrappedMultiAgentPolicy",
    "collect",
    "env_seeds",
    "evaluate",
    "make_env",
    "make_parallel_env",
    "tuple_agents",
    "vector_entry_point",
]

__getattr__, __dir__ = _on_first_use(__name__, _HOMES)
