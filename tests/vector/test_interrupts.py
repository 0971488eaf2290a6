"""Ctrl-C at any moment leaves a manager that goes on: nothing hangs, and a step that was half begun is not hidden."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.error import ResetNeeded

from parallel_envs import EnvError, ParallelEnvManager
from parallel_envs.choices import StartMethod
from tests.striking import struck
from tests.vector.conftest import Make, opened
from tests.vector.small_envs import ChosenInfoEnv, CountingEnv

NUM_ENVS = 3
ACTIONS = np.zeros(NUM_ENVS, np.int64)


def cartpole() -> gym.Env[Any, Any]:
    return gym.make("CartPole-v1")


HALF_BEGUN: dict[str, Callable[[ParallelEnvManager], Any]] = {
    "step": lambda envs: envs.step(ACTIONS),
    "send": lambda envs: envs.send(ACTIONS),
    "reset": lambda envs: envs.reset(),
    "call": lambda envs: envs.call("has_wrapper_attr", "spec"),
}
WANT_A_RESET: list[Callable[[ParallelEnvManager], Any]] = [
    *(HALF_BEGUN["step"], HALF_BEGUN["send"], ParallelEnvManager.step_wait, ParallelEnvManager.recv),
    *(lambda envs: envs.reset(env_ids=[0]), lambda envs: envs.get_attr("spec")),
]


@pytest.mark.parametrize("begun", HALF_BEGUN)
def test_what_was_half_begun_wants_a_reset(make_process: Make, monkeypatch: pytest.MonkeyPatch, begun: str) -> None:
    """It is interrupted after the first worker has been asked."""
    envs, write = opened(make_process, [cartpole] * NUM_ENVS), os.write
    with pytest.raises(Exception, match="pickle"):
        envs.call("render", threading.Lock())
    envs.step(ACTIONS)  # what was refused is not half begun

    def write_and_strike(fd: int, data: bytes) -> int:
        write(fd, data)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("parallel_envs.engine.process.os.write", write_and_strike)
        with pytest.raises(KeyboardInterrupt):
            HALF_BEGUN[begun](envs)
    assert "needs a reset" in repr(envs)
    for ask in WANT_A_RESET:
        with pytest.raises(ResetNeeded, match="cut short"):
            ask(envs)
    first, after = envs.reset(seed=5)[0], envs.step(ACTIONS)[0]
    with ParallelEnvManager([cartpole] * NUM_ENVS, backend="serial") as reference:
        np.testing.assert_array_equal(first, reference.reset(seed=5)[0])
        np.testing.assert_array_equal(after, reference.step(ACTIONS)[0])


def test_infos_of_answers_that_were_never_read_are_known_all_the_same(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = make([functools.partial(ChosenInfoEnv, {}, {"lives": 3})] * 2)
    envs.reset()
    step = envs._batch.step

    def ask_and_strike(*arguments: Any) -> Any:
        step(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(envs._batch, "step", ask_and_strike)
        with pytest.raises(KeyboardInterrupt):
            envs.step(ACTIONS[:2])
    envs.reset()
    assert envs.step(ACTIONS[:2])[4]["lives"].tolist() == [3, 3]


def test_interrupts_at_random_moments_hang_nothing(make_process: Make) -> None:
    envs = opened(make_process, [cartpole] * NUM_ENVS)
    draws, ended, wanted = np.random.default_rng(3), threading.Event(), threading.Event()

    def strike() -> None:
        while not ended.is_set():
            wanted.wait()
            wanted.clear()
            ended.wait(float(draws.uniform(0.0, 5e-4)))
            if not ended.is_set():
                os.kill(os.getpid(), signal.SIGINT)

    striker = threading.Thread(target=strike)
    striker.start()
    num_struck = 0
    try:
        while num_struck < 100:
            try:
                wanted.set()
                while True:
                    envs.step(ACTIONS, timeout=10.0)
            except KeyboardInterrupt:
                num_struck += 1
            if "waiting for step" in repr(envs):  # what a user does who reads the errors
                envs.step_wait(timeout=10.0)
            if "needs a reset" in repr(envs):
                envs.reset(timeout=10.0)
    finally:
        ended.set()
        wanted.set()
        striker.join()


@pytest.mark.parametrize(
    ("context", "moments"),
    [
        ("forkserver", 4),
        ("fork", 6),
        *(pytest.param(one, 60, marks=pytest.mark.slow) for one in ("forkserver", "fork")),
    ],
)
def test_a_construction_that_is_interrupted_leaves_nothing_behind(context: StartMethod, moments: int) -> None:
    def make_and_close() -> None:
        ParallelEnvManager([cartpole] * 2, context=context).close()

    gc.disable()  # an interrupt within a finalizer cannot be raised
    try:
        whole = struck(sys.maxsize, make_and_close)
        for moment in range(1, whole, whole // moments):
            struck(moment, make_and_close)
            gc.collect()  # the check around every test sees to the rest
    finally:
        gc.enable()


class Quitting(CountingEnv):
    """Raises KeyboardInterrupt in step `at`, of its own accord."""

    def __init__(self, at: int) -> None:
        super().__init__(100)
        self.at = at

    def step(self, action: Any) -> Any:
        if self.elapsed + 1 == self.at:
            raise KeyboardInterrupt
        return super().step(action)


def test_an_env_that_raises_it_in_a_worker_has_failed_like_any_other(make_parallel: Make) -> None:
    fns = [functools.partial(Quitting, at) for at in (9, 2, 9)]
    envs = opened(make_parallel, fns, num_workers=1)
    envs.step(ACTIONS)
    with pytest.raises(EnvError, match="Env 1 raised KeyboardInterrupt during step 2"):
        envs.step(ACTIONS)
    envs = opened(make_parallel, fns, num_workers=1, on_failure="restart", autoreset_mode="Disabled")
    envs.step(ACTIONS)
    observations, _, _, truncated, infos = envs.step(ACTIONS)
    assert infos["worker_restarted"].tolist() == truncated.tolist() == [False, True, False]
    assert observations[:, 1].tolist() == [2, 0, 2]


def test_in_the_callers_own_thread_it_is_the_callers() -> None:
    with ParallelEnvManager([functools.partial(Quitting, 1)], backend="serial") as envs:
        envs.reset()
        with pytest.raises(KeyboardInterrupt):
            envs.step(ACTIONS[:1])
