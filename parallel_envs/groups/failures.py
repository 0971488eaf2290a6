"""Errors of groups: settings that cannot be used, inputs that cannot be played, environments that broke.

    ParallelEnvsError
    ├── BadSettings    the configuration: every mistake, and where it is (also a ValueError)
    └── BadTurn        an input for `step`; no environment has been touched (also a ValueError)

`EnvFailure` is not an exception: it stands in the entry of an environment that broke, while the other ones go on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parallel_envs.engine import Death, Failure
from parallel_envs.errors import EnvError, ParallelEnvsError, RemoteTraceback, StepTimeout, WorkerDied
from parallel_envs.groups.transport import MAKING, REPLAYING, SENDING, Job
from parallel_envs.settings import BadSettings as BadSettings
from parallel_envs.vector.env_errors import step_timeout, worker_died

__all__ = ["BadSettings", "BadTurn", "EnvFailure"]


_LIMIT_SETTINGS = {
    MAKING: "start_timeout",
    REPLAYING: "reset_timeout or es_manager.step_timeout (a replay has the seconds of a reset and of all its turns)",
    Job.RESET.value: "reset_timeout",
}
"""The setting to raise if an activity needs more time; `step_timeout` for all other activities."""


class BadTurn(ParallelEnvsError, ValueError):
    """An input that cannot be played. `position` is its place in the list of inputs; no input has been played."""

    def __init__(self, text: str, *, position: int | None = None) -> None:
        super().__init__(text)
        self.position = position


@dataclass(frozen=True, slots=True)
class EnvFailure:
    """Report of an environment that broke. Its episode is over; the next `reset` begins a new one as usual.

    kind:
        `error`: its code raised. `death`: its worker died on it, twice. `timeout`: it did not answer in time.
        `diverged`: it was replayed in a fresh worker and came to another state than before.
    doing:
        Its activity at that time: `its turn`, `its reset`, `its construction`, `its replay`, `sending its answer`, ...
        If an environment cannot be constructed, `reset` raises, so there is no entry.
    """

    kind: Literal["error", "death", "timeout", "diverged"]
    env_id: int
    doing: str
    type_name: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return self.message

    def exception(self) -> ParallelEnvsError:
        match self.kind:
            case "timeout":
                return StepTimeout(self.message, env_ids=(self.env_id,))
            case "death":
                return WorkerDied(self.message, worker=-1, pid=-1, exitcode=None, env_ids=(self.env_id,))
        error = EnvError.named(self.type_name)(
            self.message, type_name=self.type_name, remote_message=self.message.partition(f" during {self.doing}: ")[2]
        )
        error.env_ids = (self.env_id,)  # type: ignore[attr-defined]  # `named` makes a subclass of EnvError
        error.__cause__ = RemoteTraceback(self.traceback) if self.traceback else None
        return error


def error_failure(env_id: int, tag: str, doing: str, failure: Failure) -> EnvFailure:
    """Return the failure of an environment that raised."""
    text = f"Env {env_id} ({tag}) raised {failure.type_name} during {doing}: {failure.message}"
    return EnvFailure("error", env_id, doing, failure.type_name, text, failure.traceback)


def death_failure(env_id: int, tag: str, doing: str, death: Death) -> EnvFailure:
    """Return the failure of an environment on which a worker and its replacement died."""
    again = " It was the second worker in this request that died with this environment alone at work."
    text = str(worker_died(death, [env_id], f"{doing} ({tag})", advice=again))
    return EnvFailure("death", env_id, doing, "WorkerDied", text)


def timeout_failure(env_id: int, tag: str, doing: str, seconds: float | None, worker: int, stack: str) -> EnvFailure:
    """Return the failure of an environment that did not answer in time, for which its worker was ended."""
    instead = "let its states be smaller, or " if doing == SENDING else ""
    more = f"{instead}give it more: es_manager.{_LIMIT_SETTINGS.get(doing, 'step_timeout')}"
    advice = f" Its worker was replaced. If {tag!r} needs longer, {more}."
    text = step_timeout(doing, seconds, [worker], [env_id], {worker: stack}, advice=advice)
    return EnvFailure("timeout", env_id, doing, "StepTimeout", str(text))


def divergence_failure(env_id: int, tag: str) -> EnvFailure:
    """Return the failure of an environment whose replay ended in another state."""
    text = (
        f"Env {env_id} ({tag}) came to another state when its actions were replayed from its seed in a fresh worker. "
        "It must draw only from the seed that reset gives it: say uses_global_random = True in its class if it draws "
        "from `random` or `numpy.random`."
    )
    return EnvFailure("diverged", env_id, REPLAYING, "Diverged", text)
