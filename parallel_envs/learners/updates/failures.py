"""Errors of updates: an update raised, or a worker died, hung or could not start. Each names agents, worker and pid."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parallel_envs.engine import Death, Failure
from parallel_envs.errors import RemoteError, RemoteTraceback, WorkerDied, WorkerTimeout
from parallel_envs.learners.algorithm import Agent
from parallel_envs.vector.recovery import crash_lines, exit_text, without_engine_frames

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
        told = []
        for agents in sharing.values():
            failure, names = failures[agents[0]], ", ".join(map(repr, agents))
            subject = f"Agent {names} has" if len(agents) == 1 else f"Agents {names}, which learn together, have"
            message = failure.message.rstrip(".")
            told.append(f"{subject} not learnt: the update raised {failure.type_name}: {message}.")
        text = f"{' '.join(told)} Their numbers are as they were before; all others have learnt."
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
