"""One agent of a wrapper, as a policy of its own."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

from parallel_envs.policies import AgentPolicy
from parallel_envs.wrappers.answers import Agent, Turn
from parallel_envs.wrappers.base import PerAgentWrapper
from parallel_envs.wrappers.rules import Tally


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
