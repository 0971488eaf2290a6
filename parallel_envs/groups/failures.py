"""What can go wrong, as types: settings that cannot be, inputs that make no sense, environments that broke.

    ParallelEnvsError
    ├── BadSettings    the configuration: every mistake, and where it is (also a ValueError)
    └── BadTurn        an input for `step`; no environment has been touched (also a ValueError)

`EnvFailure` is no exception: it is what stands in an environment's entry when it broke, while the others went on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from parallel_envs.engine import Death, Failure
from parallel_envs.errors import EnvError, ParallelEnvsError, RemoteTraceback, StepTimeout, WorkerDied
from parallel_envs.groups.jobs import MAKING, REPLAYING, SENDING, Job
from parallel_envs.vector.recovery import step_timeout, worker_died

__all__ = ["BadSettings", "BadTurn", "EnvFailure"]


_SETTINGS = {
    MAKING: "start_timeout",
    REPLAYING: "reset_timeout or es_manager.step_timeout (a replay has the seconds of a reset and of all its turns)",
    Job.RESET.value: "reset_timeout",
}
"""What is to be raised if it needs longer for that; `step_timeout` for all else."""


class BadSettings(ParallelEnvsError, ValueError):
    """Settings that cannot be used. The text has a line for each mistake, and says where it is."""


class BadTurn(ParallelEnvsError, ValueError):
    """An input that cannot be played. `position` is its place in what was given; nothing of it has been played."""

    def __init__(self, text: str, *, position: int | None = None) -> None:
        super().__init__(text)
        self.position = position


@dataclass(frozen=True, slots=True)
class EnvFailure:
    """How an environment broke. Its episode is over; after the next `reset` it is as good as new.

    kind:
        `error`: its code raised. `death`: its worker died on it, twice. `timeout`: it did not answer in time.
        `diverged`: it was replayed in a fresh worker and came to another state than before.
    doing:
        What it was at: `its turn`, `its reset`, `its construction`, `its replay`, `sending its answer`, ...
        Of an environment that cannot be made, in whichever way, there is no entry after `reset`, which raises.
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
        """The same as an exception."""
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


def of_error(env_id: int, tag: str, doing: str, failure: Failure) -> EnvFailure:
    """An environment raised."""
    text = f"Env {env_id} ({tag}) raised {failure.type_name} during {doing}: {failure.message}"
    return EnvFailure("error", env_id, doing, failure.type_name, text, failure.traceback)


def of_death(env_id: int, tag: str, doing: str, death: Death) -> EnvFailure:
    """A worker died on an environment, and the one that took its place did so too."""
    again = " It was the second worker in this request that died with this environment alone at work."
    told = str(worker_died(death, [env_id], f"{doing} ({tag})", advice=again))
    return EnvFailure("death", env_id, doing, "WorkerDied", told)


def of_lateness(env_id: int, tag: str, doing: str, seconds: float | None, worker: int, stack: str) -> EnvFailure:
    """An environment did not answer in time, and its worker was ended."""
    instead = "let its states be smaller, or " if doing == SENDING else ""
    more = f"{instead}give it more: es_manager.{_SETTINGS.get(doing, 'step_timeout')}"
    advice = f" Its worker was replaced. If {tag!r} needs longer, {more}."
    told = step_timeout(doing, seconds, [worker], [env_id], {worker: stack}, advice=advice)
    return EnvFailure("timeout", env_id, doing, "StepTimeout", str(told))


def of_divergence(env_id: int, tag: str) -> EnvFailure:
    """An environment did not come to the same state again."""
    text = (
        f"Env {env_id} ({tag}) came to another state when its actions were replayed from its seed in a fresh worker. "
        "It must draw only from the seed that reset gives it: say uses_global_random = True in its class if it draws "
        "from `random` or `numpy.random`."
    )
    return EnvFailure("diverged", env_id, REPLAYING, "Diverged", text)
