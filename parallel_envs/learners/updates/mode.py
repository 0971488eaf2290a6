"""The interface of update modes, and the two that compute one agent after another (the reference) or each in a thread.

If two modes disagree, `SequentialUpdates` is right.
"""

from __future__ import annotations

import dataclasses
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from functools import partial
from typing import ClassVar

import torch

from parallel_envs import trace
from parallel_envs.engine import Failure, num_cores
from parallel_envs.errors import RemoteError
from parallel_envs.learners.algorithm import Agent, Plan, UpdateReport, update_one
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.threads import ClosedAtExit, one_torch_thread


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
        self._threads = ThreadPoolExecutor(workers or num_cores(), "learner", one_thread)

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
    began = time.perf_counter()
    try:
        report = update_one(parameters, plan)
    except Exception as error:  # noqa: BLE001  # any error: it is raised after the other agents have learnt
        report = UpdateReport.of_nothing(failure=Failure.of(error))
    return dataclasses.replace(report, times=(began, time.perf_counter()))


def trace_updates(reports: Mapping[Agent, UpdateReport]) -> None:
    """Add updates to the open traces, in a row for each agent. Agents that were computed together have equal times."""
    for agent, report in reports.items():
        if report.times is not None:
            trace.record("update", *report.times, row=f"learner {agent}", steps=report.metrics.get("steps", 0.0))
