"""What goes from the side that collects to the side that learns, and back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.learners.algorithm import Agent, Plan, UpdateReport

Versions = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One agent's next update. An agent's *version* counts the updates that it has attempted."""

    agent: Agent
    plan: Plan = field(repr=False)
    versions: Versions = field(repr=False)
    """Which version acted, for every transition that is learnt from; for replayed ones, which version acts now."""
    version: int
    """The one that the update starts from: the updates of this agent that were planned before."""
    num_fresh: int
    """Steps that the agent has lived since its last plan."""
    num_added: int = 0
    """Steps that had been stored in its replay buffer by then, if it has one."""

    @property
    def lags(self) -> Versions:
        """How many updates each transition is behind."""
        return self.version - self.versions


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What became of a job."""

    job: Job
    report: UpdateReport
    weights: dict[str, Any] = field(repr=False)
    """What acts, as the update has left it: a copy."""
    seconds: float
    """The agent's share of the time that it took."""
