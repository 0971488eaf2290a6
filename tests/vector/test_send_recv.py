"""`send`, `send_reset` and `recv`: each env at its own pace."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from parallel_envs.errors import ClosedError, EnvError, StepTimeout, WorkerDied
from parallel_envs.testing import Fault, FaultyEnv, InfoKind, Moment, ScriptedEnv, assert_same_batch
from tests.gates import Gate
from tests.vector.conftest import Make, Manager, opened
from tests.vector.small_envs import ArgumentsEnv, CountingEnv, FailingEnv, GatedEnv, SlowResetEnv
from tests.vector.task_envs import ByResetTask

workers = pytest.mark.parametrize("num_workers", [1, 2, 4])
ENDLESS = partial(CountingEnv, 100)


def received(envs: Manager, count: int) -> dict[int, Any]:
    """What `count` envs have answered, by env: observation, reward, and whether an episode has ended."""
    env_ids, observations, rewards, terminated, truncated, _ = envs.recv(min_envs=count)
    rows = zip(observations.tolist(), rewards.tolist(), (terminated | truncated).tolist(), strict=True)
    return dict(sorted(zip(env_ids.tolist(), rows, strict=True)))


@pytest.mark.slow(sample=True)
@workers
def test_sending_to_all_and_receiving_all_is_a_reset_and_steps(make: Make, num_workers: int) -> None:
    fns = [partial(ScriptedEnv, infos=set(InfoKind))] * 4
    envs, reference = (make(fns, num_workers=num_workers) for _ in range(2))
    expected: Any = reference.reset(seed=3)[0], [0.0] * 4, [False] * 4, [False] * 4
    envs.send_reset(seed=3)
    for number in range(9):
        env_ids, *results, _ = envs.recv(min_envs=4)
        order = np.argsort(env_ids)
        assert env_ids[order].tolist() == [0, 1, 2, 3]
        assert_same_batch(results[0][order], expected[0])
        assert [array[order].tolist() for array in results[1:]] == [list(array) for array in expected[1:]]
        if number < 8:
            expected = reference.step(np.arange(4))[:4]
            envs.send(np.arange(4))


def test_recv_returns_a_row_for_each_env_it_names(make: Make) -> None:
    class EchoEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            observation, _, terminated, truncated, info = super().step(action)
            return observation, float(action), terminated, truncated, info

    envs = opened(make, [partial(EchoEnv, length) for length in (2, 1, 3, 4)], num_workers=2)
    envs.send(np.array([3, 1]), env_ids=[3, 1])
    env_ids, observations, rewards, terminated, truncated, infos = envs.recv(min_envs=2)
    assert dict(zip(env_ids.tolist(), rewards.tolist(), strict=True)) == {3: 3.0, 1: 1.0}
    assert dict(zip(env_ids.tolist(), terminated.tolist(), strict=True)) == {3: False, 1: True}
    assert [array.dtype.name for array in (rewards, terminated, truncated)] == ["float64", "bool", "bool"]
    assert observations.tolist() == [[0, 1], [0, 1]]
    assert len(truncated) == len(infos["elapsed"]) == len(infos["_elapsed"]) == 2


@pytest.mark.parametrize("asked", ["reset", "step"])
@pytest.mark.parametrize("receive", ["any", "that one"])
def test_the_rest_goes_on_while_one_env_is_slow(make_parallel: Make, gate: Gate, asked: str, receive: str) -> None:
    envs = make_parallel([partial(SlowResetEnv if asked == "reset" else GatedEnv, gate.path), ENDLESS])
    envs.send_reset([0]) if asked == "reset" else envs.send([0], [0])
    for number in range(1, 6):
        envs.send([0], env_ids=[1])
        told = envs.recv()[1][0] if receive == "any" else envs.recv_env(1)[0]
        assert told.tolist() == [-1, number]
    gate.let_through()
    assert received(envs, 1) == {0: ([0, 0], 0.0, False) if asked == "reset" else ([-1, 1], 1.0, False)}


def test_the_course_of_an_env_does_not_depend_on_the_pace_of_others(make: Make) -> None:
    """Whichever env comes first goes on until each has made its steps."""
    fns = [partial(CountingEnv, length) for length in (1, 2, 3, 5, 8)]
    envs, left = opened(make, fns, num_workers=3), [12] * 5
    courses: list[list[Any]] = [[] for _ in fns]
    envs.send([0] * 5)
    while any(left):
        env_ids, observations, *_ = envs.recv(min_envs=1)
        for env, observation in zip(env_ids.tolist(), observations.tolist(), strict=True):
            courses[env].append(observation)
            left[env] -= 1
        if ready := [env for env in env_ids.tolist() if left[env]]:
            envs.send([0] * len(ready), env_ids=ready)
    for env, factory in enumerate(fns):
        alone = opened(make, [factory], backend="serial")
        assert courses[env] == [alone.step([0])[0][0].tolist() for _ in range(12)]


def test_what_is_sent_together_is_one_wake_up_for_each_worker(
    make_process: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = opened(make_process, [CountingEnv] * 8, num_workers=2)
    real, written = os.write, list[int]()

    def write(fd: int, data: bytes) -> int:
        written.append(fd)
        return real(fd, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        envs.send([0] * 6, env_ids=[5, 0, 1, 2, 3, 7])
    assert len(written) == len(set(written)) == 2
    assert sorted(envs.recv(min_envs=6)[0].tolist()) == [0, 1, 2, 3, 5, 7]


@pytest.mark.slow(sample=True)
@workers
def test_some_reset_while_others_step(make: Make, num_workers: int) -> None:
    envs = opened(make, [CountingEnv] * 4, num_workers=num_workers)
    envs.send([0, 0], env_ids=[3, 1])
    envs.send_reset([2])
    envs.send([0], env_ids=[0])
    expected = {env: ([0, 1], 1.0, False) for env in (0, 1, 3)} | {2: ([1, 0], 0.0, False)}
    assert received(envs, 4) == dict(sorted(expected.items()))
    assert envs.step([0] * 4)[0].tolist() == [[0, 2], [0, 2], [1, 1], [0, 2]]
    envs.send([0], env_ids=[0])
    envs.send_reset(options={"reset_mask": np.array([False, True, True, False])})
    assert {env: row[0] for env, row in received(envs, 3).items()} == {0: [0, 3], 1: [1, 0], 2: [2, 0]}


def test_a_reset_takes_the_place_of_the_pending_one(make: Make) -> None:
    envs = opened(make, [partial(CountingEnv, 1)] * 2)
    envs.send([0, 0])
    received(envs, 2)
    envs.send_reset([1])
    assert received(envs, 1) == {1: ([1, 0], 0.0, False)}
    envs.send([0, 0])
    assert received(envs, 2) == {0: ([1, 0], 0.0, False), 1: ([1, 1], 1.0, True)}


def test_infos_of_resets_and_steps_come_together(make: Make) -> None:
    envs = opened(make, [CountingEnv] * 2, num_workers=1)
    envs.send([0], env_ids=[1])
    envs.send_reset([0])
    env_ids, *_, infos = envs.recv(min_envs=2)
    place = np.argsort(env_ids)  # which of the two is received first is not said
    began, stepped = np.array([True, False]), np.array([False, True])
    expected = {"elapsed": np.array([0, 1]), "_elapsed": stepped, "began": np.array([1, 0]), "_began": began}
    assert_same_batch({key: value[place] for key, value in infos.items()}, expected)


def test_seeds_and_options_reach_the_env_they_are_for(make: Make) -> None:
    envs = opened(make, [ArgumentsEnv] * 4, num_workers=2)
    given: list[tuple[list[int], dict[str, Any], str, dict[int, str]]] = [
        ([3, 1], {"seed": 10, "options": [{"level": 3}, None]}, "options", {1: "None", 3: "{'level': 3}"}),
        ([3, 1], {"seed": 10}, "seed", {1: "11", 3: "13"}),
        ([2], {"seed": [5, 6, 7, None]}, "seed", {2: "7"}),  # one for each there is, as Gymnasium has it
        ([3, 1], {"seed": [8, 9]}, "seed", {3: "8", 1: "9"}),  # one for each that is named
    ]
    for ids, arguments, key, told in given:
        envs.send_reset(ids, **arguments)
        env_ids, *_, infos = envs.recv(min_envs=len(ids))
        assert dict(zip(env_ids.tolist(), infos[key], strict=True)) == told


def test_recv_env_returns_what_the_env_itself_would(make: Make) -> None:
    envs = make([CountingEnv] * 3, num_workers=2)
    for _ in range(2):
        with pytest.raises(NoAsyncCallError, match="env 1"):
            envs.recv_env(1)
        envs.send_reset([0])
        with pytest.raises(NoAsyncCallError, match="env 1"):
            envs.recv_env(1)
        envs.recv_env(0)
    envs.send_reset([2, 0])
    envs.send([0], env_ids=[1])
    answers = {0: ([2, 0], 0.0, False, False, {"began": 2}), 1: ([-1, 1], 1.0, False, False, {"elapsed": 1})}
    held = []
    for env, expected in answers.items():
        observation, *rest = envs.recv_env(env)
        assert (observation.tolist(), *rest) == expected
        assert [type(value) for value in rest] == [float, bool, bool, dict]
        held.append(observation)
    assert received(envs, 1) == {2: ([0, 0], 0.0, False)}
    envs.step([0] * 3)
    assert [array.tolist() for array in held] == [[2, 0], [-1, 1]]  # they are the caller's


def test_receiving_times_out_and_loses_nothing(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(SlowResetEnv, gate.path), *[partial(GatedEnv, gate.path)] * 2])
    envs.send_reset([0])
    envs.send([0, 0], env_ids=[1, 2])
    for receive in (envs.recv, partial(envs.recv_env, 0), partial(envs.recv_env, 1)):
        with pytest.raises(StepTimeout):
            receive(timeout=0.02)
    gate.let_through(3)
    assert [envs.recv_env(env)[0].tolist() for env in (0, 1)] == [[0, 0], [-1, 1]]
    assert received(envs, 1) == {2: ([-1, 1], 1.0, False)}


@pytest.mark.parametrize("asked", ["reset", "step"])
def test_an_answer_that_was_late_is_received_after_all(make_parallel: Make, gate: Gate, asked: str) -> None:
    times = {"reset_timeout": 60.0, "step_timeout": 60.0} | {f"{asked}_timeout": 0.02}
    envs = make_parallel([partial(SlowResetEnv if asked == "reset" else GatedEnv, gate.path)], **times)
    envs.send_reset() if asked == "reset" else envs.send([0])
    with pytest.raises(StepTimeout, match=rf"(?s)Env 0 .*0\.02 seconds during {asked}") as caught:
        envs.recv()
    assert caught.value.env_ids == (0,)
    gate.let_through()
    for _ in range(30):  # each of which takes a look at the worker's stack
        with suppress(StepTimeout):
            assert envs.recv()[0].tolist() == [0]
            return
    pytest.fail("It never came.")


def test_a_caller_that_comes_late_finds_what_came_in_time(make_process: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("parallel_envs.vector.recovery.time", SimpleNamespace(monotonic=lambda: now[0]))
    envs = make_process([CountingEnv] * 2, backend="serial", step_timeout=10.0)
    envs.send([0, 0])
    now[0] = 20.0  # the learner has taken its time
    assert received(envs, 2) == {0: ([-1, 1], 1.0, False), 1: ([-1, 1], 1.0, False)}


def test_ready_ids_are_those_that_recv_would_bring_and_wait_for_nobody(make_parallel: Make, gate: Gate) -> None:
    envs = opened(make_parallel, [partial(GatedEnv, gate.path), CountingEnv, partial(GatedEnv, gate.path)])
    assert envs.ready_ids == []
    envs.send([0, 0, 0])
    for expected in ([1], [0, 2]):
        while len(ids := envs.ready_ids) < len(expected):
            pass
        assert sorted(ids) == expected
        assert envs.ready_ids == ids
        assert envs.recv()[0].tolist() == ids
        assert envs.ready_ids == []
        gate.let_through(2)
    envs.close()
    with pytest.raises(ClosedError, match="ready_ids"):
        _ = envs.ready_ids


@pytest.mark.parametrize("first", ["send", "send_reset"])
def test_envs_under_way_are_not_asked_again_and_other_calls_wait(make: Make, first: str) -> None:
    envs = make([ByResetTask] * 2)
    with pytest.raises(NoAsyncCallError):
        envs.recv()
    envs.send([0], [1]) if first == "send" else envs.send_reset([1])
    again: dict[str, Callable[[], Any]] = {"send": lambda: envs.send([0, 0]), "send_reset": envs.send_reset}
    for name, ask in again.items():
        with pytest.raises(AlreadyPendingCallError, match=f"`{name}`.*env 1"):
            ask()
    others: list[Callable[[], Any]] = [lambda: envs.step([0, 0]), envs.reset, lambda: envs.call("played")]
    others += [lambda: envs.set_tasks([1, 2]), envs.get_tasks]
    for ask in others:
        with pytest.raises(AlreadyPendingCallError):
            ask()
    envs.send([0], env_ids=[0])
    for min_envs in (0, 3, -1):
        with pytest.raises(ValueError, match=str(min_envs)):
            envs.recv(min_envs=min_envs)
    assert len(received(envs, 2)) == 2
    for ask in others:
        ask()


def test_an_error_is_of_its_env_and_the_others_come_after(make: Make) -> None:
    envs = opened(make, [CountingEnv, partial(FailingEnv, at_resets=(2,)), CountingEnv], num_workers=2)
    envs.send_reset()
    with pytest.raises(LookupError, match="Env 1 raised LookupError during reset") as caught:
        envs.recv(min_envs=3)
    assert isinstance(caught.value, EnvError)
    assert caught.value.env_ids == (1,)
    assert received(envs, 2) == {env: ([1, 0], 0.0, False) for env in (0, 2)}
    envs.send_reset([1])
    assert received(envs, 1) == {1: ([1, 0], 0.0, False)}


def test_an_env_that_raised_or_died_is_ready(make_process: Make) -> None:
    envs = opened(make_process, [partial(FailingEnv, at_steps=(1,)), CountingEnv])
    os.kill(envs.stats()[1]["pid"], signal.SIGKILL)
    envs.send([0, 0])
    while len(envs.ready_ids) < 2:
        pass
    for _ in range(2):
        with pytest.raises((ZeroDivisionError, WorkerDied)):
            envs.recv()
    assert envs.ready_ids == []


@pytest.mark.usefixtures("_forgotten_records")
@pytest.mark.parametrize(
    ("fault", "num_workers"),
    [(Fault.EXCEPTION, 1), (Fault.EXCEPTION, 3), (Fault.SIGKILL, 1), (Fault.SIGKILL, 3), (Fault.SLEEP, 1)],
)
def test_a_reset_that_failed_is_done_anew_as_it_was_asked_for(
    make_process: Make, tmp_path: Path, fault: Fault, num_workers: int
) -> None:
    fns: list[Any] = [ScriptedEnv, partial(FaultyEnv, fault, Moment.RESET, at=2, once=tmp_path / "broken"), ScriptedEnv]
    envs = opened(make_process, fns, num_workers=num_workers, on_failure="restart", reset_timeout=1.0)
    envs.send_reset([1], seed=40, tasks=[8])
    observation, reward, terminated, truncated, info = envs.recv_env(1)
    assert_same_batch(observation, ScriptedEnv().reset(seed=41, options={"task": 8})[0])
    assert (reward, terminated, truncated) == (0.0, False, False)
    assert info == {"worker_restarted": True, "task_id": 8, "episode_index": 2}
    assert envs.get_tasks(env_ids=1) == [8]
    assert sum(row["restarts"] for row in envs.stats()) == 1
