"""Arguments that are refused: the error names the argument and its value, no env has moved, nothing is left open."""

from __future__ import annotations

import gc
import os
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs import MultiAgentEnvManager, ParallelEnvManager
from parallel_envs.checks import check_share, check_whole, is_number, is_share, is_whole
from parallel_envs.engine import PoolSettings, unpicklable_part
from parallel_envs.errors import EnvError
from parallel_envs.tasks import KEEP, RESAMPLE, FixedTasks, Task, UniformTasks
from parallel_envs.testing import ScriptedEnv
from tests.vector.conftest import Make, Manager, opened
from tests.vector.small_envs import CountingEnv
from tests.vector.task_envs import UNSET, ByResetTask, Playing
from tests.word_space import WordSpace

LOCK = threading.Lock()
YES = np.array([True] * 3)
Errors = type[Exception] | tuple[type[Exception], ...]


BAD_RESETS: list[tuple[dict[str, Any], Errors, str]] = [
    ({"tasks": [1, 2]}, ValueError, "2 tasks.*3 env"),
    ({"tasks": {1, 2}}, TypeError, "not a list with one task"),
    ({"tasks": np.array(3)}, TypeError, "not a list with one task"),
    ({"tasks": [1], "env_ids": [0, 2]}, ValueError, "1 tasks.*2 env"),
    ({"options": {"tasks": [1]}}, ValueError, "1 tasks.*3 env"),
    ({"options": {"tasks": [1, 2, 3], "reset_mask": np.array([True, False, True])}}, ValueError, "3 tasks.*2 env"),
    ({"tasks": 17}, TypeError, "tasks=17"),
    ({"tasks": "abc"}, TypeError, "tasks='abc'"),
    ({"tasks": {0: 1, 1: 2, 2: 3}}, TypeError, "tasks={0: 1"),
    ({"tasks": KEEP}, TypeError, "tasks=KEEP"),
    ({"tasks": [1, 2, 3], "options": {"tasks": [1, 2, 3]}}, ValueError, "twice"),
    ({"tasks": [1, 2, 3], "options": {"task": 1}}, ValueError, "twice"),
    ({"options": {"tasks": [1, 2, 3], "task": 1}}, ValueError, "twice"),
    ({"tasks": [1, 2, 3], "options": [{"task": 1}, None, None]}, ValueError, "twice"),
    ({"tasks": [1, RESAMPLE, 3]}, ValueError, "RESAMPLE.*task_source"),
    ({"tasks": [1, 2, Task("left", "40")]}, (TypeError, ValueError), "40"),  # type: ignore[arg-type]
    ({"tasks": [1, 2, Task("left", 2**63)]}, (TypeError, ValueError), str(2**63)),
    ({"env_ids": [0], "options": {"task": 1, "reset_mask": YES}}, ValueError, "Both"),
    ({"options": {"reset_mask": [True, False, True]}}, TypeError, "reset_mask.*list"),
    ({"options": {"reset_mask": YES[None]}}, ValueError, r"reset_mask.*\(1, 3\)"),
    ({"options": {"reset_mask": np.array([1, 0, 1])}}, TypeError, "reset_mask.*int64"),
    ({"options": {"reset_mask": ~YES}}, ValueError, "reset_mask.*False"),
    ({"options": "fast"}, TypeError, "options"),
    ({"env_ids": [0, 1], "options": [{}]}, ValueError, "1 options.*2 env"),
    *(({"seed": seed}, (TypeError, ValueError), "seed") for seed in ("1", 1.5, object())),
    ({"seed": [1, 2]}, ValueError, "2 seeds|length=2"),
    ({"env_ids": [0], "seed": [1, 2]}, ValueError, "2 seeds|length=2"),
    ({"env_ids": [0, 9]}, ValueError, "env_ids.*9"),
    ({"env_ids": [1, 1]}, ValueError, "env_ids.*twice"),
    ({"env_ids": []}, ValueError, "env_ids.*empty"),
]

BAD_CALLS: list[tuple[Callable[[Manager], Any], Errors, str]] = [
    (lambda envs: envs.reset(options=[("a", 1)]), (TypeError, ValueError), "options"),  # type: ignore[list-item]
    (lambda envs: envs.set_tasks([1, 2]), ValueError, "2 tasks.*3 env"),
    (lambda envs: envs.set_tasks([1, 2, 3], [0, 1]), ValueError, "3 tasks.*2 env"),
    (lambda envs: envs.set_tasks([1, 2], [0, 7]), ValueError, "7"),
    (lambda envs: envs.set_tasks([1, 2], [0, 0]), ValueError, "twice"),
    (lambda envs: envs.set_tasks([1, RESAMPLE, 3]), ValueError, "RESAMPLE"),
    (lambda envs: envs.set_tasks(5), TypeError, "tasks=5"),  # type: ignore[arg-type]
    (lambda envs: envs.send([0, 0], env_ids=[0, 9]), ValueError, "9"),
    (lambda envs: envs.send([0, 0], env_ids=[0, 0]), ValueError, "0"),
    (lambda envs: envs.send([0, 0, 0], env_ids=[0, 1]), ValueError, "3"),
    (lambda envs: envs.send([0]), ValueError, "1"),
    (lambda envs: envs.call("played", env_ids=[3]), ValueError, "env_ids.*3"),
    (lambda envs: envs.call("played", env_ids=[0, 0]), ValueError, "env_ids.*0"),
    (lambda envs: envs.call("played", env_ids=[0, -3]), ValueError, "env_ids.*-3"),
    (lambda envs: envs.call("played", env_ids=[]), ValueError, "env_ids.*empty"),
    *((partial(Manager.call, name=name), ValueError, name) for name in ("reset", "step", "close")),
    (lambda envs: envs.set_attr("label", ["a"]), ValueError, "1.*3"),
    (lambda envs: envs.set_attr("label", ()), ValueError, "0.*3"),
    (lambda envs: envs.get_attr("lenght"), AttributeError, "lenght"),
    (lambda envs: envs.call("lenght"), AttributeError, "lenght"),
    (lambda envs: envs.apply("label"), TypeError, "fn='label' cannot be called"),  # type: ignore[arg-type]
    (lambda envs: envs.apply(id, timeout=-1), ValueError, "timeout"),
    (lambda envs: envs.apply(id, env_ids=7), ValueError, "7 is not an environment"),
    (lambda envs: envs.step([0, 0, 0], timeout="soon"), (TypeError, ValueError), "soon"),  # type: ignore[arg-type]
]

BAD_REQUESTS: list[tuple[Any, Errors, str]] = [
    ("reset", ValueError, "remote 0.*'reset'|'reset'.*remote 0"),
    (("reset", {}, 3), ValueError, "remote 0.*'reset'|'reset'.*remote 0"),
    (["reset", {}], ValueError, "remote 0.*'reset'|'reset'.*remote 0"),
    (("rest", {}), ValueError, "remote 0.*'rest'|'rest'.*remote 0"),
    ((None, {}), ValueError, "remote 0.*None|None.*remote 0"),
    (("step", None), ValueError, "remote 0.*'action'|'action'.*remote 0"),
    (("get_attr", "length"), ValueError, "remote 0.*'name'|'name'.*remote 0"),
    (("reset", 5), ValueError, "5.* remote 0"),
    (("seed", "x"), ValueError, "'x'.* remote 0"),
    (("step", {"action": "up"}), (TypeError, ValueError), "up|U2"),
    (("get_attr", {"name": "lenght"}), AttributeError, "lenght"),
]

UNPICKLABLE: list[Callable[[Manager], Any]] = [
    lambda envs: envs.reset(tasks=[1, LOCK, 3]),
    lambda envs: envs.reset_async(tasks=[1, Task({"lock": LOCK}, 2), 3]),
    lambda envs: envs.set_tasks([1, LOCK, 3]),
    lambda envs: envs.send_reset(tasks=[1, LOCK, 3]),
    lambda envs: envs.send_reset(options=[{}, {"lock": LOCK}, None]),
    lambda envs: envs.remotes[0].send(("reset", {"task": LOCK})),
]


@pytest.fixture(scope="module", params=["serial", "thread", "process"])
def playing(request: pytest.FixtureRequest) -> Iterator[Manager]:
    with ParallelEnvManager([partial(ByResetTask, 100)] * 3, backend=request.param, num_workers=2) as envs:
        yield envs


def assert_refused(envs: Manager, ask: Callable[[Manager], Any], error: Errors, words: str) -> None:
    """Ask for what is refused. No env may have moved, or have been given anything."""
    envs.reset(tasks=[11, 12, 13])
    envs.step([0, 0, 0])
    before = envs.get_attr("num_given"), envs.get_attr("episode")
    with pytest.raises(error, match=f"(?s){words}"):
        ask(envs)
    assert (envs.get_attr("num_given"), envs.get_attr("episode")) == before
    assert envs.get_tasks() == [11, 12, 13]
    assert envs.step([0, 0, 0])[0][:, [0, 2]].tolist() == [[11, 2], [12, 2], [13, 2]]
    assert envs.reset()[0][:, 0].tolist() == [11, 12, 13]


@pytest.mark.parametrize("ask", [Manager.reset, Manager.reset_async, Manager.send_reset])
def test_bad_resets(playing: Manager, ask: Any) -> None:
    for arguments, error, words in BAD_RESETS:
        assert_refused(playing, partial(ask, **arguments), error, words)


def send(envs: Manager, request: Any) -> None:
    envs.remotes[0].send(request)


def test_bad_calls_and_requests_of_remotes(playing: Manager) -> None:
    for call, error, words in BAD_CALLS:
        assert_refused(playing, call, error, words)
    for request, error, words in BAD_REQUESTS:
        assert_refused(playing, partial(send, request=request), error, words)
    for timeout in (-1, float("nan"), "soon"):
        playing.step_async([0, 0, 0])
        with pytest.raises((ValueError, TypeError), match=str(timeout)):
            playing.step_wait(timeout=timeout)  # type: ignore[arg-type]  # what this is about
        playing.step_wait()


def test_a_negative_seed_is_an_error_of_the_env(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    with pytest.raises(Exception, match="-7"):
        envs.reset(seed=-7)
    envs.reset(seed=0)


def test_what_cannot_travel(make_process: Make) -> None:
    envs = make_process([partial(ByResetTask, 100)] * 3, num_workers=2)
    for ask in UNPICKLABLE:
        assert_refused(envs, ask, TypeError, "lock")


def test_a_task_for_an_env_that_takes_none(make: Make) -> None:
    asked: list[Callable[[Manager], Any]] = [
        lambda envs: envs.reset(tasks=[6, 7]),
        lambda envs: envs.reset(options={"task": 6}),
        lambda envs: envs.set_tasks([6, 7]),
        lambda envs: envs.send_reset(tasks=[6, 7]),
        lambda envs: envs.remotes[1].send(("reset", {"task": 3})),
    ]
    envs = make([ByResetTask, Playing], num_workers=2)
    envs.reset(tasks=[5, KEEP])
    for number, ask in enumerate(asked):
        with pytest.raises(TypeError, match=r"Env 1 .*Playing.*task_setter="):
            ask(envs)
        assert envs.step([0, 0])[0][:, 0].tolist() == [5, UNSET], number


BOX = spaces.Box(-1, 1, (2,), np.float32)
DICT = spaces.Dict(move=BOX, say=spaces.Text(4))

# The action space of three envs, and actions that do not fit it, each with what the error must show.
BAD_ACTIONS: dict[str, tuple[spaces.Space[Any], list[tuple[Any, str]]]] = {
    "box": (
        BOX,
        [
            (np.zeros((2, 2)), r"\(2, 2\).*\(3, 2\)"),
            (np.zeros((3, 5)), r"\(3, 5\).*\(3, 2\)"),
            (np.zeros((2, 3)), r"\(2, 3\).*\(3, 2\)"),
            (np.zeros(2), r"\(2,\).*\(3, 2\)"),
            ([[1, 2], [3], [4, 5]], r"\[3\]"),
        ],
    ),
    "discrete": (
        spaces.Discrete(4),
        [(1, r"\(\).*\(3,\)"), (None, "None"), ("abc", "abc|U3"), ([object(), 1, 2], "object")],
    ),
    "text": (spaces.Text(4), [(("a", "b"), "2.*3"), ("abc", "abc"), (0, "")]),
    "dict": (
        DICT,
        [
            ({"move": np.zeros((3, 2))}, "say"),
            ({"move": np.zeros((3, 1)), "say": ("", "", "")}, r"move.*\(3, 1\)"),
            ({"move": np.zeros((3, 2)), "say": ("", "")}, "say"),
            (np.zeros((3, 2)), "move"),
            ([{"move": [1, 2], "say": ""}] * 2 + [{"say": ""}], r"^Action 2 has no part\['move'\], .*: \{'say'"),
            ([{"move": [1, 2], "say": ""}] * 2 + [None], r"^Action 2 has no part\['move'\], .*: None"),
            ([{"move": [1, 2], "say": ""}], r"^1 action was given for 3 environments \(envs 0-2\): .* one for each"),
            ([], r"^0 actions were given for 3 env"),
        ],
    ),
    "tuple": (spaces.Tuple([BOX, BOX]), [((np.zeros((3, 2)),), "1"), (0, "")]),
}


@pytest.mark.parametrize("name", BAD_ACTIONS)
def test_actions_that_do_not_fit(make: Make, name: str) -> None:
    space, rows = BAD_ACTIONS[name]
    envs = opened(make, [partial(ScriptedEnv, action_space=space)] * 3, num_workers=2)
    for actions, words in rows:
        one_for_all = type(actions) is int and name != "tuple"  # a TypeError as in Gymnasium
        with pytest.raises(TypeError if one_for_all else (ValueError, TypeError), match=f"(?s){words}"):
            envs.step(actions)
        assert envs.get_attr("elapsed") == (0, 0, 0)
    if name == "dict":
        with pytest.raises(ValueError, match=r"^2 actions were given for 1 environments \(env 1\): "):
            envs.send([{"move": [1, 2], "say": ""}] * 2, env_ids=[1])
    envs.action_space.seed(0)
    envs.step(envs.action_space.sample())
    assert envs.get_attr("elapsed") == (1, 1, 1)


TWO = [CountingEnv] * 2
OF_GYMNASIUM = (
    "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation space"
)
BAD_SETTINGS: list[tuple[Any, dict[str, Any], Errors, str]] = [
    (TWO, {"num_workers": 0}, ValueError, "num_workers=0"),
    (TWO, {"num_workers": 3}, ValueError, "num_workers=3.*2"),
    (TWO, {"num_workers": 1.5}, TypeError, r"num_workers=1\.5"),
    (TWO, {"num_workers": True}, TypeError, "num_workers=True"),
    (TWO, {"backend": "proces"}, ValueError, r"backend='proces' is unknown\. Choose .* Did you mean 'process'\?"),
    (TWO, {"context": "forksrv"}, ValueError, r"context='forksrv' is not .* Did you mean 'forkserver'\?"),
    (TWO, {"on_failure": "restrat"}, ValueError, r"on_failure='restrat' is unknown\. .* Did you mean 'restart'\?"),
    (TWO, {"autoreset_mode": "next_step"}, ValueError, r"autoreset_mode='next_step' .* Did you mean 'NextStep'\?"),
    (TWO, {"observation_mode": "diferent"}, ValueError, r"observation_mode='diferent' .* mean 'different'\?"),
    (TWO, {"observation_mode": "other"}, ValueError, re.escape(f"{OF_GYMNASIUM}, actual got other")),
    (TWO, {"observation_mode": (1, 2)}, TypeError, "1"),
    (TWO, {"threads_per_worker": 0}, ValueError, "threads_per_worker=0"),
    (TWO, {"worker_env": "CUDA=0"}, TypeError, "worker_env='CUDA=0' is not a dict of texts"),
    (TWO, {"worker_env": lambda worker: {"CUDA": worker}}, TypeError, r"returned \{'CUDA': 0\} for worker 0"),
    (TWO, {"worker_env": {"A=B": "1"}}, ValueError, "worker_env names the variable 'A=B'"),
    (TWO, {"worker_env": lambda worker: {"": "1"}}, ValueError, "the variable '' with the value '1'"),
    (TWO, {"worker_env": {"A": "x\0y"}}, ValueError, r"the variable 'A' with the value 'x\\x00y'.*NUL"),
    (TWO, {"worker_env": {"A\0": "x"}}, ValueError, r"the variable 'A\\x00'"),
    (TWO, {"worker_env": {}, "backend": "thread"}, ValueError, "backend='thread'"),
    (TWO, {"cpu_affinity": [-1]}, ValueError, r"cpu_affinity=\[-1\]"),
    (TWO, {"cpu_affinity": [100_000]}, (ValueError, OSError), "100000"),
    (TWO, {"num_envs": 3}, ValueError, "num_envs=3"),
    (TWO, {"env_kwargs": {"length": 3}}, ValueError, "length"),
    (TWO, {"infos_list": "yes"}, TypeError, "infos_list='yes'"),
    (TWO, {"preload": "torch"}, TypeError, "preload="),
    (TWO, {"preload": [3]}, ValueError, "preload="),
    (TWO, {"preload": ["a b"]}, ValueError, "preload="),
    (TWO, {"task_source": [1, 2]}, TypeError, r"task_source=\[1, 2\]"),
    (TWO, {"task_source": UniformTasks}, TypeError, "task_source=.*UniformTasks"),
    (TWO, {"task_setter": "reset_task"}, TypeError, "task_setter='reset_task'"),
    ([], {}, ValueError, "empty"),
    (3, {}, TypeError, "3"),
    (CountingEnv, {}, TypeError, "CountingEnv"),
    ([CountingEnv, 7], {}, TypeError, r"\[1\].*7"),
    ([CountingEnv, CountingEnv()], {}, TypeError, r"\[1\].*CountingEnv"),
    ("CartPole-v1", {}, ValueError, "num_envs.*CartPole-v1"),
    ("CartPole-v1", {"num_envs": 0}, ValueError, "num_envs=0"),
    ("NoSuchEnv-v0", {"num_envs": 2}, gym.error.NameNotFound, "write 'package:NoSuchEnv-v0'"),
    ("MiniGrid-Nowhere-v0", {"num_envs": 2}, gym.error.NameNotFound, "write 'minigrid:MiniGrid-Nowhere-v0'"),
    ("mpe2.simple_spread_v3", {"num_envs": 2}, gym.error.NameNotFound, r"PettingZoo's kind.*\.MultiAgentEnv"),
    ("no_such.simple_spread_v3", {"num_envs": 2}, gym.error.NameNotFound, "a module of PettingZoo's kind"),
    ([partial(ScriptedEnv, WordSpace())], {"shared_memory": True}, ValueError, "WordSpace"),
    (
        [partial(ScriptedEnv, spaces.Dict(a=spaces.Discrete(2), b=WordSpace()))],
        {"shared_memory": True},
        ValueError,
        "WordSpace",
    ),
]


def test_bad_settings() -> None:
    for env_fns, settings, error, words in BAD_SETTINGS:
        with pytest.raises(error, match=words):
            ParallelEnvManager(env_fns, **settings)


ARRAYS_FOR = [
    *("backend", "context", "on_failure", "autoreset_mode", "observation_mode", "cpu_affinity", "num_envs"),
    *("step_timeout", "reset_timeout", "start_timeout", "restart_window", "max_restarts", "threads_per_worker"),
    *("num_workers", "copy", "shared_memory", "env_kwargs", "task_source", "task_setter"),
]


def test_an_array_is_no_setting() -> None:
    for name in ARRAYS_FOR:
        settings: dict[str, Any] = {"backend": "serial", name: np.ones(3) / 2}
        with pytest.raises((TypeError, ValueError), match=name):
            ParallelEnvManager(TWO, **settings)


def test_settings_of_a_pool_and_of_other_managers() -> None:
    with pytest.raises(ValueError, match=r"backend='thred' is unknown\. .* Did you mean 'thread'\?"):
        PoolSettings(backend="thred")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"context='frok' is not a start method\. .* Did you mean 'fork'\?"):
        PoolSettings(context="frok")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="infos_list"):
        MultiAgentEnvManager([CountingEnv], backend="serial", infos_list=True)  # type: ignore[call-arg]


def open_memory() -> int:
    """How many blocks of shared memory this process holds a descriptor of."""
    gc.collect()
    return sum("memfd:parallel_envs" in os.path.realpath(link) for link in Path("/proc/self/fd").iterdir())


def test_a_manager_that_is_refused_leaves_nothing_open(make: Make) -> None:
    before = open_memory()
    for settings in ({"task_source": FixedTasks([1])}, {"restart_window": -1}):
        with pytest.raises((TypeError, ValueError), match=r"Env 1 .*Playing.*task_setter=|restart_window"):
            make([ByResetTask, Playing], num_workers=2, **settings)
        assert open_memory() == before


def test_factories_and_setters_that_cannot_be_pickled_are_named_by_part(make_process: Make) -> None:
    lock = threading.Lock()

    def make_locked() -> CountingEnv:
        with lock:
            return CountingEnv()

    def setter(env: Any, task: Any) -> None:
        with lock:
            env.task = task

    class Holding(CountingEnv):
        padlock = threading.Lock()

    for context in (None, "forkserver", "spawn"):
        with pytest.raises(TypeError, match=r"env_fns\[1\].*'lock'.*context='fork'.*backend='thread'"):
            make_process([CountingEnv, make_locked], context=context)
    with pytest.raises(TypeError, match=r"env_fns\[0\].*length.*lock"):
        make_process([partial(CountingEnv, length=lock)])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"setter.*'lock'.*thread\.lock"):
        make_process([ByResetTask] * 2, task_setter=setter)
    assert unpicklable_part(Holding, "it") == "it.padlock (a _thread.lock)"
    with pytest.raises(TypeError, match=r"env_fns\[0\]\.padlock .*Make it inside .* in the environment's __init"):
        make_process([Holding])
    for backend in ("serial", "thread"):  # where nothing is pickled it works
        assert make_process([make_locked] * 2, backend=backend).reset(seed=0)[0].tolist() == [[0, 0], [0, 0]]


class Locked(CountingEnv):
    """Its metadata cannot be pickled. A worker imports it by its name, so that it is made all the same."""

    metadata = {"render_modes": [], "lock": threading.Lock()}  # noqa: RUF012  # Gymnasium's own form


def local_kind() -> type[CountingEnv]:
    class Base(CountingEnv):
        metadata: dict[str, Any] = {"lock": threading.Lock()}  # noqa: RUF012  # Gymnasium's own form

    class Local(Base):
        """As a class of the user's script it travels by value, its bases too."""

    return Local


def test_metadata_that_cannot_be_pickled_are_named(make_process: Make) -> None:
    advice = r"metadata\['lock'\] \(a _thread\.lock\) cannot be pickled.*Leave it out of metadata .*__init__"
    with pytest.raises(EnvError, match=advice):
        make_process([Locked])
    where = r"env_fns\[0\] -> base class 'Base'\.metadata\['lock'\] \(a _thread\.lock\) cannot be pickled"
    with pytest.raises(TypeError, match=rf"{where}.* Leave it out of metadata .*backend='thread'"):
        make_process([local_kind()])
    assert make_process([Locked], backend="serial").metadata["lock"] is Locked.metadata["lock"]


def test_numbers_are_finite_and_no_flags() -> None:
    numbers: list[Any] = [0, -3, 2.5, 10**400, np.int8(3), np.float32(0.5), np.float64(-1.0)]
    others: list[Any] = [True, np.True_, "1", None, [1.0], np.zeros(1), 1j, float("nan"), np.float32("inf")]
    assert all(map(is_number, numbers))
    assert not any(map(is_number, others))
    assert [is_whole(value) for value in (3, np.int64(-3), 3.0, True, "3")] == [True, True, False, False, False]
    assert [is_share(value) for value in (0, 1, 0.3, -0.1, 1.1, float("nan"), True)] == [True] * 3 + [False] * 4
    check_whole("size", 3)
    check_share("alpha", 1)
    with pytest.raises(TypeError, match=r"^size=3\.0 is not a whole number\.$"):
        check_whole("size", 3.0)
    with pytest.raises(ValueError, match=r"^alpha=1\.5 is not a number from 0 to 1"):
        check_share("alpha", 1.5)
    with pytest.raises(TypeError, match=r"^alpha='x' is not a number\.$"):
        check_share("alpha", "x")
