"""Independent learners: each agent has its own network, buffer, optimiser and random generator.

Start with `independent.py` (`IndependentLearners`) and `agent.py` (one agent). Each algorithm is one file: `ppo.py`,
`dqn.py`, `sac.py`; `algorithm.py` is their interface. `updates/` contains the ways to run updates, `loops/` those to
learn while collecting. Names are imported on first use: they need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_envs.extras import on_first_use as _on_first_use

if TYPE_CHECKING:
    from parallel_envs.learners.agent import AgentLearner
    from parallel_envs.learners.algorithm import Diverged
    from parallel_envs.learners.checkpoint import BadCheckpoint, export_agent, frozen, load_agent, replace_agent
    from parallel_envs.learners.dqn import DQNConfig
    from parallel_envs.learners.independent import IndependentLearners
    from parallel_envs.learners.loops.loop import LoopOptions, LoopReport
    from parallel_envs.learners.meta.learner import Learner
    from parallel_envs.learners.ppo import PPOConfig
    from parallel_envs.learners.sac import SACConfig
    from parallel_envs.learners.updates.mode import UpdateFailed
    from parallel_envs.learners.writers import Writer

__all__ = [
    "AgentLearner",
    "BadCheckpoint",
    "DQNConfig",
    "Diverged",
    "IndependentLearners",
    "Learner",
    "LoopOptions",
    "LoopReport",
    "PPOConfig",
    "SACConfig",
    "UpdateFailed",
    "Writer",
    "export_agent",
    "frozen",
    "load_agent",
    "replace_agent",
]

_MODULES = {
    **dict.fromkeys(["BadCheckpoint", "export_agent", "frozen", "load_agent", "replace_agent"], "checkpoint"),
    "AgentLearner": "agent",
    "DQNConfig": "dqn",
    "Diverged": "algorithm",
    "IndependentLearners": "independent",
    "Learner": "meta.learner",
    "LoopOptions": "loops.loop",
    "LoopReport": "loops.loop",
    "PPOConfig": "ppo",
    "SACConfig": "sac",
    "UpdateFailed": "updates.mode",
    "Writer": "writers",
}

__getattr__, __dir__ = _on_first_use(__name__, _MODULES)
