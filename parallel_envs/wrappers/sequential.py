"""One after another, in the caller: the reference that every other strategy must equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallel_envs.wrappers.base import Agent, Answer, Ask, PerAgentWrapper, Rules, answered
from parallel_envs.wrappers.seats import Seat


class PerAgentSequentialWrapper(PerAgentWrapper):
    """Asks one policy after another."""

    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        super().__init__(policies, rules)
        self._seats = {agent: Seat(policy) for agent, policy in self.policies.items()}
        self._asks: Mapping[Agent, Ask] = {}

    def _begin(self, asks: Mapping[Agent, Ask]) -> None:
        self._asks = asks

    def _end(self, deadline: float | None) -> dict[Agent, Answer]:
        asks, self._asks = self._asks, {}
        return {agent: answered(self._seats[agent], ask) for agent, ask in asks.items()}

    def _ask_seat(self, agent: Agent, method: str, *args: Any) -> Any:
        return getattr(self._seats[agent], method)(*args)
