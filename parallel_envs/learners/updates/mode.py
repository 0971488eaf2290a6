"""The interface of an update mode, and the loop over the steps of an update that all modes share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from parallel_envs.closing import ClosedAtExit
from parallel_envs.learners.algorithm import Agent, Algorithm, Metrics, Plan, UpdateReport
from parallel_envs.learners.parameters import AgentParameters, ParameterMatrix, clip_rows, step_rows

Evaluate = Callable[[int], tuple[Tensor, Metrics, Tensor]]
"""Function from the number of a step to losses, metrics and gradients, with a row for each agent."""


class UpdateMode(ClosedAtExit, ABC):
    """Runs the updates of some agents. All modes compute the same numbers, up to rounding.

    The parameters belong to the caller and hold the new numbers when `update` returns. A mode may keep copies.
    """

    name: ClassVar[str]
    is_elsewhere: bool = False
    """True if updates run in other processes. Then the parameters change only after an update has succeeded."""

    def __init__(self, all_parameters: Mapping[Agent, AgentParameters]) -> None:
        self.all_parameters = dict(all_parameters)

    @property
    def why(self) -> str:
        """Return the name of this mode, with the reason if the mode was chosen by measuring."""
        return self.name

    @abstractmethod
    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        """Let these agents learn from their plans.

        An exception in an agent's update does not affect other agents: the update is undone, and the agent's report
        holds the exception. Agents that are computed in one pass share the exception.
        """

    def changed(self, agent: Agent) -> None:  # most modes keep no copies
        """Take note that the caller has put other numbers into an agent's parameters."""

    def close(self) -> None:  # most modes hold nothing
        """Release threads and workers of the mode. May be called again."""


def take_steps(
    algorithms: Sequence[Algorithm],
    plans: Sequence[Plan],
    strip: ParameterMatrix,
    before: ParameterMatrix,
    evaluate: Evaluate,
) -> list[UpdateReport]:
    """Take the steps of an update, with one plan for each agent (row). `before` is a copy of `strip` as it is now.

    An agent whose loss or gradient is not finite takes no further steps and gets its numbers back from `before`; so
    does an agent whose numbers are not finite at the end. So an update happens completely or not at all. Other rows are
    not affected.
    """
    configs, leader = [one.config for one in algorithms], algorithms[0]
    lived = np.stack([plan.lived for plan in plans], 1)  # [step, agent]: is there anything to learn from?
    rates = [
        config.learning_rate if plan.learning_rate is None else plan.learning_rate
        for config, plan in zip(configs, plans, strict=True)
    ]
    limits = torch.tensor([config.max_grad_norm for config in configs])
    going, lost = np.ones(len(configs), np.bool_), np.full(len(configs), -1)
    names: list[str] = []
    sums: Any = 0.0
    counts = torch.zeros(len(configs))
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
            told = {"loss": losses, "gradient_norm": norms, **metrics}
            names = list(told)
            sums = sums + torch.where(taken, torch.stack(list(told.values())), 0.0)
            counts += taken

    # Adam makes non-finite numbers from finite ones only with a learning rate of this size (a step moves a number by a
    # few times the rate), with gradients whose squares overflow, or with an epsilon that is 0 in 32 bits. The check
    # itself takes a quarter of the time of a short update.
    may_overflow = any(
        rate > 1e30 or config.max_grad_norm > 1e15 or config.adam_epsilon < 1e-30
        for config, rate in zip(configs, rates, strict=True)
    )
    if may_overflow:
        lost[(lost < 0) & ~strip.finite().numpy()] = len(lived)
    for row in np.flatnonzero(lost >= 0).tolist():
        strip.row(row).copy_from(before.row(row))

    reports: list[UpdateReport] = []
    means = (sums / counts.clamp(min=1)).T.tolist() if names else [[]] * len(configs)
    for step, mean, count in zip(lost.tolist(), means, counts.tolist(), strict=True):
        if step < 0:
            reports.append(UpdateReport({**dict(zip(names, mean, strict=True)), "steps": count}))
        elif step == len(lived):
            reason = "its weights, or what Adam remembers of them, were not finite after the update"
            reports.append(UpdateReport.of_nothing(diverged=reason))
        else:
            reason = f"its loss or its gradient was not finite in step {step + 1} of the update"
            reports.append(UpdateReport.of_nothing(diverged=reason))
    return reports
