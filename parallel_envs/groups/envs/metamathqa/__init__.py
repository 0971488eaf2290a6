"""MetaMathQA: questions of mathematics, and answers that are compared.

`questions` reads files of that data set's format, `answers` says which answers are the same, `env` asks.
"""

from parallel_envs.groups.envs.metamathqa.config import MetaMathQAConfig
from parallel_envs.groups.envs.metamathqa.env import MetaMathQAEnv

__all__ = ["MetaMathQAConfig", "MetaMathQAEnv"]
