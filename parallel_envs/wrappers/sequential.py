"""One after another, in the caller: the reference that every other strategy must equal."""

from __future__ import annotations

from collections.abc import Mapping

from parallel_envs.wrappers.answers import Agent, Answers, Ask
from parallel_envs.wrappers.local import LocalWrapper


class PerAgentSequentialWrapper(LocalWrapper):
    """Asks one policy after another.

    Threads: any thread may call any method; calls wait for one another. See `PerAgentWrapper`.
    """

    def _begin(self, asks: Mapping[Agent, Ask]) -> Mapping[Agent, Ask]:
        return asks

    def _end(self, token: Mapping[Agent, Ask], deadline: float | None) -> Answers:
        return self._answers(token)
