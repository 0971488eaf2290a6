"""The meta-RL learner: agents that learn to learn a task within a few episodes of it.

Start with `learner.py` (`Learner`) and `player.py`, which it is built on. `settings.py` says what can be asked of it;
`stage.py` what is played and where; `architectures.py`, `on_policy.py` and `sequences.py`
what acts and learns, `memories.py` and `fast_weights.py` what remembers; `agent.py` is that with its numbers and
buffer; `experience.py` turns rollouts into what algorithms take; `curves.py` says how returns grow from one
episode on a task to the next. Names are resolved on first use: they need torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from parallel_envs.lazy import on_first_use as _on_first_use

if TYPE_CHECKING:
    from parallel_envs.learners.meta.architectures import AGENT_ARCHS
    from parallel_envs.learners.meta.curves import Adaptation
    from parallel_envs.learners.meta.learner import Learner
    from parallel_envs.learners.meta.settings import MetaSettings, load_settings

_HOMES = {
    "AGENT_ARCHS": "architectures",
    "Adaptation": "curves",
    "Learner": "learner",
    "MetaSettings": "settings",
    "load_settings": "settings",
}

__all__ = ["AGENT_ARCHS", "Adaptation", "Learner", "MetaSettings", "load_settings"]

__getattr__, __dir__ = _on_first_use(__name__, _HOMES)
