"""Collecting and storing experience.

Start with `collector.py`: `collect` plays whole episodes on many environments at once and returns `Rollouts`
(`rollout.py`). Torch networks to act with are in `networks.py`, which is imported only when asked for.
"""

from parallel_envs.rollouts.collector import collect
from parallel_envs.rollouts.rollout import Rollout, Rollouts, Sequences, Transitions

__all__ = ["Rollout", "Rollouts", "Sequences", "Transitions", "collect"]
