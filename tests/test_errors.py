"""The exception tree as it is drawn, what an error of an environment is, and what it tells."""

from __future__ import annotations

import builtins
import itertools
import multiprocessing
import pickle
import re
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
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
from tests.engine.scripts import run_script

BUILTIN_ERRORS = sorted(
    name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, Exception)
)


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


def test_the_tree_is_as_it_is_drawn_and_every_error_can_be_caught_from_the_top_level() -> None:
    kinds = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    own = {name: kind.__bases__[0].__name__ for name, kind in kinds.items() if issubclass(kind, ParallelEnvsError)}
    assert drawn() == own
    assert {*drawn(), "CollectionInterrupted"} <= set(parallel_envs.__all__)
    assert {*drawn(), "CollectionInterrupted", "RemoteTraceback"} == set(errors.__all__)
    for kind in (WorkerTimeout, StepTimeout):
        assert issubclass(kind, TimeoutError)
        assert issubclass(kind, multiprocessing.TimeoutError)


def test_an_interrupted_collection_is_a_ctrl_c_and_no_error() -> None:
    interrupted = CollectionInterrupted([1, 2])
    assert CollectionInterrupted.__bases__ == (KeyboardInterrupt,)
    assert (interrupted.rollouts, str(interrupted)) == ([1, 2], "2 rollouts were complete")


OWN_ARGUMENTS = {"UnicodeDecodeError", "UnicodeEncodeError", "UnicodeTranslateError", "ExceptionGroup"}


def test_a_remote_error_is_an_instance_of_the_type_it_had() -> None:
    for kind, name in itertools.product((RemoteError, EnvError, PolicyError), BUILTIN_ERRORS):
        error = raised_as(kind, name)
        assert isinstance(error, kind)
        assert isinstance(error, getattr(builtins, name)) or name in OWN_ARGUMENTS
        assert str(error) == "the text"  # a KeyError, too, without quotes
        assert (error.type_name, error.remote_message) == (name, "a message")


def raised_as(kind: type[RemoteError], name: str) -> RemoteError:
    return kind.named(name)("the text", type_name=name, remote_message="a message")


def test_classes_are_joined_once_look_like_their_base_and_never_end_the_program() -> None:
    joined = EnvError.named("ValueError")
    assert joined is EnvError.named("ValueError")
    assert joined is not RemoteError.named("ValueError")
    for name in ("__name__", "__module__", "__doc__"):
        assert getattr(joined, name) == getattr(EnvError, name)
    for name in ("SystemExit", "KeyboardInterrupt", "GeneratorExit", "BaseException"):
        assert not isinstance(raised_as(EnvError, name), SystemExit | KeyboardInterrupt | GeneratorExit)
    for name in ("my_package.errors.ValueError", "print", "int", "", "no such name", "__doc__"):
        assert EnvError.named(name) is EnvError


class TroubledEnv(gymnasium.Env[Any, Any]):
    """Raises what `make` makes, if any, in the method it is told to; with a note and a cause, or plainly."""

    observation_space = gymnasium.spaces.Discrete(2)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, make: Callable[[], BaseException] | None, where: str = "step", plain: bool = False) -> None:
        self.make, self.where, self.plain = make, where, plain
        self._raise_in("init")

    def _raise_in(self, where: str) -> None:
        if where == self.where and self.make is not None:
            error = self.make()
            if self.plain:
                raise error
            if type(error) is not Guarded:
                error.add_note("a note")
            raise error from ValueError("a cause")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self._raise_in("reset")
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> Any:
        self._raise_in("step")
        return 0, 0.0, False, False, {}

    def work(self) -> None:
        self._raise_in("call")


@pytest.fixture(params=["serial", "thread", "process"])
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def step_error(backend: Backend, *raised: Exception | None) -> EnvError:
    """What comes up from a step in which each env raises its error."""
    factories = [
        partial(TroubledEnv, None if error is None else partial(type(error), *error.args), plain=True)
        for error in raised
    ]
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
    shown = "".join(traceback.format_exception(error))
    assert "raise error" in shown  # the traceback of the env is shown as the cause
    assert shown.index("raise error") < shown.index("Env 1 raised ZeroDivisionError")
    assert isinstance(error.__cause__, RemoteTraceback if backend == "process" else ZeroDivisionError)


def test_errors_of_other_envs_stand_in_notes(backend: Backend) -> None:
    error = step_error(backend, ValueError("of env 0"), None, KeyError("of env 2"), IndexError("of env 3"))
    assert isinstance(error, ValueError)
    assert error.env_ids == (0, 2, 3)
    assert error.__notes__ == ["Env 2 raised KeyError: 'of env 2'", "Env 3 raised IndexError: of env 3"]


class TooHot(Exception):
    """Made of other arguments than a text, and not to be made again without them."""

    def __init__(self, degrees: float, *, where: list[str]) -> None:
        super().__init__(f"{degrees} degrees")
        self.degrees, self.where, self.readings = degrees, where, np.arange(3)


class LostFile(FileNotFoundError):
    """Has a builtin base with arguments of its own."""


class Robot:
    class Stuck(RuntimeError):
        """A class within a class."""


class Reduces(Exception):
    """Anything that pickles, copies or tells it would hang or raise."""

    def __reduce__(self) -> Any:
        threading.Event().wait()

    __reduce_ex__ = __copy__ = __deepcopy__ = __reduce__  # type: ignore[assignment]


class Odd(type):
    """A metaclass that answers nothing."""

    def __getattribute__(cls, name: str) -> Any:
        raise RuntimeError(f"nobody asks for {name}")


class OfOddKind(Exception, metaclass=Odd):
    pass


class Slotted(Exception):
    __slots__ = ("degrees",)


class Guarded(Exception):
    """Would run code of its own when something is noted in it."""

    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError("read-only")


class Vital(BaseException):
    pass


def hot() -> TooHot:
    return TooHot(99.5, where=["arm", "leg"])


def with_attribute(value: Any) -> Exception:
    error = Robot.Stuck("attributes")
    error.thing = value  # type: ignore[attr-defined]
    return error


class Hanging:
    """A value that would hang whatever pickles it."""

    __reduce__ = Reduces.__reduce__


OWN: list[tuple[Callable[[], BaseException], type[BaseException]]] = [
    (partial(gymnasium.error.ResetNeeded, "reset me"), gymnasium.error.ResetNeeded),
    (partial(gymnasium.error.InvalidAction, "bad action"), gymnasium.error.InvalidAction),
    (partial(gymnasium.error.AlreadyPendingCallError, "two words", "step"), gymnasium.error.AlreadyPendingCallError),
    (partial(LostFile, "no map"), LostFile),
    (partial(Robot.Stuck, "in the mud"), Robot.Stuck),
    (partial(Reduces, "hangs"), Reduces),
    (partial(with_attribute, {"where": (1, 2.5, None), "seen": np.ones(2)}), Robot.Stuck),
    (hot, TooHot),
]


def odd() -> Exception:
    return OfOddKind("odd")


def of_a_class_that_cannot_be_found(name: str) -> Exception:
    class Local(Exception):
        pass

    renamed: type[Exception] = type("Elsewhere", (Exception,), {"__module__": __name__})
    return Local("local") if name == "local" else renamed("not there")


PLAIN: list[Callable[[], BaseException]] = [
    *(partial(Slotted, "slots"), Guarded, partial(Vital, "not an Exception")),
    partial(UnicodeDecodeError, "utf-8", b"x", 0, 1, "why"),
    partial(ExceptionGroup, "several", [ValueError(1)]),
    lambda: with_attribute(Hanging()),
    partial(ClosedError, "an error of this package"),
    *(odd, partial(of_a_class_that_cannot_be_found, "local"), partial(of_a_class_that_cannot_be_found, "renamed")),
]
PLACES = [("serial", None), ("thread", None), ("process", "fork"), ("process", "spawn"), ("process", "forkserver")]


def seen_in(error: EnvError) -> tuple[Any, ...]:
    """All that has to be the same on every backend."""
    known = {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in vars(error).items()}
    return type(error), str(error), error.args, repr(known)


def errors_of(factories: Sequence[Callable[[], Any]], backend: Any, context: Any) -> list[EnvError]:
    """What each of these envs raises in its first step."""
    with parallel_envs.ParallelEnvManager(factories, backend=backend, context=context, num_workers=1) as envs:
        envs.reset(seed=0)
        caught = []
        for env in range(len(factories)):
            envs.send([0], env_ids=env)
            with pytest.raises(EnvError) as one:
                envs.recv()
            caught.append(one.value)
        return caught


def test_types_of_envs_come_up_as_themselves_on_every_backend() -> None:
    factories = [partial(TroubledEnv, make) for make in [*(make for make, _ in OWN), *PLAIN]]
    told = {place: errors_of(factories, *place) for place in PLACES}
    for (_, kind), error in zip(OWN, told["process", "forkserver"], strict=False):
        assert isinstance(error, kind)
        assert isinstance(error, EnvError)
    for error in told["process", "forkserver"][len(OWN) :]:
        assert type(error) is EnvError, error
    for place, errors_there in told.items():
        assert list(map(seen_in, errors_there)) == list(map(seen_in, told["serial", None])), place
    for error in told["serial", None]:
        assert str(error).startswith(f"Env {error.env_ids[0]} raised {error.type_name} during step: ")


def test_attributes_come_up_with_the_type(backend: str) -> None:
    (error,) = errors_of([partial(TroubledEnv, hot)], backend, None)
    assert isinstance(error, TooHot)
    assert (error.degrees, error.where, error.readings.tolist()) == (99.5, ["arm", "leg"], [0, 1, 2])
    assert error.args == (str(error),)
    assert "a note" in str(error)
    assert "a cause" in "".join(traceback.format_exception(error))
    again = pickle.loads(pickle.dumps(error))
    assert seen_in(again) == seen_in(error)


@pytest.mark.parametrize(("where", "doing"), [("init", "its construction"), ("reset", "reset"), ("call", "call of")])
def test_types_come_up_from_wherever_an_env_may_raise(backend: Any, where: str, doing: str) -> None:
    factory = partial(TroubledEnv, partial(gymnasium.error.InvalidAction, "never"), where)

    def asks_for_all() -> None:
        with parallel_envs.ParallelEnvManager([factory], backend=backend) as envs:
            envs.reset()
            envs.call("work")

    with pytest.raises(gymnasium.error.InvalidAction, match=f"during {doing}.*never") as caught:
        asks_for_all()
    assert isinstance(caught.value, EnvError)
    if where == "init":
        with pytest.raises(gymnasium.error.NameNotFound):
            parallel_envs.ParallelEnvManager([partial(gymnasium.make, "CartPoleee-v1")], backend=backend)


SCRIPT = """
import gymnasium, numpy as np
from parallel_envs import EnvError, ParallelEnvManager

class TooHot(Exception):
    def __init__(self, degrees, where):
        super().__init__(f"{degrees} in {where}")
        self.degrees = degrees

class Env(gymnasium.Env):
    observation_space = action_space = gymnasium.spaces.Discrete(2)
    class Stuck(Exception): pass
    def reset(self, **arguments): return 0, {}
    def step(self, action): raise TooHot(99, "arm") if action else Env.Stuck("in mud")

backends = [{"backend": "serial"}, {"backend": "thread"}]
for settings in [*backends, *({"context": method} for method in ("fork", "spawn", "forkserver"))]:
    with ParallelEnvManager([Env], **settings) as envs:
        for action, kind in ((1, TooHot), (0, Env.Stuck)):
            envs.reset()
            try: envs.step([action])
            except kind as error: print(isinstance(error, EnvError), getattr(error, "degrees", None), error)
"""


def test_types_of_the_users_script_come_up_too(tmp_path: Path) -> None:
    ended = run_script(tmp_path, SCRIPT)
    assert ended.returncode == 0, ended.stderr
    lines = [
        "True 99 Env 0 raised __main__.TooHot during step 1: 99 in arm",
        "True None Env 0 raised __main__.Env.Stuck during step 1: in mud",
    ]
    assert [line.partition(" Call restart")[0] for line in ended.stdout.splitlines()] == lines * 5


def errors_of_every_class() -> list[Exception]:
    found: list[Exception] = [
        ClosedError("closed"),
        WorkerStartError("no start"),
        WorkerTimeout("late", workers=(1,)),
        StepTimeout("late", workers=(1,), env_ids=(2,)),
        WorkerDied("dead", worker=1, pid=2, exitcode=-9),
    ]
    for name in ("NoBuiltin", "ValueError", "KeyError"):
        for kind, attributes in (
            (EnvError, {"env_ids": (3,)}),
            (PolicyError, {"agents": ("a", 2), "actions": {"b": 3}}),
        ):
            found.append(raised_as(kind, name))
            vars(found[-1]).update(attributes)
    return found


def test_an_error_can_travel_on() -> None:
    """A user's own pool, or a cluster's, sends on what its task raised."""
    for error in errors_of_every_class():
        arrived = pickle.loads(pickle.dumps(error))
        assert (type(arrived), str(arrived), vars(arrived)) == (type(error), str(error), vars(error))
