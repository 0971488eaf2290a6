"""PettingZoo's front: many multi-agent environments in worker processes, arrays by agent.

Start with `manager.py`. In a worker each environment is wrapped so that all its agents together look like one Gymnasium
environment (`joint_env.py`); `ParallelEnvManager` does the rest, and `outcomes.py` takes its arrays apart by agent.
"""

from parallel_envs.multiagent.manager import MultiAgentEnvManager
from parallel_envs.multiagent.outcomes import Infos

__all__ = ["Infos", "MultiAgentEnvManager"]
