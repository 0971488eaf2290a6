"""One agent of a wrapper, as a policy of its own."""

from __future__ import annotations

import inspect
import warnings
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from parallel_envs.closing import ClosedAtExit
from parallel_envs.engine import Unpicklable, user_stacklevel
from parallel_envs.policies import AgentPolicy
from parallel_envs.wrappers.answers import Agent, Turn
from parallel_envs.wrappers.base import PerAgentWrapper
from parallel_envs.wrappers.pool import SharedPool
from parallel_envs.wrappers.rules import Tally
from parallel_envs.wrappers.sequential import PerAgentSequentialWrapper


@dataclass
class WrappedAgent(AgentPolicy):
    """`send` and `recv`, or `step` for both. Several agents of one wrapper may be asked before any is waited for."""

    wrapper: PerAgentWrapper
    agent: Agent
    tally: Tally = field(init=False)
    _turns: deque[Turn] = field(default_factory=deque, init=False, repr=False)

    def __post_init__(self) -> None:
        self.tally = self.wrapper.tallies[self.agent]

    def send(self, observation: Any) -> None:
        """Ask this agent."""
        self._turns.append(self.wrapper.ask({self.agent: observation}))

    def recv(self) -> Any:
        """Its action, in the first turn that has not been received yet."""
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
        """What its policy remembers just now."""
        return self.wrapper.get_state(self.agent)

    def set_state(self, state: Any) -> None:
        """Put back what `get_state` has told."""
        self.wrapper.set_state(self.agent, state)

    def load_state_dict(self, weights: Any) -> None:
        """New weights, from its next turn on."""
        self.wrapper.load_state_dict(self.agent, weights)


_AGENT = "agent"
"""What errors call the agent of a policy that was wrapped by itself."""


@dataclass
class StandaloneAgent(WrappedAgent, ClosedAtExit):
    """The policy of a single agent, wrapped by itself: what `PerAgentSubprocessWrapper(policy)` returns.

        agents = {name: PerAgentSubprocessWrapper(policy) for name, policy in policies.items()}
        action = agents["red"].step(observation)      # computed in a worker process, where the policy lives

    The policy lives in its worker from the beginning on, so what it remembers is kept from step to step. To have
    several agents compute at once, call `send` of all of them before `recv` of the first.

    Agents that need processes and are given no `pool` share one of as many workers as there are cores; the last of them
    that is closed closes it. A policy that cannot be pickled is computed in this process, with a warning.

    Threads: different agents may be used by different threads, and each of them by any thread, one at a time.
    """

    shared: SharedPool | None = field(default=None, repr=False)

    def close(self) -> None:
        """Let go of the policy, and of the shared pool if no other agent uses it."""
        self.wrapper.close()
        if self.shared is not None:
            self.shared.close()


def standalone(kind: type[PerAgentWrapper], policy: Any, *arguments: Any, **named: Any) -> StandaloneAgent:
    """Wrap the policy of a single agent. The other arguments are those of the wrapper, `kind`."""
    policies = {_AGENT: policy}
    takes = inspect.signature(kind)
    given = (
        takes.bind_partial(policies, *arguments, **named).arguments if named.keys() <= takes.parameters.keys() else {}
    )
    shared = SharedPool() if "pool" in takes.parameters and given.get("pool") is None else None
    if shared is not None:
        named["pool"] = shared.pool
    try:
        return StandaloneAgent(kind(policies, *arguments, **named), _AGENT, shared)
    except Unpicklable:
        if shared is not None:
            shared.close()
        warnings.warn(
            f"The policy {policy!r} cannot be pickled, so it is computed in this process. Give a spec "
            "(parallel_envs.policies.PolicySpec) to have it made in the worker.",
            RuntimeWarning,
            stacklevel=user_stacklevel(),
        )
        return StandaloneAgent(PerAgentSequentialWrapper(policies, given.get("rules")), _AGENT)
    except BaseException:
        if shared is not None:
            shared.close()
        raise
