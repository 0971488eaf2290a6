"""One agent after another, each by plain autograd: the reference. If in doubt, this mode is right."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_envs.engine import Failure
from parallel_envs.learners.algorithm import Agent, Batch, Metrics, Plan, UpdateReport, minibatch, plan_tensors
from parallel_envs.learners.checkpoint import CARRY
from parallel_envs.learners.parameters import AgentParameters, ParameterMatrix
from parallel_envs.learners.updates.mode import UpdateMode, take_steps
from parallel_envs.threads import one_torch_thread


class SequentialUpdates(UpdateMode):
    """Every agent's update in the caller, in turn."""

    name = "sequential"

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        return {agent: attempted(self.brains[agent], plan) for agent, plan in plans.items()}


def attempted(brain: AgentParameters, plan: Plan) -> UpdateReport:
    """One agent's update. What it raises is in the report: it is no other agent's concern."""
    try:
        return update_one(brain, plan)
    except Exception as error:  # noqa: BLE001  # whatever it is: it is raised when the others have learnt
        return UpdateReport.of_nothing(failure=Failure.of(error))


def update_one(brain: AgentParameters, plan: Plan) -> UpdateReport:
    """One agent's update. If it raises, the agent's numbers are as they were before."""
    with one_torch_thread(), undoing([brain], brain.matrix) as before:
        arrays = tensors_of(plan)
        with torch.no_grad():
            data = brain.algorithm.prepare(brain.algorithm.see(brain.module, arrays), arrays)
        carry = data.pop(CARRY, None)
        gradient = torch.zeros_like(brain.matrix.weights)
        brain.layout.bind_gradients(brain.module, gradient)
        evaluation = Evaluation(brain, data, plan_tensors(plan), gradient)
        (report,) = take_steps([brain.algorithm], [plan], brain.matrix, before, evaluation)
        return finished(brain, report, arrays, carry)


@contextlib.contextmanager
def undoing(brains: Sequence[AgentParameters], strip: ParameterMatrix) -> Iterator[ParameterMatrix]:
    """What is raised within leaves all numbers of these brains, who live in the rows of `strip`, as they were before.

    Gives a copy of the strip as it was.
    """
    before = strip.clone()
    statistics = [(own, own.clone()) for brain in brains for own in brain.statistics.values()]
    try:
        yield before
    except BaseException:
        strip.copy_from(before)
        with torch.no_grad():
            for own, was in statistics:
                own.copy_(was)
        raise


class Evaluation:
    """Loss and gradient of one agent's minibatches, as rows of one."""

    def __init__(self, brain: AgentParameters, data: Batch, plan: Batch, gradient: Tensor) -> None:
        self.parameters, self.data, self.plan, self.gradient = brain, data, plan, gradient

    def __call__(self, step: int) -> tuple[Tensor, Metrics, Tensor]:
        self.gradient.zero_()
        loss, metrics = self.parameters.algorithm.loss(self.parameters.module, minibatch(self.data, self.plan, step))
        torch.autograd.backward(loss)
        return loss.detach()[None], {name: value[None] for name, value in metrics.items()}, self.gradient


def tensors_of(plan: Plan) -> Batch:
    """What was lived, as tensors that share the plan's memory."""
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in plan.arrays.items()}


def finished(brain: AgentParameters, report: UpdateReport, arrays: Batch, carry: Tensor | None) -> UpdateReport:
    """The end of an update: running statistics, if it came to anything, and what is remembered."""
    if report.learnt:
        brain.algorithm.after_update(brain.module, arrays)
    taught = brain.algorithm.taught(brain.module, arrays)
    if taught is not None:
        taught = taught.nan_to_num(0.0, 0.0, 0.0)  # of what cannot be learnt from, nothing can
    told: dict[str, Any] = {
        name: one.numpy().copy() for name, one in (("carry", carry), ("taught", taught)) if one is not None
    }
    return dataclasses.replace(report, **told) if told else report
