"""PettingZoo's interface: many multi-agent environments in worker processes, with arrays by agent.

Start with `manager.py`. In a worker each environment is wrapped so that all its agents together look like one Gymnasium
environment (`joint_env.py`). `ParallelEnvManager` runs these environments, and `agent_arrays.py` splits its arrays by
agent.
"""

from typing import TYPE_CHECKING

from parallel_envs.extras import on_first_use as _on_first_use
from parallel_envs.multiagent.agent_arrays import Infos
from parallel_envs.multiagent.manager import MultiAgentEnvManager

if TYPE_CHECKING:
    from parallel_envs.multiagent.agents_in_tuples import TupleAgents, tuple_agents

__all__ = ["Infos", "MultiAgentEnvManager", "TupleAgents", "tuple_agents"]

_LAZY_NAMES = {"TupleAgents": "agents_in_tuples", "tuple_agents": "agents_in_tuples"}
"""Names whose module loads PettingZoo."""

__getattr__, __dir__ = _on_first_use(__name__, _LAZY_NAMES)
