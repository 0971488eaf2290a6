"""Agents in a plane whose environment has something to compute.

What is made here travels into workers, so it imports nothing heavy.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from benchmarks.zoo_envs import ManyAgents


class BusyAgents(ManyAgents):
    """`ManyAgents`, each of whose steps takes so many microseconds of a processor, or `waits` for as long."""

    def __init__(self, num_agents: int, microseconds: float, *, waits: bool = False) -> None:
        super().__init__(num_agents)
        self._seconds, self._waits = microseconds * 1e-6, waits

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        end = time.thread_time() + self._seconds
        told = super().step(actions)
        if self._waits:
            time.sleep(self._seconds)
            return told
        while time.thread_time() < end:
            pass
        return told
