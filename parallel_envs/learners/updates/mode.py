"""The interface of update modes, and the two that compute one agent after another (the reference) or each in a thread.

If two modes disagree, `SequentialUpdates` is right.
"""

from __future__ import annotations

import contextlib
import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from parallel_envs.engine import Failure, cores_here
from parallel_envs.errors import RemoteError
from parallel_envs.learners.algorithm import (
    Agent,
    Algorithm,
    Batch,
    Metrics,
    Plan,
    UpdateReport,
    minibatch,
    plan_tensors,
)
from parallel_envs.learners.checkpoint import CARRY
from parallel_envs.learners.parameters import AgentParameters, ParameterMatrix, clip_rows, step_rows
from parallel_envs.threads import ClosedAtExit, one_torch_thread

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

    def abandon(self) -> None:  # most modes cannot do it
        """End, from another thread, an update that does not end by itself."""

    def close(self) -> None:  # most modes hold nothing
        """Release threads and workers of the mode. May be called again."""


class UpdateFailed(RemoteError):
    """Updates of some agents raised. `agents` names them; their numbers are unchanged, and other agents have learnt.

    The error is chained to the first agent's exception, and is an instance of the same type if the type is one of
    Python's own.
    """

    agents: tuple[Agent, ...] = ()

    @classmethod
    def of(cls, failures: Mapping[Agent, Failure]) -> UpdateFailed:
        """Return the error for these agents. Agents that are computed together share one failure."""
        sharing: dict[int, list[Agent]] = {}
        for agent, failure in failures.items():
            sharing.setdefault(id(failure), []).append(agent)
        described = []
        for agents in sharing.values():
            failure, names = failures[agents[0]], ", ".join(map(repr, agents))
            subject = f"Agent {names} has" if len(agents) == 1 else f"Agents {names}, which learn together, have"
            message = failure.message.rstrip(".")
            described.append(f"{subject} not learnt: the update raised {failure.type_name}: {message}.")
        text = f"{' '.join(described)} Their numbers are as they were before; all others have learnt."
        first = next(iter(failures.values()))
        error = cls.named(first.type_name)(text, type_name=first.type_name, remote_message=first.message)
        assert isinstance(error, UpdateFailed)
        error.agents = tuple(failures)
        error.__cause__ = first.origin()
        return error


# ---- one agent after another, or each in a thread --------------------------------------------------------------------


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
    algorithm, module = parameters.algorithm, parameters.module
    with one_torch_thread(), undo_on_error([parameters], parameters.matrix) as before:
        arrays = tensors_of(plan)
        with torch.no_grad():
            data = algorithm.prepare(algorithm.see(module, arrays), arrays)
        carry = data.pop(CARRY, None)
        drawn = plan_tensors(plan)
        gradient = torch.zeros_like(parameters.matrix.weights)
        parameters.layout.bind_gradients(module, gradient)

        def evaluate(step: int) -> tuple[Tensor, Metrics, Tensor]:
            gradient.zero_()
            loss, metrics = algorithm.loss(module, minibatch(data, drawn, step))
            torch.autograd.backward(loss)
            return loss.detach()[None], {name: value[None] for name, value in metrics.items()}, gradient

        (report,) = take_steps([algorithm], [plan], parameters.matrix, before, evaluate)
        return finish_update(parameters, report, arrays, carry)


# ---- parts of an update, for one agent or many -----------------------------------------------------------------------


def tensors_of(plan: Plan) -> Batch:
    """Return the plan's experience as tensors that share the plan's memory."""
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in plan.arrays.items()}


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


def take_steps(
    algorithms: Sequence[Algorithm],
    plans: Sequence[Plan],
    matrix: ParameterMatrix,
    before: ParameterMatrix,
    evaluate: Evaluate,
) -> list[UpdateReport]:
    """Take the steps of an update, with one plan for each agent (row). `before` is a copy of `matrix` as it is now.

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
            step_rows(matrix, gradient, active.tolist(), rates, configs[0].adam_epsilon)
            taken = torch.from_numpy(active)
            leader.after_step(matrix, taken)
            described = {"loss": losses, "gradient_norm": norms, **metrics}
            names = list(described)
            sums = sums + torch.where(taken, torch.stack(list(described.values())), 0.0)
            counts += taken

    # Adam makes non-finite numbers from finite ones only with a learning rate of this size (a step moves a number by a
    # few times the rate), with gradients whose squares overflow, or with an epsilon that is 0 in 32 bits. The check
    # itself takes a quarter of the time of a short update.
    if any(
        rate > 1e30 or config.max_grad_norm > 1e15 or config.adam_epsilon < 1e-30
        for config, rate in zip(configs, rates, strict=True)
    ):
        lost[(lost < 0) & ~matrix.finite().numpy()] = len(lived)
    for row in np.flatnonzero(lost >= 0).tolist():
        matrix.row(row).copy_from(before.row(row))

    reports: list[UpdateReport] = []
    means = (sums / counts.clamp(min=1)).T.tolist() if names else [[]] * len(configs)
    for step, mean, count in zip(lost.tolist(), means, counts.tolist(), strict=True):
        if step < 0:
            reports.append(UpdateReport({**dict(zip(names, mean, strict=True)), "steps": count}))
            continue
        reason = f"its loss or its gradient was not finite in step {step + 1} of the update"
        if step == len(lived):
            reason = "its weights, or what Adam remembers of them, were not finite after the update"
        reports.append(UpdateReport.of_nothing(diverged=reason))
    return reports


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
