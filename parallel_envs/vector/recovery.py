"""The errors of failed requests, and the budget of restarts.

Nothing here imports Gymnasium, since managers of other kinds of envs use the errors too.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Mapping, Sequence

from parallel_envs.engine import Death, Failure
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied

_MOST_LINES = 20

# ---- errors ----------------------------------------------------------------------------------------------------------


def env_names(envs: Sequence[int]) -> str:
    """Return envs as a text for messages, such as `env 3`, `envs 4-7` or `envs 1, 5, 6`."""
    if len(envs) == 1:
        return f"env {envs[0]}"
    if len(envs) > 2 and list(envs) == list(range(envs[0], envs[-1] + 1)):
        return f"envs {envs[0]}-{envs[-1]}"
    return f"envs {', '.join(map(str, envs))}"


def env_error(failures: Mapping[int, Failure], doing: str) -> EnvError:
    """Return the error of the first env that raised. Notes on the error report the other envs."""
    (env, failure), *others = sorted(failures.items())
    text = f"Env {env} raised {failure.type_name} during {doing}: {failure.message}"
    error = _env_error(text, failure, tuple(sorted(failures)))
    for other, its_failure in others:
        error.add_note(f"Env {other} raised {its_failure.type_name}: {its_failure.message}")
    return error


def unreadable_result(env: int, error: Exception, doing: str) -> EnvError:
    """Return the error of an env whose result arrived but could not be unpickled."""
    failure = Failure.of(error)
    text = (
        f"What env {env} returned from the {doing} could not be unpickled here: {failure.type_name}: "
        f"{failure.message}. Return what can be pickled and unpickled, such as numbers, text, lists, dicts and arrays."
    )
    return _env_error(text, failure, (env,), with_attributes=False)


def worker_error(failure: Failure, worker: int, envs: Sequence[int], doing: str) -> EnvError:
    """Return the error of a request that failed in a worker as a whole: any of `envs` may have caused it."""
    text = (
        f"Worker {worker} ({env_names(envs)}) raised {failure.type_name} during {doing}, at no single environment: "
        f"{failure.message}"
    )
    return _env_error(text, failure, tuple(envs))


def _env_error(text: str, failure: Failure, envs: tuple[int, ...], with_attributes: bool = True) -> EnvError:
    """Return an EnvError that is also an instance of the type that was raised, where that is safe."""
    attributes = failure.attributes if with_attributes else None
    error = EnvError.retold(text, type_name=failure.type_name, remote_message=failure.message, attributes=attributes)
    assert isinstance(error, EnvError)
    error.env_ids = envs
    error.__cause__ = failure.origin()
    return error


def worker_died(death: Death, envs: Sequence[int], doing: str, *, advice: str = "") -> WorkerDied:
    text = f"Worker {death.worker} ({env_names(envs)}, pid {death.pid}) {exit_text(death.exitcode)} during {doing}."
    if death.killed:
        text += " That was this process: the worker had not answered in time, or was to be replaced."
    elif death.exitcode == -9:
        text += " The system may be out of memory: use smaller environments, or fewer of them."
    elif death.exitcode == -11:
        text += " Compiled code of the environment crashed: its last output, if any, says where."
    elif death.exitcode is not None and death.exitcode >= 0:
        text += " Its code, or a library, ended the process."
    text += advice
    if lines := crash_lines(death.last_output):
        text += "\nIts last output:\n" + "\n".join(f"  {line}" for line in lines)
    return WorkerDied(text, worker=death.worker, pid=death.pid, exitcode=death.exitcode, env_ids=envs)


def step_timeout(
    doing: str,
    seconds: float | None,
    workers: Sequence[int],
    envs: Sequence[int],
    stacks: Mapping[int, str],
    *,
    advice: str = "",
) -> StepTimeout:
    text = f"{env_names(envs).capitalize()} did not answer within {seconds} seconds during {doing}.{advice}"
    for worker, stack in stacks.items():
        text += f"\nWorker {worker} is here:\n{without_engine_frames(stack)}"
    return StepTimeout(text, workers=workers, env_ids=envs, seconds=seconds)


def crash_lines(output: Sequence[str]) -> Sequence[str]:
    """Return the lines of a worker's output to show: from the start of its last crash, else the last lines."""
    crashes = [number for number, line in enumerate(output) if line.startswith("Fatal Python error")]
    start = crashes[-1] if crashes else max(len(output) - _MOST_LINES, 0)
    return output[start : start + _MOST_LINES]


def without_engine_frames(stack: str) -> str:
    """Return a worker's stack without the frames up to the worker loop, which are the same in all workers. The stack of
    a process has the most recent call first, that of a thread has it last.
    """
    lines = stack.rstrip().splitlines()
    engine = [number for number, line in enumerate(lines) if "engine/worker.py" in line]
    if not engine:
        return "\n".join(lines)
    if any("most recent call first" in line for line in lines[: engine[0]]):
        return "\n".join(lines[: engine[0]])
    frames = [number for number, line in enumerate(lines) if number > engine[-1] and line.startswith("  File ")]
    return "\n".join(lines[frames[0] :] if frames else lines)


def exit_text(exitcode: int | None) -> str:
    """Return how a process ended as a text, such as `was killed by signal 9 (SIGKILL)`."""
    if exitcode is None:
        return "ended"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    try:
        return f"was killed by signal {-exitcode} ({signal.Signals(-exitcode).name})"
    except ValueError:
        return f"was killed by signal {-exitcode}"


# ---- restarts --------------------------------------------------------------------------------------------------------


class RestartBudget:
    """Allows at most `limit` restarts of each worker within `window` seconds. The seconds in which a deadline ran out
    do not count. Otherwise an env that hangs at every step would be restarted for ever if the deadline is longer than
    `window / limit`.
    """

    def __init__(self, limit: int, window: float) -> None:
        self.limit, self.window = limit, window
        self._times: dict[int, deque[float]] = {}

    def spend(self, worker: int, now: float, waited: float = 0.0) -> bool:
        """Take one restart. Return False if none is left. `waited`: the seconds for which the worker has just hung."""
        times = self._times[worker] = deque(one + waited for one in self._times.get(worker, ()))
        while times and now - times[0] > self.window:
            times.popleft()
        if len(times) >= self.limit:
            return False
        times.append(now)
        return True
