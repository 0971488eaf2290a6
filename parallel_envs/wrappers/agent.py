"""Single agents of a wrapper as policies, and the policy of a single agent wrapped by itself."""

from __future__ import annotations

import inspect
import os
import threading
import warnings
import weakref
from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from parallel_envs.engine import Unpicklable, user_stacklevel
from parallel_envs.policies import AgentPolicy
from parallel_envs.threads import ClosedAtExit
from parallel_envs.wrappers.base import PerAgentWrapper
from parallel_envs.wrappers.local import PerAgentSequentialWrapper
from parallel_envs.wrappers.pool import PolicyPool
from parallel_envs.wrappers.rules import Agent, Tally, Turn

_AGENT = "agent"
"""Name of the agent of a `StandaloneAgent`, as it appears in errors."""


@dataclass
class WrappedAgent(AgentPolicy):
    """A single agent of a wrapper, as a policy. Call `send` of several agents before `recv`: they act at once."""

    wrapper: PerAgentWrapper
    agent: Agent
    tally: Tally = field(init=False)
    _turns: deque[Turn] = field(default_factory=deque, init=False, repr=False)

    def __post_init__(self) -> None:
        self.tally = self.wrapper.tallies[self.agent]

    def send(self, observation: Any) -> None:
        """Call this agent's policy."""
        self._turns.append(self.wrapper.ask({self.agent: observation}))

    def recv(self) -> Any:
        """Return its action of the first turn that has not been received yet."""
        if not self._turns:
            raise RuntimeError("recv was called without send. Call send first.")
        return self.wrapper.hear(self._turns.popleft())[self.agent]

    def step(self, observation: Any) -> Any:
        if self._turns:
            raise RuntimeError("step was called between send and recv. Call recv first.")
        self.send(observation)
        return self.recv()

    def reset(self) -> None:
        self.wrapper.reset([self.agent])

    def get_state(self) -> Any:
        """Return the state of the policy."""
        return self.wrapper.get_state(self.agent)

    def set_state(self, state: Any) -> None:
        """Restore a state that `get_state` returned."""
        self.wrapper.set_state(self.agent, state)

    def load_state_dict(self, weights: Any) -> None:
        """Load new weights. They act from the next turn on."""
        self.wrapper.load_state_dict(self.agent, weights)


@dataclass
class StandaloneAgent(WrappedAgent, ClosedAtExit):
    """The policy of a single agent, wrapped by itself: the result of `PerAgentSubprocessWrapper(policy)`.

        agents = {name: PerAgentSubprocessWrapper(policy) for name, policy in policies.items()}
        action = agents["red"].step(observation)      # computed in a worker process, where the policy lives

    The policy stays in its worker from the beginning on, so it keeps its state from step to step. To have several
    agents compute at once, call `send` of all of them before `recv` of the first.

    Agents that need processes and are given no `pool` share one pool with as many workers as there are cores. Closing
    the last of these agents closes the pool. A policy that cannot be pickled is computed in this process, with a
    warning.

    Threads: different agents may be used by different threads, and each of them by any thread, one at a time.
    """

    shared: SharedPool | None = field(default=None, repr=False)

    def close(self) -> None:
        """Release the policy, and close the shared pool if no other agent uses it."""
        self.wrapper.close()
        if self.shared is not None:
            self.shared.close()


def standalone(kind: type[PerAgentWrapper], policy: Any, *arguments: Any, **named: Any) -> StandaloneAgent:
    """Wrap the policy of a single agent. All other arguments go to the constructor of `kind`."""
    policies = {_AGENT: policy}
    signature = inspect.signature(kind)
    are_known = named.keys() <= signature.parameters.keys()
    given = signature.bind_partial(policies, *arguments, **named).arguments if are_known else {}
    shared = SharedPool() if "pool" in signature.parameters and given.get("pool") is None else None
    if shared is not None:
        named["pool"] = shared.pool
    try:
        return StandaloneAgent(kind(policies, *arguments, **named), _AGENT, shared)
    except BaseException as error:
        if shared is not None:
            shared.close()
        if not isinstance(error, Unpicklable):
            raise
    warnings.warn(
        f"The policy {policy!r} cannot be pickled, so it is computed in this process. Give a spec "
        "(parallel_envs.policies.PolicySpec) to have it made in the worker.",
        RuntimeWarning,
        stacklevel=user_stacklevel(),
    )
    return StandaloneAgent(PerAgentSequentialWrapper(policies, given.get("rules")), _AGENT)


class SharedPool(ClosedAtExit):
    """A share in the one pool of all `StandaloneAgent`s that were given no pool of their own.

    The first share opens the pool. Closing the last share closes it.

    Threads: any thread may open and close shares.
    """

    _lock: ClassVar[Any] = threading.Lock()
    _current: ClassVar[PolicyPool | None] = None
    _owner_pid: ClassVar[int] = 0  # of the process that opened the pool
    _open: ClassVar[weakref.WeakSet[SharedPool]] = weakref.WeakSet()

    def __init__(self) -> None:
        with self._lock:
            if SharedPool._current is None or SharedPool._current.closed or SharedPool._owner_pid != os.getpid():
                SharedPool._current, SharedPool._owner_pid = PolicyPool(), os.getpid()
                SharedPool._open = weakref.WeakSet()
            self.pool = SharedPool._current
            self._open.add(self)

    def close(self) -> None:
        with self._lock:
            self._open.discard(self)
            is_last = not self._open and SharedPool._current is self.pool
            if is_last:
                SharedPool._current = None
        if is_last:
            self.pool.close()
