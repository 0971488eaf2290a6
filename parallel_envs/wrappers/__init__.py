"""The policies of all agents, computed at once by the strategy that suits them.

    sequential   one by one, in the caller: the reference
    thread       for policies that release the interpreter's lock
    process      for policies that compute in Python
    batch        for policies that act for many at once, and for networks of equal shape
    gpu          the same on a device
    auto         measures the others, and keeps the fastest

`TorchPolicy` makes a policy of a torch network. It loads torch when it is first used; `import *` leaves it out, so that
all other names work without torch.

Start with `multi.py` (`WrappedMultiAgentPolicy`). The beginning of `base.py` says how to add a strategy. The import
name is `parallel_envs.wrappers`; the link `wrappers` at the top of the repository leads here for people who browse, and
is not installed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from parallel_envs.extras import explained as _explained
from parallel_envs.wrappers.auto import PerAgentAutoWrapper
from parallel_envs.wrappers.base import PerAgentWrapper, Rules
from parallel_envs.wrappers.local import PerAgentBatchWrapper, PerAgentGPUWrapper, PerAgentSequentialWrapper
from parallel_envs.wrappers.multi import STRATEGIES, WrappedMultiAgentPolicy
from parallel_envs.wrappers.pool import PerAgentThreadWrapper, PolicyPool, StandaloneAgent
from parallel_envs.wrappers.process import PerAgentProcessWrapper, PerAgentSubprocessWrapper

if TYPE_CHECKING:
    from parallel_envs.policies.torch_policy import TorchPolicy as TorchPolicy  # exported so

__all__ = [
    "STRATEGIES",
    "PerAgentAutoWrapper",
    "PerAgentBatchWrapper",
    "PerAgentGPUWrapper",
    "PerAgentProcessWrapper",
    "PerAgentSequentialWrapper",
    "PerAgentSubprocessWrapper",
    "PerAgentThreadWrapper",
    "PerAgentWrapper",
    "PolicyPool",
    "Rules",
    "StandaloneAgent",
    "WrappedMultiAgentPolicy",
]


def __getattr__(name: str) -> Any:
    if name != "TorchPolicy":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _explained("parallel_envs.wrappers.TorchPolicy"):
        from parallel_envs.policies.torch_policy import TorchPolicy
    return TorchPolicy


def __dir__() -> list[str]:
    return sorted({*globals(), "TorchPolicy"})
