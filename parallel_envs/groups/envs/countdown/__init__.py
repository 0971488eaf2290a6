"""Countdown: combine numbers into a target.

`arithmetic` reads answers, `puzzles` makes what can be solved, within `reach` of its numbers, `env` is the game.
"""

from parallel_envs.groups.envs.countdown.config import CountdownConfig
from parallel_envs.groups.envs.countdown.env import CountdownEnv

__all__ = ["CountdownConfig", "CountdownEnv"]
