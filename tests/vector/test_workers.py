"""What a worker process is to the envs that live in it."""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import Any

import numpy as np
import pytest

from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv


class CuriousEnv(CountingEnv):
    """Tells what it sees around it."""

    def threads(self) -> str | None:
        return os.environ.get("OMP_NUM_THREADS")

    def cores(self) -> set[int]:
        return os.sched_getaffinity(0)

    def folder(self) -> str:
        return os.getcwd()  # noqa: PTH109  as the env sees it

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def exit_code_of_a_child(self) -> int | None:
        child = multiprocessing.get_context("fork").Process(target=sys.exit, args=(7,))
        child.start()
        child.join()
        return child.exitcode


def test_numeric_libraries_have_one_thread_unless_asked_otherwise(make_process: Make) -> None:
    assert make_process([CuriousEnv]).call("threads") == ("1",)
    assert make_process([CuriousEnv], threads_per_worker=2).call("threads") == ("2",)


def test_cores_are_given_out_in_turn(make_process: Make) -> None:
    core = min(os.sched_getaffinity(0))
    envs = make_process([CuriousEnv] * 2, cpu_affinity=[core])
    assert envs.call("cores") == ({core}, {core})


def test_sets_of_cores_are_given_out_in_turn(make_process: Make) -> None:
    cores = sorted(os.sched_getaffinity(0))
    envs = make_process([CuriousEnv] * 3, cpu_affinity=[cores[:1], cores])
    assert envs.call("cores") == ({cores[0]}, set(cores), {cores[0]})


@pytest.mark.parametrize("daemon", [True, False])
def test_envs_may_start_children(make_process: Make, daemon: bool) -> None:
    assert make_process([CuriousEnv], daemon=daemon).call("exit_code_of_a_child") == (7,)


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_a_worker_sees_the_surroundings_of_its_maker(
    make_process: Make, context: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SEEN_BY_ENVS", "yes")
    envs = make_process([CuriousEnv], context=context)
    assert envs.call("folder") == (str(tmp_path),)
    assert envs.call("variable", "SEEN_BY_ENVS") == ("yes",)


def test_large_observations_and_infos_come_whole(make_process: Make) -> None:
    class LargeEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            observation, reward, terminated, truncated, _ = super().step(action)
            return observation, reward, terminated, truncated, {"blob": np.full(3_000_000, self.elapsed, np.uint8)}

    envs = make_process([LargeEnv] * 2)
    envs.reset(seed=0)
    for number in (1, 2):
        blob = envs.step(np.zeros(2, int))[4]["blob"]
        assert (blob.shape, blob.min(), blob.max()) == ((2, 3_000_000), number, number)


def test_large_arguments_and_results_come_whole(make_process: Make) -> None:
    class EchoEnv(CountingEnv):
        def echo(self, value: Any) -> Any:
            return value

    value = np.arange(2_000_000)
    assert all(np.array_equal(result, value) for result in make_process([EchoEnv] * 2).call("echo", value))
