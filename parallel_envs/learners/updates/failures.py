"""Updates that raised, and workers that have died, or hang: as errors that name agents, worker and process."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from parallel_envs.engine import Death, Failure
from parallel_envs.errors import RemoteError, RemoteTraceback, WorkerDied, WorkerTimeout
from parallel_envs.learners.algorithm import Agent
from parallel_envs.vector.recovery import crash_lines, exit_text, without_engine_frames

AN_UPDATE, ITS_START = "an update", "its start"
"""What a worker was doing."""

AGAIN = " Another worker takes its place, and the update is made again from the same plan."
GIVEN_UP = (
    " It was the second time in the same update. What was learnt before is kept, and another worker is in its place: "
    "update again, or use another update_mode."
)
STARTED_AGAIN = " Another worker is started in its place."
NOT_STARTED = " It was the second time. What was learnt before is kept; the next update starts another worker."


def worker_died(death: Death, agents: Sequence[Agent], doing: str, advice: str = "") -> WorkerDied:
    """A worker has ended without having been asked to."""
    hint = " The system may be out of memory: use fewer workers, or smaller batches." if death.exitcode == -9 else ""
    text = f"{_named(death.worker, death.pid, agents)} {exit_text(death.exitcode)} during {doing}.{hint}{advice}"
    if lines := crash_lines(death.last_output):
        text += "\nIts last output:\n" + "\n".join(f"  {line}" for line in lines)
    return WorkerDied(text, worker=death.worker, pid=death.pid, exitcode=death.exitcode)


def worker_late(
    death: Death, agents: Sequence[Agent], doing: str, seconds: float | None, stack: str, advice: str = ""
) -> WorkerTimeout:
    """A worker did not come to the end of something in time, and was ended for it. `stack`: where it was."""
    text = f"{_named(death.worker, death.pid, agents)} was not done with {doing} within {seconds} seconds"
    text += f" (update_timeout) and was ended.{advice}" if doing == AN_UPDATE else f" and was ended.{advice}"
    if doing == AN_UPDATE:
        text += " If updates do take so long, give a larger update_timeout."
    return WorkerTimeout(f"{text}\nIt was here:\n{without_engine_frames(stack)}", workers=[death.worker])


def _named(worker: int, pid: int, agents: Sequence[Agent]) -> str:
    return f"Worker {worker}, which learns for {list(agents)} (pid {pid}),"


class UpdateFailed(RemoteError):
    """Updates of agents raised. `agents` are they: their numbers are as they were before. The others have learnt.

    It is chained to what the first of them raised, and an instance of the same type if that is one of Python's own.
    """

    agents: tuple[Agent, ...] = ()

    @classmethod
    def of(cls, failures: Mapping[Agent, Failure]) -> UpdateFailed:
        """What the updates of these agents raised. Those that are computed together fail together, once."""
        first = next(iter(failures.values()))
        told = [_told(failure, _whose(failure, failures)) for failure in _different(failures.values())]
        text = f"{' '.join(told)} Their numbers are as they were before; all others have learnt."
        error = cls.named(first.type_name)(text, type_name=first.type_name, remote_message=first.message)
        assert isinstance(error, UpdateFailed)
        error.agents = tuple(failures)
        error.__cause__ = first.origin()
        return error


def _different(failures: Iterable[Failure]) -> list[Failure]:
    return list({id(failure): failure for failure in failures}.values())


def _whose(failure: Failure, failures: Mapping[Agent, Failure]) -> list[Agent]:
    return [agent for agent, own in failures.items() if own is failure]


def _told(failure: Failure, agents: Sequence[Agent]) -> str:
    who = f"Agent {agents[0]!r} has" if len(agents) == 1 else f"Agents {_listed(agents)}, who learn together, have"
    return f"{who} not learnt: the update raised {failure.type_name}: {failure.message.rstrip('.')}."


def _listed(agents: Sequence[Agent]) -> str:
    return ", ".join(map(repr, agents))


def host_error(failure: Failure, agents: Sequence[Agent]) -> RemoteError:
    """A worker could not be made ready to learn for these agents."""
    error = RemoteError.named(failure.type_name)(
        f"A worker that learns for {_listed(agents)} raised {failure.type_name}: {failure.message}",
        type_name=failure.type_name,
        remote_message=failure.message,
    )
    error.__cause__ = RemoteTraceback(failure.traceback)
    return error
