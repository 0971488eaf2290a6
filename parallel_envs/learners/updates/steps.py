"""The steps of an update: the same few lines for one agent and for many in one matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from parallel_envs.learners.algorithm import Algorithm, AlgorithmConfig, Metrics, Plan, UpdateReport
from parallel_envs.learners.parameters import ParameterMatrix, clip_rows, step_rows

Flags = npt.NDArray[np.bool_]
Evaluate = Callable[[int], tuple[Tensor, Metrics, Tensor]]
"""From the number of a step to losses, metrics and gradients, a row for each agent."""


def take_steps(
    algorithms: Sequence[Algorithm],
    plans: Sequence[Plan],
    strip: ParameterMatrix,
    before: ParameterMatrix,
    evaluate: Evaluate,
) -> list[UpdateReport]:
    """Go through the steps of an update: the plans', one for each agent. `before`: a copy of what `strip` is now.

    An agent whose loss or gradient is not finite is left out from there on, and put back to where it was at the
    beginning, as is one whose numbers are not finite at the end: an update happens as a whole or not at all. What it
    did cannot be seen in any other row.
    """
    configs, leader = [one.config for one in algorithms], algorithms[0]
    lived: Flags = np.stack([plan.lived for plan in plans], 1)  # [step, agent]: is there anything to learn from?
    rates = [
        config.learning_rate if plan.learning_rate is None else plan.learning_rate
        for config, plan in zip(configs, plans, strict=True)
    ]
    limits = torch.tensor([config.max_grad_norm for config in configs])
    bold = any(_may_overflow(config, rate) for config, rate in zip(configs, rates, strict=True))
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
    if bold:  # to look costs as much as a quarter of a short update
        lost[(lost < 0) & ~strip.finite().numpy()] = len(lived)
    for row in np.flatnonzero(lost >= 0).tolist():
        strip.row(row).copy_from(before.row(row))
    return tally.reports([_reason(step, len(lived)) for step in lost.tolist()])


def _may_overflow(config: AlgorithmConfig, rate: float) -> bool:
    """Whether Adam may make of finite numbers and gradients what is not finite.

    A step moves a number by no more than a few times its rate, so it takes a rate of this size, squares of gradients
    that no number can hold, or an epsilon that is 0 as a number of 32 bits.
    """
    return rate > 1e30 or config.max_grad_norm > 1e15 or config.adam_epsilon < 1e-30


def _reason(step: int, num_steps: int) -> str | None:
    """Why an agent has not learnt, by the step in which it was lost; below 0: it was not."""
    if step < 0:
        return None
    if step == num_steps:
        return "its weights, or what Adam remembers of them, were not finite after the update"
    return f"its loss or its gradient was not finite in step {step + 1} of the update"


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

    def reports(self, diverged: Sequence[str | None]) -> list[UpdateReport]:
        means = (self._sums / self._counts.clamp(min=1)).T.tolist() if self.names else [[]] * len(diverged)
        counts = self._counts.tolist()
        return [
            UpdateReport({**dict(zip(self.names, mean, strict=True)), "steps": count})
            if reason is None
            else UpdateReport.of_nothing(diverged=reason)
            for mean, count, reason in zip(means, counts, diverged, strict=True)
        ]
