"""An env that forks has one worker still, and the arrays are written by nobody else.

A process forked from the caller's is refused all that its managers do, and spoils nothing of it.
"""

from __future__ import annotations

import gc
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.choices import StartMethod
from tests.engine.asking import in_fork, refusal
from tests.engine.scripts import run_script
from tests.gates import Gate
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import ClosingEnv, CountingEnv, GatedEnv

ENDLESS = partial(CountingEnv, 100)


class Forking(CountingEnv):
    """Forks in each step; the other process raises, or goes on. The reward tells with which status that one ended."""

    def __init__(self, status: int | None) -> None:
        super().__init__(100)
        self.status = status

    def step(self, action: Any) -> Any:
        pid = os.fork()
        if pid == 0:
            if self.status is not None:
                sys.exit(self.status)
            return np.array([9, 9]), 9.0, False, False, {"astray": 1}
        result = super().step(action)
        return result[0], float(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])), *result[2:]


def test_what_it_forked_ends_as_it_wished_and_answers_nothing(make_process: Make) -> None:
    statuses = (0, 5, None)
    envs = opened(make_process, [*(partial(Forking, status) for status in statuses), ENDLESS], num_workers=1)
    for number in range(1, 4):
        observations, rewards, _, _, infos = envs.step([0] * 4)
        assert observations[:, 1].tolist() == [number] * 4
        assert rewards.tolist() == [0.0, 5.0, 1.0, float(number)]
        assert "astray" not in infos


OTHERS = np.full(2, 9)


METHODS = [
    *("reset", "reset_async", "reset_wait", "step_wait", "send_reset", "recv", "recv_each", "ready", "call_wait"),
    *("render", "get_tasks", "stats", "restart"),
]
OPERATIONS: dict[str, Callable[[ParallelEnvManager], object]] = {
    **{name: methodcaller(name) for name in METHODS},
    **{name: methodcaller(name, OTHERS) for name in ("step", "step_async", "send", "set_tasks")},
    **{name: methodcaller(name, "render") for name in ("call", "call_async", "get_attr")},
    "step_wait with a timeout": lambda envs: envs.step_wait(timeout=0.1),
    "recv_env": lambda envs: envs.recv_env(0),
    "remotes": lambda envs: envs.remotes[0].send(("reset", None)),
    "set_attr": lambda envs: envs.set_attr("spec", None),
    "np_random": lambda envs: envs.np_random,
    "restart after close": lambda envs: [end() for end in (envs.close, envs.restart)],
}


@pytest.mark.parametrize("waits_for", ["nothing", "step_wait", "recv"])
@pytest.mark.slow(sample=True)
def test_a_forked_process_is_refused_all_that_a_manager_does(make: Make, waits_for: str) -> None:
    envs = opened(make, [CountingEnv, CountingEnv], copy=False)
    if waits_for != "nothing":
        envs.send([0, 0]) if waits_for == "recv" else envs.step_async([0, 0])
    before = envs._batch.arrays.actions[0][0].copy()

    def refusals() -> Iterator[tuple[str, str]]:
        for name, operation in OPERATIONS.items():
            try:
                yield name, f"not refused: {operation(envs)}"
            except Exception as error:  # noqa: BLE001  # whatever it is, the test is to see it
                yield name, f"{type(error).__name__}: {error}"

    for name, told in in_fork(lambda: list(refusals())):
        assert told.startswith("ClosedManager: Trying to operate on `ParallelEnvManager`"), name
        assert "was forked" in told, name
        assert f"belongs to process {os.getpid()}" in told, name
    assert f"belongs to process {os.getpid()}" in in_fork(lambda: repr(envs))
    np.testing.assert_array_equal(envs._batch.arrays.actions[0][0], before)
    then: dict[str, Any] = {"nothing": lambda: envs.step([0, 0]), "step_wait": envs.step_wait}
    assert then.get(waits_for, lambda: envs.recv(2)[1:])()[1].tolist() == [1.0, 1.0]
    assert envs.step([0, 0])[1].tolist() == [2.0, 2.0]


def test_answers_that_come_while_a_forked_process_runs_are_the_parents(make_process: Make, gate: Gate) -> None:
    envs = make_process([partial(GatedEnv, gate.path)] * 2)
    envs.reset()
    envs.step_async([0, 0])

    def wait() -> object:
        gate.let_through(2)
        return envs.step_wait()

    refusal(wait)
    assert envs.step_wait(timeout=20.0)[1].tolist() == [1.0, 1.0]


def test_a_forked_process_may_drop_a_manager_without_effect(make: Make, tmp_path: Path) -> None:
    held = [make([CountingEnv, partial(ClosingEnv, tmp_path, "notes")])]
    held[0].reset()

    def close_and_drop() -> str:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            held[0].close()
            held[0].__del__()
            held.clear()
            gc.collect()
        return "fine"

    assert in_fork(close_and_drop) == "fine"
    assert not (tmp_path / "notes").exists()
    assert held[0].step([0, 0])[1].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("context", ["fork", "forkserver", pytest.param("spawn", marks=pytest.mark.slow)])
def test_a_forked_process_makes_managers_of_its_own(make_process: Make, context: StartMethod) -> None:
    envs = make_process([CountingEnv] * 2)
    envs.reset()

    def rewards_of_another() -> Any:
        with ParallelEnvManager([CountingEnv] * 2, context=context) as own:
            own.reset()
            own.step([0, 0])
            return own.step([0, 0])[1].tolist()

    assert in_fork(rewards_of_another) == [2.0, 2.0]
    assert envs.step([0, 0])[1].tolist() == [1.0, 1.0]


def test_in_a_late_exit_handler_a_manager_is_closed(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import atexit
        import gymnasium
        from gymnasium.error import ClosedEnvironmentError
        from parallel_envs import ParallelEnvManager

        def last_words():  # registered before the pool's own handler, so it runs after that
            files = [open(f"file_{number}", "w+b") for number in range(50)]
            for ask in (lambda: envs.step([0, 0]), envs.reset, envs.restart, envs.stats):
                try:
                    ask()
                    print("was not refused")
                except ClosedEnvironmentError:
                    pass
            envs.close()
            print([file.name for file in files if file.seek(0, 2)])

        atexit.register(last_words)
        envs = ParallelEnvManager("CartPole-v1", num_envs=2)
        envs.reset()
        """,
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")
