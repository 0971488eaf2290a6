"""The steps of an update: the same few lines for one agent and for many in one matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parallel_envs.learners.adam import clip_rows, step_rows
from parallel_envs.learners.algorithm import Algorithm, Metrics, Plan
from parallel_envs.learners.brain import Report
from parallel_envs.learners.parameters import Strip

Flags = npt.NDArray[np.bool_]
Evaluate = Callable[[int], tuple[Tensor, Metrics, Tensor]]
"""From the number of a step to losses, metrics and gradients, a row for each agent."""


def take_steps(
    algorithms: Sequence[Algorithm], plans: Sequence[Plan], strip: Strip, evaluate: Evaluate
) -> list[Report]:
    """Go through the steps of an update: the plans', one for each agent.

    An agent whose loss or gradient is not finite is left out from there on, and put back to where it was at the
    beginning: an update happens as a whole or not at all. What it did cannot be seen in any other row.
    """
    configs, leader = [one.config for one in algorithms], algorithms[0]
    lived: Flags = np.stack([plan.lived for plan in plans], 1)  # [step, agent]: is there anything to learn from?
    rates = [
        config.learning_rate if plan.learning_rate is None else plan.learning_rate
        for config, plan in zip(configs, plans, strict=True)
    ]
    limits = torch.tensor([config.max_grad_norm for config in configs])
    before = strip.clone() if len(lived) > 1 else None
    going, lost = np.ones(len(configs), np.bool_), np.full(len(configs), -1)
    tally = Tally(len(configs))
    for step in range(len(lived)):
        wanted = lived[step] & going
        if not wanted.any():
            continue
        losses, metrics, gradient = evaluate(step)
        with torch.no_grad():
            norms = torch.linalg.vector_norm(gradient, dim=1)
            finite = (losses + norms).isfinite()
            stop = leader.should_stop(metrics)
            go = finite if stop is None else finite & ~stop
            active = wanted & go.numpy()
            lost[wanted & ~finite.numpy()] = step
            going &= active | ~lived[step]
            clip_rows(gradient, norms, limits)
            step_rows(strip, gradient, active.tolist(), rates, configs[0].adam_epsilon)
            taken = torch.from_numpy(active)
            leader.after_step(strip, taken)
            tally.add(taken, {"loss": losses, "gradient_norm": norms, **metrics})
    for row in np.flatnonzero(lost >= 0).tolist():
        if before is not None:
            strip.row(row).copy_from(before.row(row))
    return tally.reports(lost)


class Tally:
    """Sums of metrics over the steps that each agent took."""

    def __init__(self, num_agents: int) -> None:
        self.names: list[str] = []
        self._sums: Any = 0.0
        self._counts = torch.zeros(num_agents)

    def add(self, taken: Tensor, metrics: Metrics) -> None:
        self.names = list(metrics)
        self._sums = self._sums + torch.where(taken, torch.stack(list(metrics.values())), 0.0)
        self._counts += taken

    def reports(self, lost: npt.NDArray[np.intp]) -> list[Report]:
        means = (self._sums / self._counts.clamp(min=1)).T.tolist() if self.names else [[]] * len(lost)
        counts = self._counts.tolist()
        return [
            Report({**dict(zip(self.names, mean, strict=True)), "steps": count})
            if step < 0
            else Report({"steps": 0.0}, f"its loss or its gradient was not finite in step {step + 1} of the update")
            for mean, count, step in zip(means, counts, lost.tolist(), strict=True)
        ]
