"""Measures the ways to run updates on the updates themselves, and keeps the fastest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from parallel_envs.engine import cores_here
from parallel_envs.learners.algorithm import Agent, Plan, UpdateReport
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates.fused import FusedUpdates, alike_agents
from parallel_envs.learners.updates.mode import UpdateMode
from parallel_envs.learners.updates.process import UPDATE_TIMEOUT, ProcessUpdates
from parallel_envs.learners.updates.sequential import SequentialUpdates, ThreadUpdates

_log = logging.getLogger(__name__)

_WORTH_WORKERS = 0.005
"""Seconds that an update of all agents must take, one after another, before threads and processes are tried."""
_WARM, _TRIES = 3, 3
"""Updates of each way that are not measured, as it may have to start or to write down something; and that are."""


class AutoUpdates(UpdateMode):
    """Tries each way that may pay, on full updates: every one of them counts, as all come to the same numbers.

    An update is full if as many agents take part in it as in the largest so far. Others run one after another.

    Args:
        brains, workers, timeout: As for `ProcessUpdates`.
        choice: The way that was kept before, by a run that goes on: nothing is measured.
    """

    name = "auto"

    def __init__(
        self,
        brains: Mapping[Agent, AgentParameters],
        workers: int | None = None,
        timeout: float | None = UPDATE_TIMEOUT,
        choice: str | None = None,
    ) -> None:
        super().__init__(brains)
        self._ways: dict[str, Callable[[], UpdateMode]] = {
            "sequential": lambda: SequentialUpdates(brains),
            "fused": lambda: FusedUpdates(brains),
            "thread": lambda: ThreadUpdates(brains, workers),
            "process": lambda: ProcessUpdates(brains, workers, timeout),
        }
        self._cores = workers or len(cores_here())
        self._waiting: list[str] = []
        self._largest = 0
        self._current: UpdateMode = SequentialUpdates(brains) if choice is None else self._ways[choice]()
        self.seconds: dict[str, list[float]] = {}
        """What each way has taken."""
        self.choice = choice
        """The one that was kept, once all have been tried."""

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        if self.choice is not None:
            return self._current.update(plans)
        if len(plans) < self._largest or not plans:
            return self._unmeasured(plans)
        self._largest = len(plans)
        began = time.perf_counter()
        reports = self._current.update(plans)
        self.seconds.setdefault(self._current.name, []).append(time.perf_counter() - began)
        if len(self.seconds[self._current.name]) >= _WARM + _TRIES:
            self._go_on(plans)
        return reports

    def _unmeasured(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        """One after another, whatever is being measured, which is told: it may keep copies."""
        reports = SequentialUpdates(self.brains).update(plans)
        for agent in plans:
            self._current.changed(agent)
        return reports

    def _go_on(self, plans: Mapping[Agent, Plan]) -> None:
        """Try the next way, or keep the fastest."""
        if self._current.name == "sequential":
            self._waiting = self._worth_trying(plans)
        if self._waiting:
            self._turn_to(self._waiting.pop(0))
            return
        self.choice = min(self.seconds, key=self._typical)
        if self.choice != self._current.name:
            self._turn_to(self.choice)
        _log.info("%s", self.why)

    def _worth_trying(self, plans: Mapping[Agent, Plan]) -> list[str]:
        names = ["fused"] if len(alike_agents(self.brains, plans)) < len(plans) else []
        if len(plans) > 1 and self._cores > 1 and self._typical("sequential") > _WORTH_WORKERS:
            names += ["thread", "process"]
        return names

    def _typical(self, name: str) -> float:
        """The median, without the first ones."""
        measured = sorted(self.seconds[name][_WARM:])
        return measured[len(measured) // 2]

    def _turn_to(self, name: str) -> None:
        self._current.close()
        self._current = self._ways[name]()

    @property
    def is_elsewhere(self) -> bool:  # type: ignore[override]  # here it depends on which way is being taken
        return self._current.is_elsewhere

    @property
    def why(self) -> str:
        if self.choice is None:
            return f"auto: {self._current.name} is being measured"
        if not self.seconds:
            return f"auto: {self.choice} (as it was chosen before)"
        told = ", ".join(f"{name} {self._typical(name) * 1e3:.1f} ms" for name in self.seconds)
        return f"auto: {self.choice} ({told} an update)"

    def changed(self, agent: Agent) -> None:
        self._current.changed(agent)

    def close(self) -> None:
        self._current.close()
