"""The errors of failed requests to envs.

Nothing here imports Gymnasium, since managers of other kinds of envs use the errors too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from parallel_envs.engine import Death, Failure
from parallel_envs.engine.worker_group import death_text, without_engine_frames
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied


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
    subject = f"Worker {death.worker} ({env_names(envs)}, pid {death.pid})"
    memory = "use smaller environments, or fewer of them"
    text = death_text(death, subject, doing, memory=memory, advice=advice)
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
