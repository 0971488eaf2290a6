"""Environments for meta-RL: several episodes on one task are one episode.

`multi_episode` is the wrapper, `making` makes wrapped envs, one or many; `config` says what can be asked of it;
`families` knows families of tasks by name (`AntDir-v0`), `splits` parts their tasks into those for training and others;
`inner_task`, `observations` and `actions` are its hand on tasks, on what a policy is shown, and on what it does.
"""

from parallel_envs.meta.config import MultiEpisodeConfig
from parallel_envs.meta.making import make_env, make_parallel_env
from parallel_envs.meta.multi_episode import MultiEpisodeWrapper, VariBadWrapper

__all__ = ["MultiEpisodeConfig", "MultiEpisodeWrapper", "VariBadWrapper", "make_env", "make_parallel_env"]
