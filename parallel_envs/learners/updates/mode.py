"""What a way to run updates is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar

from parallel_envs.closing import ClosedAtExit
from parallel_envs.learners.algorithm import Agent, Plan, UpdateReport
from parallel_envs.learners.parameters import AgentParameters


class UpdateMode(ClosedAtExit, ABC):
    """Runs the updates of some agents. All modes come to the same numbers, up to rounding.

    The brains belong to the caller, and hold the outcome when `update` returns. A mode may keep copies of its own
    elsewhere.
    """

    name: ClassVar[str]
    is_elsewhere: bool = False
    """Whether updates are made in other processes, and the brains change only when they have been."""

    def __init__(self, brains: Mapping[Agent, AgentParameters]) -> None:
        self.brains = dict(brains)

    @property
    def why(self) -> str:
        """Which mode this is, and why, where it was chosen by measuring."""
        return self.name

    @abstractmethod
    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        """Have these agents learn from their plans.

        What the update of an agent raises concerns nobody else: it is undone, and in the agent's report (in the reports
        of all who are computed in one pass with it).
        """

    def changed(self, agent: Agent) -> None:  # most modes keep no copies
        """The caller has put other numbers into an agent's brain."""

    def close(self) -> None:  # most modes hold nothing
        """Let go of what the mode has started. May be called again."""
