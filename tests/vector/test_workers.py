"""What a worker process is to the envs that live in it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs import MultiAgentEnvManager, ParallelEnvManager
from parallel_envs.engine import START_METHODS
from parallel_envs.errors import WorkerDied
from parallel_envs.tasks import CycleTasks
from parallel_envs.testing.scripted_agents import ScriptedAgentsEnv, Stay
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import CountingEnv


def exit_code_of_a_child(env: Any) -> int | None:
    child = multiprocessing.get_context("fork").Process(target=sys.exit, args=(7,))
    child.start()
    child.join()
    return child.exitcode


def test_settings_of_processes_reach_them_and_envs_may_start_children(make_process: Make) -> None:
    cores = sorted(os.sched_getaffinity(0))
    envs = make_process([CountingEnv] * 3, cpu_affinity=[cores[:1], cores], threads_per_worker=2, daemon=True)
    assert envs.apply(lambda env: os.sched_getaffinity(0)) == [{cores[0]}, set(cores), {cores[0]}]
    assert envs.apply(lambda env: os.environ.get("OMP_NUM_THREADS")) == ["2"] * 3
    assert envs.apply(exit_code_of_a_child) == [7] * 3
    assert make_process([CountingEnv]).apply(lambda env: os.environ.get("OMP_NUM_THREADS")) == ["1"]


@pytest.mark.parametrize("context", ["forkserver", "fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_each_worker_has_its_own_variables_also_after_a_restart(make_process: Make, context: Any) -> None:
    def variable(env: Any) -> str:
        return os.environ["GPU"] + os.environ.get("HOME", "")

    class SeesAtConstruction(CountingEnv):
        def __init__(self) -> None:
            super().__init__()
            self.gpu = os.environ["GPU"]

    home = os.environ.get("HOME", "")
    own = {"worker_env": lambda worker: {"GPU": str(worker % 2)}, "context": context, "num_workers": 3}
    envs = opened(make_process, [SeesAtConstruction] * 4, **own)
    expected = [f"{gpu}{home}" for gpu in (0, 0, 1, 0)]
    for _ in range(2):
        assert envs.apply(variable) == expected
        assert envs.get_attr("gpu") == ("0", "0", "1", "0")
        envs.restart()
    assert "GPU" not in os.environ


def test_large_infos_arguments_and_results_come_whole(make_process: Make) -> None:
    class LargeEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], {"blob": np.full(3_000_000, self.elapsed, np.uint8)}

    envs = opened(make_process, [LargeEnv] * 2)
    for number in (1, 2):
        blob = envs.step([0, 0])[4]["blob"]
        assert (blob.shape, blob.min(), blob.max()) == ((2, 3_000_000), number, number)
    value = np.arange(2_000_000)
    assert all(np.array_equal(result, value) for result in envs.apply(lambda env, value: value, value))


STATE: dict[str, Any] = {"label": "of this module", "lock": threading.Lock()}


class Inheriting(CountingEnv):
    """Tells what its factory was when it was made."""

    def __init__(self, told: Any) -> None:
        super().__init__(100)
        self.told = told

    def set_task(self, task: Any) -> None:
        self.told = task


class Holding:
    """A factory that nobody can pickle or copy."""

    def __init__(self, file: Any) -> None:
        self.file, self.lock, self.numbers = file, threading.Lock(), iter(range(10, 20))
        self.label = "as at first"

    def __call__(self) -> Inheriting:
        with self.lock, STATE["lock"]:
            return Inheriting((os.getpid(), id(self), next(self.numbers), self.label, STATE["label"], self.file.tell()))

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise AssertionError("it was pickled")


@pytest.fixture
def holding(tmp_path: Path) -> Iterator[Holding]:
    with (tmp_path / "log").open("w", encoding="utf-8") as file:
        file.write("three")
        file.flush()  # else each worker would write it, too, when it asks where the file stands
        yield Holding(file)


def test_workers_forked_from_the_caller_have_its_factories_as_they_are(
    make_process: Make, holding: Holding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(STATE, "label", "changed")
    envs = make_process([holding] * 3, num_workers=2, context="fork")
    first, second, third = envs.get_attr("told")
    assert first[1:] == third[1:] == (id(holding), 10, "as at first", "changed", 5)
    assert second[1:3] == (id(holding), 11)  # in the worker of the first one
    assert len({first[0], third[0], os.getpid()}) == 3
    assert next(holding.numbers) == 10


def test_a_worker_that_replaces_one_inherits_them_as_they_are_by_then(make_process: Make, holding: Holding) -> None:
    envs = opened(make_process, [holding] * 2, context="fork", on_failure="restart")
    before = envs.get_attr("told")
    holding.label = "as of late"
    os.kill(before[0][0], signal.SIGKILL)
    assert envs.step([0, 0])[4]["worker_restarted"].tolist() == [True, False]
    replaced, untouched = envs.get_attr("told")
    assert untouched == before[1]
    assert replaced[0] != before[0][0]
    assert replaced[1:4] == (id(holding), 10, "as of late")
    envs.restart(1)
    assert envs.get_attr("told")[1][3] == "as of late"


def test_setters_of_tasks_and_factories_of_agents_are_inherited_too(make_process: Make) -> None:
    lock = threading.Lock()

    def set_task(env: Any, task: Any) -> None:
        with lock:
            env.unwrapped.set_task(task)

    settings: dict[str, Any] = {"task_setter": set_task, "task_source": CycleTasks([1, 2, 3], seed=7)}
    envs = make_process([partial(Inheriting, 0)] * 2, context="fork", **settings)
    threads = ParallelEnvManager([partial(Inheriting, 0)] * 2, backend="thread", **settings)
    with threads:
        for seed in (0, 1):
            told = [one.reset(seed=seed)[1]["task_id"].tolist() for one in (envs, threads)]
            assert told[0] == told[1]
            assert envs.get_attr("told") == threads.get_attr("told")
    envs.restart(0)
    envs.step(np.zeros(2, int))

    def make_agents() -> Any:
        with lock:
            return ScriptedAgentsEnv([{"a": Stay(3)}])

    with MultiAgentEnvManager([make_agents] * 2, context="fork") as agents:
        agents.reset(seed=0)


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[int]]]:
    """A module `counted_module` that notes who imports it. The function says which processes have."""
    notes = tmp_path / "imports"
    (tmp_path / "counted_module.py").write_text(
        f"import os\nvalue = os.getpid()\nwith open({str(notes)!r}, 'a') as notes:\n    notes.write(f'{{value}}\\n')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield lambda: [int(line) for line in notes.read_text().split()]
    sys.modules.pop("counted_module", None)


def imported_by(env: Any) -> tuple[int, int]:
    return os.getpid(), sys.modules["counted_module"].value


@pytest.mark.parametrize("method", [*START_METHODS, "thread", "serial"])
def test_modules_are_imported_once_where_workers_are_forked(method: str, counted: Callable[[], list[int]]) -> None:
    with ParallelEnvManager([CountingEnv] * 2, preload=["counted_module"], **METHODS[method]) as envs:
        told = envs.apply(imported_by)
        workers, importers = {pid for pid, _ in told}, {pid for _, pid in told}
        assert set(counted()) == importers
        if method == "spawn":
            assert (importers, len(counted())) == (workers, 2)
        elif method == "forkserver":
            assert len(importers) == 1
            assert not importers & {*workers, os.getpid()}
        else:
            assert importers == {os.getpid()}
        if method in START_METHODS:
            envs.restart(1)
            envs.reset(seed=0)
            assert len(counted()) == (3 if method == "spawn" else 1)


BROKEN: list[tuple[str, type[ImportError], str]] = [
    ("import not_there_at_all", ModuleNotFoundError, "ModuleNotFoundError: No module named 'not_there_at_all'"),
    ("raise ValueError('on purpose')", ImportError, "ValueError: on purpose"),
    ("raise SystemExit(3)", ImportError, "SystemExit: 3"),
]
METHODS: dict[str, dict[str, Any]] = {
    **{method: {"context": method} for method in START_METHODS},
    **{backend: {"backend": backend} for backend in ("thread", "serial")},
}


@pytest.mark.parametrize("method", METHODS)
def test_a_module_that_cannot_be_imported_is_named(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for number, (text, kind, told) in enumerate(BROKEN):
        name = f"broken_{method}_{number}"
        (tmp_path / f"{name}.py").write_text(text)
        with pytest.raises(kind) as caught:
            ParallelEnvManager([CountingEnv] * 2, preload=("json", name), **METHODS[method])
        assert f"the module {name!r} could not be imported in" in str(caught.value)
        assert told in str(caught.value)
        assert (type(caught.value), caught.value.name) == (kind, name)
    with pytest.raises(ModuleNotFoundError, match=r"preload=\('numpyy',\).*no module 'numpyy'.*Did you mean 'numpy'"):
        ParallelEnvManager([CountingEnv], preload=("numpyy",), **METHODS[method])


def test_an_import_that_ends_its_process_ends_the_worker_that_needs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make_process: Make
) -> None:
    (tmp_path / "crashing_module.py").write_text("import os\nos._exit(7)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("crashing_module", None)
    with pytest.raises(WorkerDied, match="exit code 7 during its construction"):
        make_process([CountingEnv], preload=("crashing_module",))
