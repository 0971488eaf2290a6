"""The update of one agent by plain autograd: one agent after another (the reference), or each in a thread.

If two modes disagree, `SequentialUpdates` is right.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from parallel_envs.engine import Failure, cores_here
from parallel_envs.learners.algorithm import Agent, Batch, Metrics, Plan, UpdateReport, minibatch, plan_tensors
from parallel_envs.learners.checkpoint import CARRY
from parallel_envs.learners.parameters import AgentParameters, ParameterMatrix
from parallel_envs.learners.updates.mode import UpdateMode, take_steps
from parallel_envs.threads import one_torch_thread


class SequentialUpdates(UpdateMode):
    """Runs the agents' updates in the caller, one after another."""

    name = "sequential"

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        return {agent: try_update(self.all_parameters[agent], plan) for agent, plan in plans.items()}


class ThreadUpdates(UpdateMode):
    """Runs each agent's update in a thread, as many at a time as there are `workers` (by default: cores).

    For networks so large that most of the time is spent inside torch.
    """

    name = "thread"

    def __init__(self, all_parameters: Mapping[Agent, AgentParameters], workers: int | None = None) -> None:
        super().__init__(all_parameters)
        one_thread = partial(torch.set_num_threads, 1)
        self._threads = ThreadPoolExecutor(workers or len(cores_here()) or 1, "learner", one_thread)

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        with one_torch_thread():  # each thread has its own number, but all share the number of the matrix library
            futures = {
                agent: self._threads.submit(try_update, self.all_parameters[agent], own) for agent, own in plans.items()
            }
            try:
                wait(futures.values())
            except BaseException:  # Ctrl-C: no thread may go on writing to parameters that the caller uses
                for future in futures.values():
                    future.cancel()
                wait(futures.values())
                raise
        return {agent: future.result() for agent, future in futures.items()}

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)


def try_update(parameters: AgentParameters, plan: Plan) -> UpdateReport:
    """Update one agent. An exception is returned in the report, because it does not concern other agents."""
    try:
        return update_one(parameters, plan)
    except Exception as error:  # noqa: BLE001  # any error: it is raised after the other agents have learnt
        return UpdateReport.of_nothing(failure=Failure.of(error))


def update_one(parameters: AgentParameters, plan: Plan) -> UpdateReport:
    """Update one agent. If this raises, the agent's numbers are unchanged."""
    with one_torch_thread(), undo_on_error([parameters], parameters.matrix) as before:
        arrays = tensors_of(plan)
        with torch.no_grad():
            data = parameters.algorithm.prepare(parameters.algorithm.see(parameters.module, arrays), arrays)
        carry = data.pop(CARRY, None)
        drawn = plan_tensors(plan)
        gradient = torch.zeros_like(parameters.matrix.weights)
        parameters.layout.bind_gradients(parameters.module, gradient)

        def evaluate(step: int) -> tuple[Tensor, Metrics, Tensor]:
            gradient.zero_()
            loss, metrics = parameters.algorithm.loss(parameters.module, minibatch(data, drawn, step))
            torch.autograd.backward(loss)
            return loss.detach()[None], {name: value[None] for name, value in metrics.items()}, gradient

        (report,) = take_steps([parameters.algorithm], [plan], parameters.matrix, before, evaluate)
        return finish_update(parameters, report, arrays, carry)


@contextlib.contextmanager
def undo_on_error(all_parameters: Sequence[AgentParameters], matrix: ParameterMatrix) -> Iterator[ParameterMatrix]:
    """Restore these parameters, the rows of `matrix`, if the block raises. Yield a copy of `matrix`."""
    before = matrix.clone()
    statistics = [(own, own.clone()) for parameters in all_parameters for own in parameters.statistics.values()]
    try:
        yield before
    except BaseException:
        matrix.copy_from(before)
        with torch.no_grad():
            for own, was in statistics:
                own.copy_(was)
        raise


def tensors_of(plan: Plan) -> Batch:
    """Return the plan's experience as tensors that share the plan's memory."""
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in plan.arrays.items()}


def finish_update(
    parameters: AgentParameters, report: UpdateReport, arrays: Batch, carry: Tensor | None
) -> UpdateReport:
    """Update running statistics if the agent has learnt, and add priorities and recurrent memory to the report."""
    if report.learnt:
        parameters.algorithm.after_update(parameters.module, arrays)
    taught = parameters.algorithm.taught(parameters.module, arrays)
    if taught is not None:
        taught = taught.nan_to_num(0.0, 0.0, 0.0)  # steps that are not finite teach nothing
    described: dict[str, Any] = {
        name: one.numpy().copy() for name, one in (("carry", carry), ("taught", taught)) if one is not None
    }
    return dataclasses.replace(report, **described) if described else report
