"""Collecting and storing experience.

Start with `collecting.py`: `collect` plays whole episodes on many environments at once. What it returns is in
`rollout.py`. Torch networks to act with are in `networks.py`, which is imported only when asked for.
"""

from parallel_envs.rollouts.collecting import collect
from parallel_envs.rollouts.rollout import Rollout, Rollouts, Sequences, Transitions

__all__ = ["Rollout", "Rollouts", "Sequences", "Transitions", "collect"]
