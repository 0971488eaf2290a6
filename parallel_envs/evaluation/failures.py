"""From exceptions and dead workers to the `Failure` of an episode record.

with attributed_to("env", "reset"):     an exception ends the episode by the fault of the environment
    env.reset()
"""

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


class EpisodeAborted(Exception):
    """The episode cannot go on. `failure` is the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


@contextlib.contextmanager
def attributed_to(kind: FailureKind, where: str) -> Iterator[None]:
    """Turn any exception into `EpisodeAborted` by the fault of `kind`, except a Ctrl-C of the user."""
    try:
        yield
    except EpisodeAborted:
        raise
    except BaseException as error:  # user code: it may raise SystemExit, too
        raise aborted_by(error, kind, where) from error


@contextlib.contextmanager
def closing(close: Callable[[], Any], what: str) -> Iterator[None]:
    """Call `close` at the end and log what it raises: the numbers of the episode stay valid."""
    try:
        yield
    finally:
        try:
            close()
        except BaseException as error:  # noqa: BLE001  # user code: it may raise SystemExit, too
            reraise_ctrl_c(error)
            _log.warning("Closing %s raised %s: %s", what, type(error).__name__, error)


def aborted_by(error: BaseException, kind: FailureKind, where: str) -> EpisodeAborted:
    """Return the exception to raise instead of `error`. A Ctrl-C of the user is raised here."""
    reraise_ctrl_c(error)
    return EpisodeAborted(failure_of(error, kind, where))


def failure_of(error: BaseException, kind: FailureKind, where: str) -> Failure:
    """Return the failure for an exception. Its traceback begins at the last frame of this package's own code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [number for number, frame in enumerate(frames) if "/parallel_envs/evaluation/" in frame.filename]
    stack = "".join(traceback.StackSummary.from_list(frames[own[-1] if own else 0 :]).format())
    described = engine.Failure.of(error)
    return Failure(
        kind=kind,
        error_type=described.type_name,
        message=described.message,
        traceback=f"Traceback (most recent call last):\n{stack}{''.join(traceback.format_exception_only(error))}",
        where=where,
    )


def failure_of_death(death: Death) -> Failure:
    """Return the failure for an episode whose worker died."""
    code = death.exitcode
    if code is None:
        how = "ended"
    elif code >= 0:
        how = f"ended with exit code {code}"
    else:
        how = f"was killed by signal {-code}"
        with contextlib.suppress(ValueError):
            how += f" ({signal.Signals(-code).name})"
    advice = " The system may be out of memory: give fewer jobs." if code == -9 else ""
    text = f"The worker that played the episode (pid {death.pid}) {how}.{advice}"
    return Failure(kind="death", error_type="WorkerDied", message=text, traceback="\n".join(death.last_output))


def timeout_failure(seconds: float, where: str, stack: str = "") -> Failure:
    """Return the failure for an episode that takes too long. `stack`: the stack of the worker that played it."""
    lines = stack.rstrip().splitlines()
    engine_frames = [number for number, line in enumerate(lines) if "/parallel_envs/engine/" in line]
    own = lines[: engine_frames[0]] if engine_frames else lines  # the frames of the engine are the same in every worker
    text = f"The episode took longer than episode_timeout={seconds:g} seconds."
    return Failure(kind="timeout", error_type="TimeoutError", message=text, traceback="\n".join(own), where=where)
