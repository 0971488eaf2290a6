"""A multi-agent environment whose agents leave one by one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.zoo import (
    ManyAgents,
)

NUM_AGENTS = 3


class LeavingAgents(ManyAgents):
    """Agent `i` leaves in step `i + 1`."""

    def __init__(self) -> None:
        super().__init__(NUM_AGENTS)

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert actions.keys() == set(self.agents)
        there, self.agents = self.agents, self.agents[1:]
        ends = {agent: agent not in self.agents for agent in there}
        seen = {agent: self._points[:, 0].repeat(2)[:4] for agent in there}
        return seen, dict.fromkeys(there, 1.0), ends, dict.fromkeys(there, False), {agent: {} for agent in there}
