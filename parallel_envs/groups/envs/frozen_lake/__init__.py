"""Gymnasium's FrozenLake on random maps, in text and in pictures.

`maps` makes maps that can be crossed, `drawing` shows them, `env` is the game.
"""

from parallel_envs.groups.envs.frozen_lake.config import FrozenLakeConfig
from parallel_envs.groups.envs.frozen_lake.env import FrozenLakeEnv

__all__ = ["FrozenLakeConfig", "FrozenLakeEnv"]
