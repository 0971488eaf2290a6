"""Sokoban: push the boxes onto the targets.

`rooms` carves rooms and plays them backwards, within the `limits` of what is possible; `drawing` shows them; `env` is
the game.
"""

from parallel_envs.groups.envs.sokoban.config import SokobanConfig
from parallel_envs.groups.envs.sokoban.env import SokobanEnv

__all__ = ["SokobanConfig", "SokobanEnv"]
