"""Many reinforcement-learning environments and many agents at once, in Python.

Names are resolved on first use: importing this package loads nothing else.
"""

from __future__ import annotations

import logging
import sys

if sys.version_info < (3, 11):  # noqa: UP036  # checked before anything is imported that an older Python cannot read
    raise ImportError(f"parallel_envs needs Python 3.11 or later; this is {'.'.join(map(str, sys.version_info[:3]))}.")

from typing import TYPE_CHECKING

from parallel_envs.extras import on_first_use as _on_first_use

if TYPE_CHECKING:
    from parallel_envs.errors import ClosedError as ClosedError
    from parallel_envs.errors import CollectionInterrupted as CollectionInterrupted
    from parallel_envs.errors import ConcurrentCall as ConcurrentCall
    from parallel_envs.errors import EnvError as EnvError
    from parallel_envs.errors import EpisodeFailed as EpisodeFailed
    from parallel_envs.errors import MissingExtra as MissingExtra
    from parallel_envs.errors import ParallelEnvsError as ParallelEnvsError
    from parallel_envs.errors import PolicyError as PolicyError
    from parallel_envs.errors import RemoteError as RemoteError
    from parallel_envs.errors import StepTimeout as StepTimeout
    from parallel_envs.errors import UntrustedName as UntrustedName
    from parallel_envs.errors import WorkerDied as WorkerDied
    from parallel_envs.errors import WorkerStartError as WorkerStartError
    from parallel_envs.errors import WorkerTimeout as WorkerTimeout
    from parallel_envs.evaluation.evaluate import evaluate as evaluate
    from parallel_envs.groups import EnvStateManager as EnvStateManager
    from parallel_envs.learners import DQNConfig as DQNConfig
    from parallel_envs.learners import IndependentLearners as IndependentLearners
    from parallel_envs.learners import LoopOptions as LoopOptions
    from parallel_envs.learners import PPOConfig as PPOConfig
    from parallel_envs.learners import SACConfig as SACConfig
    from parallel_envs.meta import MultiEpisodeWrapper as MultiEpisodeWrapper
    from parallel_envs.meta import VariBadWrapper as VariBadWrapper
    from parallel_envs.meta import make_env as make_env
    from parallel_envs.meta import make_parallel_env as make_parallel_env
    from parallel_envs.multiagent import MultiAgentEnvManager as MultiAgentEnvManager
    from parallel_envs.multiagent import tuple_agents as tuple_agents
    from parallel_envs.rollouts import collect as collect
    from parallel_envs.seeding import SeedTree as SeedTree
    from parallel_envs.seeding import env_seeds as env_seeds
    from parallel_envs.vector import ParallelEnvManager as ParallelEnvManager
    from parallel_envs.vector import ReplayableEnv as ReplayableEnv
    from parallel_envs.vector import vector_entry_point as vector_entry_point
    from parallel_envs.wrappers import Rules as Rules
    from parallel_envs.wrappers import WrappedMultiAgentPolicy as WrappedMultiAgentPolicy

logging.getLogger(__name__).addHandler(logging.NullHandler())  # quiet unless the program asks for a log

__version__ = "0.1.0"

_NAMES = {
    "errors": "ClosedError CollectionInterrupted ConcurrentCall EnvError EpisodeFailed MissingExtra "
    "ParallelEnvsError PolicyError RemoteError StepTimeout UntrustedName WorkerDied WorkerStartError "
    "WorkerTimeout",
    "evaluation": "evaluate",
    "groups": "EnvStateManager",
    "learners": "DQNConfig IndependentLearners LoopOptions PPOConfig SACConfig",
    "meta": "MultiEpisodeWrapper VariBadWrapper make_env make_parallel_env",
    "multiagent": "MultiAgentEnvManager tuple_agents",
    "rollouts": "collect",
    "seeding": "SeedTree env_seeds",
    "vector": "ParallelEnvManager ReplayableEnv vector_entry_point",
    "wrappers": "Rules WrappedMultiAgentPolicy",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

if not TYPE_CHECKING:  # type checkers read the imports above
    __all__ = list(_HOMES)

__getattr__, __dir__ = _on_first_use(__name__, _HOMES)
