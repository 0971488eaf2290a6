"""Ctrl-C keeps what was collected, and leaves a manager that can be used."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallel_envs import CollectionInterrupted, collect
from parallel_envs.testing import assert_same_batch
from tests.gates import Gate
from tests.rollouts.players import Acting, Counting, by_observation, content, scripted, zeros
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv, GatedEnv


class Interrupted(Counting):
    """Ctrl-C comes in its `at`-th call."""

    def __init__(self, at: int) -> None:
        self.left = at

    def act(self, observations: Any, state: Any, resets: Any, rows: Any) -> tuple[Any, Any]:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt
        return super().act(observations, state, resets, rows)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("at", [1, 20, 40])
def test_ctrl_c_keeps_the_rollouts_that_were_complete(make: Make, at: int) -> None:
    envs = make([scripted] * 3, num_workers=2)
    with pytest.raises(CollectionInterrupted, match="were complete") as interrupted:
        collect(envs, Interrupted(at), 30, seed=5)
    kept = interrupted.value.rollouts
    whole = collect(scripted(), Counting(), 30, seed=5)
    assert (len(kept) > 0) == (at > 1)
    assert_same_batch(content(kept), content([whole[rollout.id] for rollout in kept]))
    assert not any(envs.is_away(env) for env in range(3))
    assert_same_batch(content(collect(envs, Counting(), 30, seed=5)), content(whole))


def test_ctrl_c_inside_an_env_of_the_caller() -> None:
    class Struck(CountingEnv):
        def step(self, action: Any) -> Any:
            if self.episode == 2 and self.elapsed == 1:
                self.episode += 1
                raise KeyboardInterrupt
            return super().step(action)

    env = Struck()
    with pytest.raises(CollectionInterrupted) as interrupted:
        collect(env, Acting(zeros), 5)
    assert isinstance(interrupted.value, KeyboardInterrupt)
    assert [rollout.id for rollout in interrupted.value.rollouts] == [0, 1]
    assert len(collect(env, Acting(zeros), 2)) == 2


def test_a_second_ctrl_c_does_not_wait_and_loses_nothing(
    make_parallel: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = make_parallel([partial(CountingEnv, 1), partial(GatedEnv, gate.path)])
    calls = []

    def act(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        calls.append(len(rows))
        if len(calls) == 8:
            monkeypatch.setattr(envs, "recv", interrupted_recv)
            raise KeyboardInterrupt
        return zeros(observations, state, resets, rows)

    def interrupted_recv(*arguments: Any, **settings: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.raises(CollectionInterrupted) as interrupted:
        collect(envs, Acting(act), 30)
    monkeypatch.undo()
    assert len(interrupted.value.rollouts) >= 2
    gate.let_through()
    while away := sum(envs.is_away(env) for env in range(2)):
        envs.recv(away, timeout=30)
    assert len(collect(envs, Acting(zeros), 2, max_steps=1)) == 2


SCRIPT = """
import os, sys, threading
import numpy as np
from parallel_envs import CollectionInterrupted, ParallelEnvManager, collect
from tests.rollouts.players import by_observation, content, scripted
from parallel_envs.testing import assert_same_batch

def endless(observation):
    global steps
    steps += 1
    if steps == 50:
        print("playing", flush=True)
    return by_observation(observation)

steps = 0
with ParallelEnvManager([scripted] * 3, num_workers=2, backend=sys.argv[1]) as envs:
    try:
        collect(envs, endless, 20_000, seed=1)
    except CollectionInterrupted as interrupted:
        kept = interrupted.rollouts
    assert len(kept) > 1
    assert not any(envs.is_away(env) for env in range(3))
    again = collect(envs, by_observation, kept[-1].id + 1, seed=1)
    assert_same_batch(content(kept), content([again[one.id] for one in kept]))
print("went on")
"""


@pytest.mark.parametrize("backend", ["process", "thread", pytest.param("serial", marks=pytest.mark.slow)])
def test_a_real_ctrl_c(backend: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", SCRIPT, backend]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=environment, start_new_session=True, **pipes) as script:
        assert script.stdout
        assert script.stdout.readline() == "playing\n"
        os.killpg(script.pid, signal.SIGINT)
        out, error = script.communicate(timeout=60)
    assert (script.returncode, out) == (0, "went on\n"), error


@pytest.mark.parametrize("settings", [{}, {"step_timeout": 60.0}, {"step_timeout": 60.0, "on_failure": "restart"}])
def test_ctrl_c_reaches_who_waits_for_an_env_and_waits_for_no_deadline(
    make_parallel: Make, gate: Gate, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr("parallel_envs.rollouts.collector._DRAIN_SECONDS", 0.01)
    monkeypatch.setattr("parallel_envs.rollouts.collector._LOOK_UP_SECONDS", 0.01)
    envs = make_parallel([partial(GatedEnv, gate.path)], **settings)
    ready = envs.ready

    def act(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        monkeypatch.setattr(envs, "ready", strike_and_wait)
        return zeros(observations, state, resets, rows)

    def strike_and_wait(*arguments: Any, **settings: Any) -> Any:
        monkeypatch.setattr(envs, "ready", ready)
        os.kill(os.getpid(), signal.SIGINT)
        return ready(*arguments, **settings)

    began = time.monotonic()
    with pytest.raises(CollectionInterrupted, match="0 rollouts"):
        collect(envs, Acting(act), 1)
    assert time.monotonic() - began < 30.0
    gate.let_through()
    assert envs.recv_env(0, timeout=30)[0].tolist() == [0, 1]


def test_the_handler_of_ctrl_c_is_put_back_also_after_an_error() -> None:
    def act(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
        if fails:
            raise ArithmeticError
        return zeros(observations, state, resets, rows)

    for fails in (False, True):
        with pytest.raises(ArithmeticError) if fails else nullcontext():
            collect(scripted(), Acting(act), 1)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_handler_of_the_users_own_stays() -> None:
    struck = []
    before = signal.signal(signal.SIGINT, lambda number, frame: struck.append(number))

    def act(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        if not struck:
            os.kill(os.getpid(), signal.SIGINT)
        return zeros(observations, state, resets, rows)

    try:
        assert len(collect(scripted(), Acting(act), 2)) == 2
    finally:
        signal.signal(signal.SIGINT, before)
    assert struck == [signal.SIGINT]


def test_another_thread_may_collect() -> None:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(collect(scripted(), by_observation, 3)))
    thread.start()
    thread.join()
    assert_same_batch(content(results[0]), content(collect(scripted(), by_observation, 3)))
