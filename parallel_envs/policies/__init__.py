"""Policies: their interfaces (`base`), policies that need no training (`ready`), policies by name (`specs`)."""

from parallel_envs.policies.base import (
    AgentPolicy,
    BatchPolicy,
    FunctionPolicy,
    LiftedPolicy,
    MultiAgentPolicy,
    RandomPolicy,
    Rows,
    SingleRow,
    as_batch_policy,
)
from parallel_envs.policies.ready import EachAgent, NoopAgent, RandomAgent, ScriptedAgent
from parallel_envs.policies.specs import PolicySpec, load_policy

__all__ = [
    "AgentPolicy",
    "BatchPolicy",
    "EachAgent",
    "FunctionPolicy",
    "LiftedPolicy",
    "MultiAgentPolicy",
    "NoopAgent",
    "PolicySpec",
    "RandomAgent",
    "RandomPolicy",
    "Rows",
    "ScriptedAgent",
    "SingleRow",
    "as_batch_policy",
    "load_policy",
]
