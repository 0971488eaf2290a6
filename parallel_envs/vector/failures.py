"""From what a worker reported to the exception that the caller gets."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence

from parallel_envs.engine import Death, Failure
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied

_MOST_LINES = 20

RESTART_ADVICE = " Call envs.restart(env_ids) to replace it; on_failure='restart' does so by itself."
RESTARTS_LATER_ADVICE = " Call envs.restart(env_ids) to replace it, or go on: the next step or reset does so by itself."
LATE_ROWS_ADVICE = " After restart(env_ids), step_wait() or reset_wait() waits for them and brings all rows."
WAIT_ADVICE = (
    " Nothing is lost: wait again (reset_wait, step_wait, call_wait or recv), call restart(env_ids) and then wait, or "
    "close the manager."
)


def env_error(failures: Mapping[int, Failure], doing: str) -> EnvError:
    """The error of the first env that raised; the others are told in a note."""
    env, failure = next(iter(sorted(failures.items())))
    text = f"Env {env} raised {failure.type_name} during {doing}: {failure.message}"
    error = _retold(failure, text)
    error.env_ids = tuple(sorted(failures))
    error.__cause__ = failure.origin()
    for other, told in sorted(failures.items())[1:]:
        error.add_note(f"Env {other} raised {told.type_name}: {told.message}")
    return error


def unreadable_result(env: int, error: Exception, doing: str) -> EnvError:
    """The error of an env whose result came, but could not be unpickled."""
    failure = Failure.of(error)
    told = EnvError.retold(
        f"What env {env} returned from the {doing} could not be unpickled here: {failure.type_name}: "
        f"{failure.message}. Return what can be pickled and unpickled, such as numbers, text, lists, dicts and arrays.",
        type_name=failure.type_name,
        remote_message=failure.message,
    )
    assert isinstance(told, EnvError)
    told.env_ids = (env,)
    told.__cause__ = failure.origin()
    return told


def worker_error(failure: Failure, worker: int, envs: Sequence[int], doing: str) -> EnvError:
    """The error of a request that failed in a worker as a whole, so that all of `envs` are in doubt."""
    text = (
        f"Worker {worker} ({env_names(envs)}) raised {failure.type_name} during {doing}, at no single environment: "
        f"{failure.message}"
    )
    error = _retold(failure, text)
    error.env_ids = tuple(envs)
    error.__cause__ = failure.origin()
    return error


def _retold(failure: Failure, text: str) -> EnvError:
    """The EnvError with this text, which is an instance of the type that was raised too where that is safe."""
    error = EnvError.retold(
        text, type_name=failure.type_name, remote_message=failure.message, attributes=failure.attributes
    )
    assert isinstance(error, EnvError)
    return error


def worker_died(death: Death, envs: Sequence[int], doing: str, *, advice: str = "") -> WorkerDied:
    text = f"Worker {death.worker} ({env_names(envs)}, pid {death.pid}) {how_it_ended(death.exitcode)} during {doing}."
    text += _hint(death) + advice
    if lines := telling_lines(death.last_output):
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
        text += f"\nWorker {worker} is here:\n{without_our_own(stack)}"
    return StepTimeout(text, workers=workers, env_ids=envs, seconds=seconds)


def env_names(envs: Sequence[int]) -> str:
    """Such as `env 3`, `envs 4-7` or `envs 1, 5, 6`."""
    if len(envs) == 1:
        return f"env {envs[0]}"
    if len(envs) > 2 and list(envs) == list(range(envs[0], envs[-1] + 1)):
        return f"envs {envs[0]}-{envs[-1]}"
    return f"envs {', '.join(map(str, envs))}"


def telling_lines(output: Sequence[str]) -> Sequence[str]:
    """The lines to show: those at which a crash begins, or else the last ones."""
    crashes = [number for number, line in enumerate(output) if line.startswith("Fatal Python error")]
    start = crashes[-1] if crashes else max(len(output) - _MOST_LINES, 0)
    return output[start : start + _MOST_LINES]


def without_our_own(stack: str) -> str:
    """A worker's stack, without the frames below its loop, which are the same for all."""
    lines = stack.rstrip().splitlines()
    ends = [number for number, line in enumerate(lines) if "engine/worker.py" in line]
    return "\n".join(lines[: ends[0]] if ends else lines)


def how_it_ended(exitcode: int | None) -> str:
    """Such as `was killed by signal 9 (SIGKILL)`."""
    if exitcode is None:
        return "ended"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    try:
        return f"was killed by signal {-exitcode} ({signal.Signals(-exitcode).name})"
    except ValueError:
        return f"was killed by signal {-exitcode}"


def _hint(death: Death) -> str:
    if death.killed:
        return " That was this process: the worker had not answered in time, or was to be replaced."
    match death.exitcode:
        case -9:
            return " The system may be out of memory: use smaller environments, or fewer of them."
        case -11:
            return " Compiled code of the environment crashed: its last output, if any, says where."
        case code if code is not None and code >= 0:
            return " Its code, or a library, ended the process."
    return ""
