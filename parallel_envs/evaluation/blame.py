"""From an exception to the failure that a record tells."""

from __future__ import annotations

import contextlib
import logging
import signal
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from parallel_envs import engine
from parallel_envs.engine import Death, reraise_ctrl_c
from parallel_envs.evaluation.records import Failure, FailureKind

_log = logging.getLogger(__name__)


class EpisodeEnds(Exception):
    """An episode cannot go on. `failure` says why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@contextlib.contextmanager
def blaming(kind: FailureKind, where: str) -> Iterator[None]:
    """Whatever is raised within ends the episode, by the fault of `kind`. Only the user's Ctrl-C goes its own way."""
    try:
        yield
    except EpisodeEnds:
        raise
    except BaseException as error:  # user code: SystemExit too is a way to fail
        raise ended_by(error, kind, where) from error


@contextlib.contextmanager
def closing(close: Callable[[], Any], what: str) -> Iterator[None]:
    """Close something at the end. What that raises is logged: what was played before stands as it is."""
    try:
        yield
    finally:
        try:
            close()
        except BaseException as error:  # noqa: BLE001  # user code: SystemExit too is a way to fail
            reraise_ctrl_c(error)
            _log.warning("Closing %s raised %s: %s", what, type(error).__name__, error)


def ended_by(error: BaseException, kind: FailureKind, where: str) -> EpisodeEnds:
    """What is to be raised in the place of an exception. The user's Ctrl-C is raised here."""
    reraise_ctrl_c(error)
    return EpisodeEnds(failure_of(error, kind, where))


def failure_of(error: BaseException, kind: FailureKind, where: str) -> Failure:
    """The failure that an exception is."""
    told = engine.Failure.of(error)
    return Failure(
        kind=kind, error_type=told.type_name, message=told.message, traceback=_without_ours(error), where=where
    )


def _without_ours(error: BaseException) -> str:
    """The traceback from where it leaves this package's own frames."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [number for number, frame in enumerate(frames) if "/parallel_envs/evaluation/" in frame.filename]
    skipped = ours[-1] if ours else 0
    text = "".join(traceback.StackSummary.from_list(frames[skipped:]).format())
    return f"Traceback (most recent call last):\n{text}{''.join(traceback.format_exception_only(error))}"


def failure_of_death(death: Death) -> Failure:
    """The failure that a worker's end is."""
    output = "\n".join(death.last_output)
    text = f"The worker that played it (pid {death.pid}) {_how(death.exitcode)}."
    advice = " The system may be out of memory: give fewer jobs." if death.exitcode == -9 else ""
    return Failure(kind="death", error_type="WorkerDied", message=text + advice, traceback=output)


def _how(exitcode: int | None) -> str:
    if exitcode is None:
        return "ended"
    if exitcode >= 0:
        return f"ended with exit code {exitcode}"
    with contextlib.suppress(ValueError):
        return f"was killed by signal {-exitcode} ({signal.Signals(-exitcode).name})"
    return f"was killed by signal {-exitcode}"


def timeout_failure(seconds: float, where: str, stack: str = "") -> Failure:
    """The failure of an episode that takes too long."""
    text = f"The episode took longer than episode_timeout={seconds:g} seconds."
    lines = stack.rstrip().splitlines()
    ends = [number for number, line in enumerate(lines) if "/parallel_envs/engine/" in line]  # the same for all
    told = "\n".join(lines[: ends[0]] if ends else lines)
    return Failure(kind="timeout", error_type="TimeoutError", message=text, traceback=told, where=where)
