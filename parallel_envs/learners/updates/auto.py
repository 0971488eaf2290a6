"""Update modes by name, and the mode that measures the others on real updates and keeps the fastest."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from parallel_envs.engine import num_cores
from parallel_envs.learners.algorithm import Agent, Plan, UpdateReport
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates.fused import FusedUpdates, alike_agents, is_worth_fusing
from parallel_envs.learners.updates.mode import SequentialUpdates, ThreadUpdates, UpdateMode
from parallel_envs.learners.updates.process import UPDATE_TIMEOUT, ProcessUpdates

_log = logging.getLogger(__name__)

_WORTH_WORKERS = 0.005
"""Seconds that a sequential update of all agents must take before threads and processes are tried."""
_WARM, _TRIES = 3, 3
"""Updates of each mode that are not measured, because it may have to start workers or trace, and updates that are."""


class AutoUpdates(UpdateMode):
    """Tries each mode that may be faster, on full updates. No update is wasted, because all modes compute the same.

    An update is full if as many agents take part as in the largest update so far. Smaller updates run sequentially. If
    an earlier part of this run has chosen a mode, `choice`, nothing is measured.
    """

    name = "auto"

    def __init__(
        self,
        all_parameters: Mapping[Agent, AgentParameters],
        workers: int | None = None,
        timeout: float | None = UPDATE_TIMEOUT,
        choice: str | None = None,
    ) -> None:
        super().__init__(all_parameters)
        self._limits = workers, timeout
        self._untried: list[str] = []
        self._largest = 0
        self._current: UpdateMode = MODES[choice or "sequential"](self.all_parameters, *self._limits)
        self.seconds: dict[str, list[float]] = {}
        """Seconds of each update, by mode."""
        self.choice = choice
        """The mode that was kept, once all have been tried."""

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        if self.choice is not None:
            return self._current.update(plans)
        if len(plans) < self._largest or not plans:
            reports = SequentialUpdates(self.all_parameters).update(plans)
            for agent in plans:  # the measured mode may keep copies
                self._current.changed(agent)
            return reports
        self._largest = len(plans)
        began = time.perf_counter()
        reports = self._current.update(plans)
        measured = self.seconds.setdefault(self._current.name, [])
        measured.append(time.perf_counter() - began)
        if len(measured) < _WARM + _TRIES:
            return reports
        if self._current.name == "sequential":
            self._untried = ["fused"] if len(alike_agents(self.all_parameters, plans)) < len(plans) else []
            cores = self._limits[0] or num_cores()
            if len(plans) > 1 and cores > 1 and self._typical("sequential") > _WORTH_WORKERS:
                on_cpu = all(own.matrix.weights.device.type == "cpu" for own in self.all_parameters.values())
                self._untried += ["thread", "process"] if on_cpu else ["thread"]
        if self._untried:
            self._turn_to(self._untried.pop(0))
        else:
            self.choice = min(self.seconds, key=self._typical)
            if self.choice != self._current.name:
                self._turn_to(self.choice)
            _log.info("%s", self.why)
        return reports

    def _typical(self, name: str) -> float:
        """Return the median time of a mode's measured updates."""
        measured = sorted(self.seconds[name][_WARM:])
        return measured[len(measured) // 2]

    def _turn_to(self, name: str) -> None:
        self._current.close()
        self._current = MODES[name](self.all_parameters, *self._limits)

    @property
    def is_elsewhere(self) -> bool:  # type: ignore[override]  # here it depends on the current mode
        return self._current.is_elsewhere

    @property
    def why(self) -> str:
        if self.choice is None:
            return f"auto: {self._current.name} is being measured"
        if not self.seconds:
            return f"auto: {self.choice} (as it was chosen before)"
        described = ", ".join(f"{name} {self._typical(name) * 1e3:.1f} ms" for name in self.seconds)
        return f"auto: {self.choice} ({described} an update)"

    def changed(self, agent: Agent) -> None:
        self._current.changed(agent)

    def close(self) -> None:
        self._current.close()


MODES: dict[str, Callable[..., UpdateMode]] = {
    "sequential": lambda all_parameters, workers=None, timeout=None: SequentialUpdates(all_parameters),
    "thread": lambda all_parameters, workers=None, timeout=None: ThreadUpdates(all_parameters, workers),
    "process": ProcessUpdates,
    "fused": lambda all_parameters, workers=None, timeout=None: FusedUpdates(all_parameters),
    "auto": AutoUpdates,
}
"""Modes by name. Each is called with the parameters by agent, the number of workers or None, and the seconds that a
worker process has for a round of updates or None. Updates in the caller's own process cannot be ended and ignore the
limit."""
EITHER = {f"fused_or_{mode}": mode for mode in ("sequential", "process", "thread")}
"""Names that mean "fused" where fusing is quicker, and this mode elsewhere."""


def mode_for(word: str, all_parameters: Mapping[Agent, AgentParameters]) -> str:
    """Return the mode that an `update_mode` stands for with these parameters. It is the same in every run."""
    if word not in EITHER:
        return word
    return "fused" if is_worth_fusing(all_parameters) else EITHER[word]
