"""What a worker sees of the process that asked for it, and what it does not take from it."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import threadpoolctl

from parallel_envs.engine import WorkerPool, open_pool
from parallel_envs.engine.child_setup import THREAD_VARIABLES
from tests.engine.asking import host, run, settings_of, value_of
from tests.engine.conftest import Open
from tests.engine.hosted import Echo, links

CORES = sorted(os.sched_getaffinity(0))


@pytest.fixture
def open_any_file(tmp_path: Path) -> Iterator[int]:
    """An inheritable descriptor of a file."""
    fd = os.open(tmp_path / "held_by_the_asker", os.O_CREAT | os.O_RDWR)
    os.set_inheritable(fd, True)
    yield fd
    os.close(fd)


def test_surroundings_are_those_of_now(open_processes: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Environment, working folder, import path, and arguments longer than a command line can be."""
    (tmp_path / "only_here.py").write_text("import os\ndef whereabouts(): return os.getpid(), __file__\n")
    arguments = ["train.py", *(f"data/file_{number:080d}.json" for number in range(5000))]
    monkeypatch.setenv("SET_AFTER_THE_SUPERVISOR_BEGAN", "yes \N{SNOWMAN}")
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", arguments)
    monkeypatch.syspath_prepend(tmp_path)
    import only_here  # type: ignore[import-not-found]

    pool = open_processes()
    seen = run(pool, lambda: dict(os.environ))
    assert seen["SET_AFTER_THE_SUPERVISOR_BEGAN"] == "yes \N{SNOWMAN}"
    assert "HOME" not in seen
    assert run(pool, lambda: os.popen("echo $SET_AFTER_THE_SUPERVISOR_BEGAN").read()) == "yes \N{SNOWMAN}\n"
    assert run(pool, os.getcwd) == str(tmp_path)
    assert run(pool, lambda: list(sys.argv)) == arguments
    assert run(pool, only_here.whereabouts) == (pool.pid(0), str(tmp_path / "only_here.py"))
    assert run(pool, lambda: __import__("sys").path) == sys.path
    monkeypatch.setenv("SET_LATER", "1")
    assert "SET_LATER" not in run(pool, lambda: dict(os.environ))
    del sys.modules["only_here"]


def test_a_working_folder_may_be_gone(open_processes: Open, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    pool = open_processes()
    monkeypatch.undo()
    assert run(pool, os.getpid) == pool.pid(0)


def in_a_child() -> Any:
    import multiprocessing

    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(abs, (-3,))


def test_a_worker_is_a_process_apart(open_processes: Open) -> None:
    """It has a group of its own, no terminal, no handler of the asker's, and may start processes itself."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: None)
    try:
        pool = open_processes(2)
        assert run(pool, lambda: signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert run(pool, in_a_child) == 3
    groups = [run(pool, os.getpgrp, worker=worker) for worker in (0, 1)]
    assert groups == [pool.pid(0), pool.pid(1)]
    assert os.getpgrp() not in groups
    assert run(pool, lambda: os.read(0, 1)) == b""
    assert run(pool, lambda: os.system("exit 3")) == 3 << 8  # its own children can be waited for
    key = host(pool, Echo)
    os.kill(pool.pid(0), signal.SIGINT)  # Ctrl-C is the asker's
    assert value_of(pool, pool.ring(key, 7)) == 7


def test_a_worker_holds_no_line_of_its_siblings(open_processes: Open) -> None:
    pool = open_processes(3)
    for kind in ("pipe:", "socket:"):
        holders = Counter(link for worker in (0, 1, 2) for link in run(pool, links, kind, worker=worker))
        assert holders
        assert set(holders.values()) <= {1, 3}  # a worker's own, or common to all


def test_a_fresh_interpreter_holds_no_file_of_the_askers(open_any_file: int) -> None:
    pool = open_pool(1, settings_of("spawn"))
    assert not [link for link in run(pool, links, "/") if "held_by_the_asker" in link]
    pool.close()


def test_numeric_libraries_are_capped_and_the_asker_is_not(open_processes: Open) -> None:
    before = (dict(os.environ), threadpoolctl.threadpool_info())
    pool = open_processes(threads=2)
    seen = run(pool, lambda names: [os.environ[name] for name in names], THREAD_VARIABLES)
    assert seen == ["2"] * len(THREAD_VARIABLES)
    assert blas_threads(pool) == {2}
    assert blas_threads(open_processes(threads=1)) == {1}
    assert (dict(os.environ), threadpoolctl.threadpool_info()) == before


def blas_threads(pool: WorkerPool) -> set[int]:
    def in_the_worker() -> set[int]:
        import numpy as np
        import threadpoolctl

        np.ones((2, 2)) @ np.ones((2, 2))
        return {library["num_threads"] for library in threadpoolctl.threadpool_info()}

    found: set[int] = run(pool, in_the_worker)
    return found


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_without_a_cap_the_variables_are_the_askers(open_processes: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    seen = run(open_processes(threads=None), lambda: dict(os.environ))
    assert seen["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in seen


@pytest.mark.skipif(len(CORES) < 2, reason="one core is one thread in any case")
@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_without_a_cap_the_libraries_do_as_they_are_told(open_processes: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREAD_VARIABLES:
        monkeypatch.setenv(name, "2")
    assert blas_threads(open_processes(threads=None)) == {2}


@pytest.mark.parametrize("method", ["fork", "forkserver"])
def test_cores_are_given_out_in_turn_and_can_be_changed(open_processes: Open) -> None:
    def cores() -> list[list[int]]:
        return [sorted(run(pool, os.sched_getaffinity, 0, worker=worker)) for worker in pool.all_workers]

    pool = open_processes(4, affinity=[[CORES[0]], [CORES[-1]], CORES])
    assert cores() == [[CORES[0]], [CORES[-1]], CORES, [CORES[0]]]
    pool.keep_on(2, CORES[:1])
    assert cores() == [[CORES[0]], [CORES[-1]], [CORES[0]], [CORES[0]]]
    pool.close()
    pool, own = open_processes(1, niceness=3), os.getpriority(os.PRIO_PROCESS, 0)
    assert cores() == [CORES]
    assert run(pool, os.getpriority, os.PRIO_PROCESS, 0) == min(own + 3, 19)
