"""The interface of an update mode, the loop over the steps of an update that all modes share, and errors of updates."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from parallel_envs.engine import Death, Failure
from parallel_envs.errors import RemoteError, RemoteTraceback, WorkerDied, WorkerTimeout
from parallel_envs.learners.algorithm import Agent, Algorithm, Metrics, Plan, UpdateReport
from parallel_envs.learners.parameters import AgentParameters, ParameterMatrix, clip_rows, step_rows
from parallel_envs.threads import ClosedAtExit
from parallel_envs.vector.recovery import crash_lines, exit_text, without_engine_frames

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
            described = {"loss": losses, "gradient_norm": norms, **metrics}
            names = list(described)
            sums = sums + torch.where(taken, torch.stack(list(described.values())), 0.0)
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


# Activities of a worker, for error texts.
AN_UPDATE, ITS_START = "an update", "its start"

AGAIN = " Another worker takes its place, and the update is made again from the same plan."
GIVEN_UP = (
    " It was the second time in the same update. What was learnt before is kept, and another worker is in its place: "
    "update again, or use another update_mode."
)
STARTED_AGAIN = " Another worker is started in its place."
NOT_STARTED = " It was the second time. What was learnt before is kept; the next update starts another worker."


def worker_died(death: Death, agents: Sequence[Agent], doing: str, advice: str = "") -> WorkerDied:
    """Return the error for a worker that ended unasked."""
    hint = " The system may be out of memory: use fewer workers, or smaller batches." if death.exitcode == -9 else ""
    text = f"{_named(death.worker, death.pid, agents)} {exit_text(death.exitcode)} during {doing}.{hint}{advice}"
    if lines := crash_lines(death.last_output):
        text += "\nIts last output:\n" + "\n".join(f"  {line}" for line in lines)
    return WorkerDied(text, worker=death.worker, pid=death.pid, exitcode=death.exitcode)


def worker_late(
    death: Death, agents: Sequence[Agent], doing: str, seconds: float | None, stack: str, advice: str = ""
) -> WorkerTimeout:
    """Return the error for a worker that missed a deadline and was ended. `stack` shows where the worker hung."""
    text = f"{_named(death.worker, death.pid, agents)} was not done with {doing} within {seconds} seconds"
    text += f" (update_timeout) and was ended.{advice}" if doing == AN_UPDATE else f" and was ended.{advice}"
    if doing == AN_UPDATE:
        text += " If updates do take so long, give a larger update_timeout."
    return WorkerTimeout(f"{text}\nIt was here:\n{without_engine_frames(stack)}", workers=[death.worker])


def _named(worker: int, pid: int, agents: Sequence[Agent]) -> str:
    return f"Worker {worker}, which learns for {list(agents)} (pid {pid}),"


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


def host_error(failure: Failure, agents: Sequence[Agent]) -> RemoteError:
    """Return the error for a worker whose host raised outside of an update."""
    error = RemoteError.named(failure.type_name)(
        f"A worker that learns for {', '.join(map(repr, agents))} raised {failure.type_name}: {failure.message}",
        type_name=failure.type_name,
        remote_message=failure.message,
    )
    error.__cause__ = RemoteTraceback(failure.traceback)
    return error
