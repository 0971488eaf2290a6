"""Environments for meta-RL: several episodes on one task are one episode.

`multi_episode` is the wrapper with its settings. `making` makes one wrapped env or many in workers, finds families of
tasks by name (`AntDir-v0`), and splits their tasks into training and evaluation.
"""

from parallel_envs.meta.making import make_env, make_parallel_env
from parallel_envs.meta.multi_episode import MultiEpisodeConfig, MultiEpisodeWrapper, VariBadWrapper

__all__ = ["MultiEpisodeConfig", "MultiEpisodeWrapper", "VariBadWrapper", "make_env", "make_parallel_env"]
