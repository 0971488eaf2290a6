"""The meta-RL learner: agents that learn to learn a task within a few episodes of it.

    learner   `Learner`: collects rollouts, learns from them in a run, and evaluates by inner episode
    envs      its tasks and environments
    config    settings
    agent     architectures, the acting policy, and the agent with its network, buffer and counters
    memory    a GRU and fast weights; PPO, DQN and SAC that learn from whole rollouts

Names are imported on first use, because they need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_envs.extras import on_first_use as _on_first_use

if TYPE_CHECKING:
    from parallel_envs.learners.meta.agent import AGENT_ARCHS
    from parallel_envs.learners.meta.config import MetaSettings, load_settings
    from parallel_envs.learners.meta.learner import Adaptation, Learner

__all__ = ["AGENT_ARCHS", "Adaptation", "Learner", "MetaSettings", "load_settings"]

__getattr__, __dir__ = _on_first_use(
    __name__,
    {
        **dict.fromkeys(["Adaptation", "Learner"], "learner"),
        "AGENT_ARCHS": "agent",
        "MetaSettings": "config",
        "load_settings": "config",
    },
)
