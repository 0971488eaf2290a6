"""Workers that learn and have died, or hang: as errors that name agents, worker and process."""

from __future__ import annotations

from collections.abc import Sequence

from parallel_envs.engine import Death, Reply
from parallel_envs.errors import RemoteError, RemoteTraceback, WorkerDied, WorkerTimeout
from parallel_envs.learners.algorithm import Agent
from parallel_envs.vector.failures import how_it_ended, telling_lines, without_our_own

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
    text = f"{_named(death.worker, death.pid, agents)} {how_it_ended(death.exitcode)} during {doing}.{hint}{advice}"
    if lines := telling_lines(death.last_output):
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
    return WorkerTimeout(f"{text}\nIt was here:\n{without_our_own(stack)}", workers=[death.worker])


def _named(worker: int, pid: int, agents: Sequence[Agent]) -> str:
    return f"Worker {worker}, which learns for {list(agents)} (pid {pid}),"


def remote_error(reply: Reply) -> RemoteError:
    """Code of an algorithm, or of this package, raised in a worker."""
    failure = reply.failure
    assert failure is not None
    error = RemoteError.named(failure.type_name)(
        f"A worker that learns raised {failure.type_name}: {failure.message}",
        type_name=failure.type_name,
        remote_message=failure.message,
    )
    error.__cause__ = RemoteTraceback(failure.traceback)
    return error
