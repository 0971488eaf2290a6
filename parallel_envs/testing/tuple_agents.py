"""Deprecated: `tuple_agents` and `TupleAgents` are in `parallel_envs.multiagent`. Version 0.2 removes this module."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from parallel_envs.multiagent import agents_in_tuples

if TYPE_CHECKING:
    from parallel_envs.multiagent.agents_in_tuples import TupleAgents, tuple_agents

__all__ = ["TupleAgents", "tuple_agents"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        f"{__name__}.{name} is deprecated: take {name} from parallel_envs.multiagent.", DeprecationWarning, stacklevel=2
    )
    return getattr(agents_in_tuples, name)
