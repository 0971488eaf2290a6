"""`send` and `recv`: each env at its own pace."""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from parallel_envs.engine import Unpicklable
from parallel_envs.errors import ClosedError, WorkerDied
from parallel_envs.testing import InfoKind, ScriptedEnv, assert_same_batch
from tests.gates import Gate
from tests.vector.conftest import Make, Manager
from tests.vector.small_envs import CountingEnv, FailingEnv, GatedEnv


def zeros(num: int) -> Any:
    return np.zeros(num, int)


def test_sending_to_all_and_receiving_all_is_a_step(make: Make) -> None:
    kinds = set(InfoKind)
    envs = make([partial(ScriptedEnv, infos=kinds)] * 3, num_workers=2)
    reference = make([partial(ScriptedEnv, infos=kinds)] * 3, num_workers=2)
    for each in (envs, reference):
        each.reset(seed=1)
    for _ in range(8):
        envs.send(np.arange(3))
        env_ids, *results = envs.recv(min_envs=3)
        order = np.argsort(env_ids)
        assert np.asarray(env_ids)[order].tolist() == [0, 1, 2]
        expected = reference.step(np.arange(3))
        assert_same_batch([array[order] for array in results[:4]], list(expected[:4]))


def test_recv_returns_a_row_for_each_env_it_names(make: Make) -> None:
    envs = make([partial(CountingEnv, length) for length in (1, 2, 3, 4)], num_workers=4)
    envs.reset(seed=0)
    envs.send(zeros(2), env_ids=[3, 1])
    env_ids, observations, rewards, terminations, truncations, infos = envs.recv(min_envs=2)
    assert sorted(np.asarray(env_ids).tolist()) == [1, 3]
    for array in (observations, rewards, terminations, truncations, infos["elapsed"], infos["_elapsed"]):
        assert len(array) == 2
    assert [array.dtype.name for array in (rewards, terminations, truncations)] == ["float64", "bool", "bool"]
    assert observations.tolist() == [[0, 1], [0, 1]]


def test_each_env_gets_the_action_meant_for_it(make: Make) -> None:
    class EchoEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            observation, _, terminated, truncated, info = super().step(action)
            return observation, float(action), terminated, truncated, info

    envs = make([partial(EchoEnv, 100)] * 4, num_workers=2)
    envs.reset(seed=0)
    envs.send(np.array([3, 1]), env_ids=[2, 0])
    env_ids, _, rewards, *_ = envs.recv(min_envs=2)
    assert dict(zip(np.asarray(env_ids).tolist(), rewards.tolist(), strict=True)) == {2: 3.0, 0: 1.0}


def test_recv_waits_for_no_more_than_it_is_asked_to(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(GatedEnv, gate.path), CountingEnv, CountingEnv])
    envs.reset(seed=0)
    envs.send(zeros(3))
    seen: list[int] = []
    while len(seen) < 2:
        seen += np.asarray(envs.recv()[0]).tolist()
    assert sorted(seen) == [1, 2]
    gate.let_through()
    assert np.asarray(envs.recv()[0]).tolist() == [0]


def test_the_rest_goes_on_while_one_env_is_slow(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(GatedEnv, gate.path), partial(CountingEnv, 100)])
    envs.reset(seed=0)
    envs.send(zeros(2))
    for number in range(1, 6):
        env_ids, observations, *_ = envs.recv(min_envs=1)
        assert (np.asarray(env_ids).tolist(), observations.tolist()) == ([1], [[0, number]])
        envs.send(zeros(1), env_ids=[1])
    gate.let_through()
    seen: set[int] = set()
    while len(seen) < 2:
        seen |= set(np.asarray(envs.recv(min_envs=1)[0]).tolist())


def test_recv_times_out_and_loses_nothing(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(GatedEnv, gate.path)] * 2)
    envs.reset(seed=0)
    envs.send(zeros(2))
    with pytest.raises(TimeoutError):
        envs.recv(timeout=0.05)
    gate.let_through(2)
    env_ids, observations, *_ = envs.recv(min_envs=2)
    assert sorted(np.asarray(env_ids).tolist()) == [0, 1]
    assert observations.tolist() == [[0, 1], [0, 1]]


def test_autoresets_go_on_as_in_step(make: Make) -> None:
    envs = make([partial(CountingEnv, 1)] * 2, num_workers=2)
    envs.reset(seed=0)
    courses = []
    for _ in range(3):
        envs.send(zeros(1), env_ids=[1])
        courses.append(envs.recv()[1].tolist())
    assert courses == [[[0, 1]], [[1, 0]], [[1, 1]]]
    assert envs.step(zeros(2))[0].tolist() == [[0, 1], [2, 0]]


def test_an_env_that_is_still_busy_takes_no_second_action(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset(seed=0)
    envs.send(zeros(1), env_ids=[1])
    with pytest.raises(AlreadyPendingCallError, match="1"):
        envs.send(zeros(2))
    envs.send(zeros(1), env_ids=[0])
    assert sorted(np.asarray(envs.recv(min_envs=2)[0]).tolist()) == [0, 1]


@pytest.mark.parametrize("name", ["step", "reset"])
def test_a_plain_call_is_refused_while_envs_are_out(make: Make, name: str) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset(seed=0)
    envs.send(zeros(1), env_ids=[1])
    with pytest.raises(AlreadyPendingCallError):
        envs.step(zeros(2)) if name == "step" else envs.reset()
    envs.recv()


def test_recv_without_send_is_refused(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    envs.reset(seed=0)
    with pytest.raises(NoAsyncCallError):
        envs.recv()


def pace(envs: Manager, num_envs: int, num_steps: int) -> dict[int, list[list[int]]]:
    """Let whoever comes first go on until each env has made its steps; the course of each."""
    courses: dict[int, list[list[int]]] = {env: [] for env in range(num_envs)}
    envs.send(zeros(num_envs))
    while any(len(course) < num_steps for course in courses.values()):
        env_ids, observations, *_ = envs.recv(min_envs=1)
        for env, observation in zip(np.asarray(env_ids).tolist(), observations.tolist(), strict=True):
            courses[env].append(observation)
        ready = [env for env in np.asarray(env_ids).tolist() if len(courses[env]) < num_steps]
        if ready:
            envs.send(zeros(len(ready)), env_ids=ready)
    return courses


def test_the_course_of_an_env_does_not_depend_on_the_others_pace(make: Make) -> None:
    envs = make([partial(CountingEnv, length) for length in (1, 2, 3, 5, 8)], num_workers=3)
    envs.reset(seed=0)
    courses = pace(envs, 5, 12)
    for env, length in enumerate((1, 2, 3, 5, 8)):
        alone = make([partial(CountingEnv, length)])
        alone.reset(seed=0)
        assert courses[env] == [alone.step(zeros(1))[0][0].tolist() for _ in range(12)]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"actions": zeros(2), "env_ids": [0, 9]}, "9"),
        ({"actions": zeros(2), "env_ids": [0, 0]}, "0"),
        ({"actions": zeros(3), "env_ids": [0, 1]}, "3"),
        ({"actions": zeros(1)}, "1"),
    ],
)
def test_bad_sends_are_refused_before_anything_moves(make: Make, arguments: Any, word: str) -> None:
    envs = make([CountingEnv] * 3)
    envs.reset(seed=0)
    with pytest.raises((ValueError, IndexError), match=word):
        envs.send(**arguments)
    assert envs.step(zeros(3))[0].tolist() == [[0, 1]] * 3


def test_actions_that_cannot_travel_are_refused_before_anything_moves(make_process: Make) -> None:
    space = spaces.Text(4)
    envs, reference = (make_process([partial(ScriptedEnv, action_space=space)] * 2) for _ in range(2))
    for each in (envs, reference):
        each.reset(seed=1)
    with pytest.raises(Unpicklable):
        envs.send(["go", threading.Lock()])
    assert_same_batch(envs.step(("go", "stop")), reference.step(("go", "stop")))


def test_what_is_sent_together_is_one_wake_up_for_each_worker(
    make_process: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = make_process([CountingEnv] * 8, num_workers=2)
    envs.reset(seed=0)
    real, written = os.write, list[int]()

    def write(fd: int, data: bytes) -> int:
        written.append(fd)
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        envs.send(zeros(6), env_ids=[5, 0, 1, 2, 3, 7])
    assert len(written) == len(set(written)) == 2
    assert sorted(envs.recv(min_envs=6)[0].tolist()) == [0, 1, 2, 3, 5, 7]


@pytest.mark.parametrize("min_envs", [0, 3, -1])
def test_recv_of_a_number_of_envs_that_cannot_come(make: Make, min_envs: int) -> None:
    envs = make([CountingEnv] * 3)
    envs.reset(seed=0)
    envs.send(zeros(2), env_ids=[0, 1])
    with pytest.raises(ValueError, match=str(min_envs)):
        envs.recv(min_envs=min_envs)
    assert len(envs.recv(min_envs=2)[0]) == 2


def test_ready_ids_are_those_that_recv_would_bring(make: Make) -> None:
    envs = make([CountingEnv] * 3, num_workers=2)
    envs.reset(seed=0)
    assert envs.ready_ids == []
    envs.send(zeros(2), env_ids=[2, 0])
    while len(ids := envs.ready_ids) < 2:
        pass
    assert sorted(ids) == [0, 2]
    assert envs.ready_ids == ids
    assert envs.recv(2)[0].tolist() == ids
    assert envs.ready_ids == []
    envs.close()
    with pytest.raises(ClosedError, match="ready_ids"):
        _ = envs.ready_ids


def test_ready_ids_do_not_wait(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(GatedEnv, gate.path), CountingEnv, partial(GatedEnv, gate.path)])
    envs.reset(seed=0)
    envs.send(zeros(3))
    while not (ids := envs.ready_ids):
        pass
    assert ids == envs.ready_ids == [1]
    assert envs.recv()[0].tolist() == [1]
    assert envs.ready_ids == []
    gate.let_through(2)
    assert sorted(envs.recv(2)[0].tolist()) == [0, 2]


def test_an_env_that_raised_or_died_is_ready(make_process: Make) -> None:
    envs = make_process([partial(FailingEnv, at_steps=(1,)), CountingEnv])
    envs.reset(seed=0)
    os.kill(envs.stats()[1]["pid"], signal.SIGKILL)
    envs.send(zeros(2))
    while len(envs.ready_ids) < 2:
        pass
    for _ in range(2):
        with pytest.raises((ZeroDivisionError, WorkerDied)):
            envs.recv()
    assert envs.ready_ids == []
