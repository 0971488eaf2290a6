"""The exception tree as it is drawn, what an error of an environment is, and what it tells."""

from __future__ import annotations

import builtins
import multiprocessing
import pickle
import re
import traceback
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

import parallel_envs
from parallel_envs import errors
from parallel_envs.choices import Backend
from parallel_envs.errors import (
    ClosedError,
    CollectionInterrupted,
    EnvError,
    ParallelEnvsError,
    PolicyError,
    RemoteError,
    RemoteTraceback,
    StepTimeout,
    WorkerDied,
    WorkerStartError,
    WorkerTimeout,
)

BUILTIN_ERRORS = sorted(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
)

# ---- the tree ------------------------------------------------------------------------------------


def drawn() -> dict[str, str]:
    """The tree in the module's docstring: each name with the one that it hangs from."""
    assert errors.__doc__ is not None
    branch: list[str] = []
    tree = {}
    for line in errors.__doc__.splitlines():
        if match := re.match(r"(?P<indent>[ │]*(├── |└── )?)(?P<name>[A-Z][A-Za-z]+)(  +|$)", line):
            depth = len(match["indent"]) // 4
            branch[depth - 1 :] = [match["name"]]
            tree[match["name"]] = branch[-2] if len(branch) > 1 else "Exception"
    return tree


def test_the_tree_is_as_it_is_drawn() -> None:
    assert drawn() == {
        name: kind.__bases__[0].__name__
        for name, kind in vars(errors).items()
        if isinstance(kind, type) and issubclass(kind, ParallelEnvsError)
    }


def test_every_error_can_be_caught_from_the_top_level() -> None:
    assert {*drawn(), "CollectionInterrupted"} <= set(parallel_envs.__all__)
    assert {*drawn(), "CollectionInterrupted", "RemoteTraceback"} == set(errors.__all__)


def test_an_interrupted_collection_is_a_ctrl_c_and_no_error() -> None:
    assert "CollectionInterrupted" not in drawn()
    assert CollectionInterrupted.__bases__ == (KeyboardInterrupt,)
    interrupted = CollectionInterrupted([1, 2])
    assert (interrupted.rollouts, str(interrupted)) == ([1, 2], "2 rollouts were complete")


def test_a_timeout_is_the_timeout_of_python_and_of_multiprocessing() -> None:
    for kind in (WorkerTimeout, StepTimeout):
        assert issubclass(kind, TimeoutError)
        assert issubclass(kind, multiprocessing.TimeoutError)


def test_errors_tell_what_they_know() -> None:
    died = WorkerDied("worker 3 died", worker=3, pid=77, exitcode=-9)
    assert (str(died), died.worker, died.pid, died.exitcode) == ("worker 3 died", 3, 77, -9)
    late = StepTimeout("too late", workers=[1, 2], env_ids=[4, 5])
    assert (str(late), late.workers, late.env_ids) == ("too late", (1, 2), (4, 5))
    assert (WorkerTimeout("late").workers, StepTimeout("late").env_ids) == ((), ())
    remote = RemoteError("it said no", type_name="KeyError", remote_message="'no'")
    assert (str(remote), remote.type_name, remote.remote_message) == ("it said no", "KeyError", "'no'")
    assert EnvError("no", type_name="E", remote_message="").env_ids == ()
    assert PolicyError("no", type_name="E", remote_message="").agents == ()


# ---- joined with Python's own --------------------------------------------------------------------

OWN_ARGUMENTS = {"UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup"}


@pytest.mark.parametrize("name", BUILTIN_ERRORS)
@pytest.mark.parametrize("kind", [RemoteError, EnvError, PolicyError])
def test_a_remote_error_is_an_instance_of_the_type_it_had(kind: type[RemoteError], name: str) -> None:
    error = raised_as(kind, name)
    assert isinstance(error, kind)
    assert isinstance(error, getattr(builtins, name)) or name in OWN_ARGUMENTS
    assert str(error) == "the text"
    assert (error.type_name, error.remote_message) == (name, "a message")


def raised_as(kind: type[RemoteError], name: str) -> Exception:
    try:
        return kind.named(name)("the text", type_name=name, remote_message="a message")
    except TypeError as error:
        return error


@pytest.mark.parametrize("name", ["SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException"])
def test_what_would_end_the_program_does_not(name: str) -> None:
    error = raised_as(EnvError, name)
    assert isinstance(error, Exception)
    assert not isinstance(error, SystemExit | KeyboardInterrupt | GeneratorExit)


@pytest.mark.parametrize("name", ["my_package.errors.ValueError", "print", "int", "", "no such name", "__doc__"])
def test_other_names_are_joined_with_nothing(name: str) -> None:
    assert EnvError.named(name) is EnvError


def test_joined_classes_are_made_once_and_look_like_their_base() -> None:
    joined = EnvError.named("ValueError")
    assert joined is EnvError.named("ValueError")
    assert joined is not RemoteError.named("ValueError")
    assert (joined.__name__, joined.__module__, joined.__doc__) == (
        EnvError.__name__,
        EnvError.__module__,
        EnvError.__doc__,
    )


def test_a_key_error_is_told_without_quotes() -> None:
    assert str(raised_as(EnvError, "KeyError")) == "the text"


# ---- from an environment to the caller -----------------------------------------------------------


class RaisingEnv(gymnasium.Env[Any, Any]):
    """Raises in its first step what it was told to."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        if self.error is not None:
            raise self.error
        return 0, 0.0, False, False, {}


@pytest.fixture(params=["serial", "thread", "process"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def step_error(backend: Backend, *raised: Exception | None) -> EnvError:
    """What comes up from a step in which each env raises its error."""
    factories = [partial(RaisingEnv, error) for error in raised]
    with parallel_envs.ParallelEnvManager(factories, backend=backend, num_workers=min(2, len(raised))) as envs:
        envs.reset(seed=0)
        with pytest.raises(EnvError) as caught:
            envs.step(np.zeros(len(raised), int))
        return caught.value.with_traceback(None)


def test_an_env_error_names_the_env_and_what_it_raised(backend: Backend) -> None:
    error = step_error(backend, None, ZeroDivisionError("by nothing"))
    assert isinstance(error, ZeroDivisionError)
    assert re.match(r"Env 1 raised ZeroDivisionError during step 1: by nothing", str(error))
    assert (error.env_ids, error.type_name, error.remote_message) == ((1,), "ZeroDivisionError", "by nothing")
    assert not hasattr(error, "__notes__")


def test_errors_of_other_envs_stand_in_notes(backend: Backend) -> None:
    error = step_error(backend, ValueError("of env 0"), None, KeyError("of env 2"), IndexError("of env 3"))
    assert isinstance(error, ValueError)
    assert error.env_ids == (0, 2, 3)
    assert error.__notes__ == ["Env 2 raised KeyError: 'of env 2'", "Env 3 raised IndexError: of env 3"]
    shown = "".join(traceback.format_exception(error))
    assert "of env 2" in shown
    assert "of env 3" in shown


def test_the_traceback_of_the_env_is_shown_as_the_cause(backend: Backend) -> None:
    error = step_error(backend, ValueError("told there"))
    shown = "".join(traceback.format_exception(error))
    assert "raise self.error" in shown
    assert shown.index("raise self.error") < shown.index("Env 0 raised ValueError")
    assert isinstance(error.__cause__, RemoteTraceback if backend == "process" else ValueError)


def test_the_text_of_a_remote_traceback_begins_on_a_line_of_its_own() -> None:
    assert str(RemoteTraceback("Traceback ...")) == "\nTraceback ..."


def test_an_env_that_cannot_decode_says_so() -> None:
    assert "utf-8" in _said_by_an_env_that_cannot_decode()


def _said_by_an_env_that_cannot_decode() -> str:
    try:
        b"\xff".decode()
    except UnicodeDecodeError as error:
        raised = error.with_traceback(None)
    with parallel_envs.ParallelEnvManager([partial(RaisingEnv, raised)], backend="serial") as envs:
        envs.reset(seed=0)
        try:
            envs.step(np.zeros(1, int))
        except (EnvError, TypeError) as error:
            return str(error)
    return ""


# ---- travelling ----------------------------------------------------------------------------------


def every_error() -> Iterator[Any]:
    yield pytest.param(ClosedError("closed"), id="ClosedError")
    yield pytest.param(WorkerStartError("no start"), id="WorkerStartError")
    yield pytest.param(WorkerTimeout("late", workers=(1,)), id="WorkerTimeout")
    yield pytest.param(StepTimeout("late", workers=(1,), env_ids=(2,)), id="StepTimeout")
    yield pytest.param(WorkerDied("dead", worker=1, pid=2, exitcode=-9), id="WorkerDied")
    for name in ("NoBuiltin", "ValueError", "KeyError"):
        error = EnvError.named(name)("no", type_name=name, remote_message="m")
        error.__dict__["env_ids"] = (3,)
        yield pytest.param(error, id=f"EnvError of {name}")
        of_policy = PolicyError.named(name)("no", type_name=name, remote_message="m")
        assert isinstance(of_policy, PolicyError)
        of_policy.agents, of_policy.actions = ("a", 2), {"b": 3}
        yield pytest.param(of_policy, id=f"PolicyError of {name}")


@pytest.mark.parametrize("error", list(every_error()))
def test_an_error_can_travel_on(error: Exception) -> None:
    """A user's own pool, or a cluster's, sends on what its task raised."""
    arrived = travelled(error)
    assert type(arrived) is type(error)
    assert str(arrived) == str(error)
    assert vars(arrived) == vars(error)


def travelled(error: Exception) -> Any:
    try:
        return pickle.loads(pickle.dumps(error))
    except (TypeError, pickle.PicklingError) as refused:
        return refused
