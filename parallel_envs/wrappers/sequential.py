"""One after another, in the caller: the reference that every other strategy must equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from parallel_envs.wrappers.base import Agent, Answer, Ask, LocalWrapper, Rules, answered


class PerAgentSequentialWrapper(LocalWrapper):
    """Asks one policy after another."""

    def __init__(self, policies: Mapping[Agent, Any], rules: Rules | None = None) -> None:
        super().__init__(policies, rules)
        self._asks: Mapping[Agent, Ask] = {}

    def _begin(self, asks: Mapping[Agent, Ask]) -> None:
        self._asks = asks

    def _end(self, deadline: float | None) -> dict[Agent, Answer]:
        asks, self._asks = self._asks, {}
        return {agent: answered(self._seats[agent], ask) for agent, ask in asks.items()}
