"""`send`, `send_reset` and `recv`: each env at its own pace."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from parallel_envs.engine import Unpicklable
from parallel_envs.errors import ClosedError, EnvError, StepTimeout, WorkerDied
from parallel_envs.testing import Fault, FaultyEnv, InfoKind, Moment, ScriptedEnv, assert_same_batch
from tests.gates import Gate
from tests.vector.conftest import Make, Manager, opened
from tests.vector.small_envs import ArgumentsEnv, CountingEnv, FailingEnv, GatedEnv, SlowResetEnv
from tests.vector.task_envs import ByOptions, ByResetTask, Choosy

workers = pytest.mark.parametrize("num_workers", [1, 2, 4])
ENDLESS = partial(CountingEnv, 100)


def received(envs: Manager, count: int) -> dict[int, Any]:
    """What `count` envs have answered, by env: observation, reward, and whether an episode has ended."""
    env_ids, observations, rewards, terminated, truncated, _ = envs.recv(min_envs=count)
    rows = zip(observations.tolist(), rewards.tolist(), (terminated | truncated).tolist(), strict=True)
    return dict(sorted(zip(env_ids.tolist(), rows, strict=True)))


# ---- steps -----------------------------------------------------------------------------------------------------------


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


def test_recv_waits_for_no_more_than_it_is_asked_to(make_parallel: Make, gate: Gate) -> None:
    envs = opened(make_parallel, [partial(GatedEnv, gate.path), CountingEnv, CountingEnv])
    envs.send([0, 0, 0])
    seen: list[int] = []
    while len(seen) < 2:
        seen += envs.recv()[0].tolist()
    assert sorted(seen) == [1, 2]
    gate.let_through()
    assert envs.recv()[0].tolist() == [0]


@pytest.mark.parametrize("asked", ["reset", "step"])
def test_the_rest_goes_on_while_one_env_is_slow(make_parallel: Make, gate: Gate, asked: str) -> None:
    envs = make_parallel([partial(SlowResetEnv if asked == "reset" else GatedEnv, gate.path), ENDLESS])
    envs.send_reset([0]) if asked == "reset" else envs.send([0], [0])
    for number in range(1, 6):
        envs.send([0], env_ids=[1])
        assert received(envs, 1) == {1: ([-1, number], float(number), False)}
    gate.let_through()
    assert received(envs, 1) == {0: ([0, 0], 0.0, False) if asked == "reset" else ([-1, 1], 1.0, False)}


def test_autoresets_go_on_as_in_step(make: Make) -> None:
    envs = opened(make, [partial(CountingEnv, 1)] * 2, num_workers=2)
    courses = []
    for _ in range(3):
        envs.send([0], env_ids=[1])
        courses.append(envs.recv()[1].tolist())
    assert courses == [[[0, 1]], [[1, 0]], [[1, 1]]]
    assert envs.step([0, 0])[0].tolist() == [[0, 1], [2, 0]]


def pace(envs: Manager, num_steps: int) -> dict[int, list[list[int]]]:
    """Let whichever env comes first go on until each has made its steps; the course of each."""
    courses: dict[int, list[list[int]]] = {env: [] for env in range(envs.num_envs)}
    envs.send([0] * envs.num_envs)
    while any(len(course) < num_steps for course in courses.values()):
        env_ids, observations, *_ = envs.recv(min_envs=1)
        for env, observation in zip(env_ids.tolist(), observations.tolist(), strict=True):
            courses[env].append(observation)
        if ready := [env for env in env_ids.tolist() if len(courses[env]) < num_steps]:
            envs.send([0] * len(ready), env_ids=ready)
    return courses


def test_the_course_of_an_env_does_not_depend_on_the_pace_of_others(make: Make) -> None:
    lengths = (1, 2, 3, 5, 8)
    courses = pace(opened(make, [partial(CountingEnv, length) for length in lengths], num_workers=3), 12)
    for env, length in enumerate(lengths):
        alone = opened(make, [partial(CountingEnv, length)], backend="serial")
        assert courses[env] == [alone.step([0])[0][0].tolist() for _ in range(12)]


def test_actions_that_cannot_travel_are_refused_before_anything_moves(make_process: Make) -> None:
    fns = [partial(ScriptedEnv, action_space=spaces.Text(4))] * 2
    envs, reference = (opened(make_process, fns) for _ in range(2))
    with pytest.raises(Unpicklable):
        envs.send(["go", threading.Lock()])
    assert_same_batch(envs.step(("go", "stop")), reference.step(("go", "stop")))


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


# ---- resets ----------------------------------------------------------------------------------------------------------


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
    envs.send_reset([3, 1], seed=10, options=[{"level": 3}, None])
    env_ids, *_, infos = envs.recv(min_envs=2)
    assert dict(zip(env_ids.tolist(), infos["seed"], strict=True)) == {1: "11", 3: "13"}
    assert dict(zip(env_ids.tolist(), infos["options"], strict=True)) == {1: "None", 3: "{'level': 3}"}
    envs.send_reset([2], seed=[5, 6, 7, None])  # one for each there is, as Gymnasium has it
    assert envs.recv()[-1]["seed"].tolist() == ["7"]
    envs.send_reset([3, 1], seed=[8, 9])  # one for each that is named
    env_ids, *_, infos = envs.recv(2)
    assert dict(zip(env_ids.tolist(), infos["seed"], strict=True)) == {3: "8", 1: "9"}


def test_tasks_reach_the_env_they_are_for_and_stay(make: Make) -> None:
    envs = make([partial(ByOptions, 2)] * 3, num_workers=2)
    envs.reset(tasks=[1, 2, 3])
    envs.send_reset([2, 0], tasks=[33, 11])
    assert {env: row[0] for env, row in received(envs, 2).items()} == {0: [11, 1, 0], 2: [33, 1, 0]}
    envs.send_reset([1], options={"task": 22})
    assert received(envs, 1)[1][0] == [22, 1, 0]
    for _ in range(6):
        observations, *_, infos = envs.step([0] * 3)
        assert observations[:, 0].tolist() == infos["task_id"].tolist() == [11, 22, 33]


# ---- receiving one ---------------------------------------------------------------------------------------------------


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


def test_recv_env_waits_for_that_env_alone(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(SlowResetEnv, gate.path), CountingEnv])
    envs.send_reset()
    assert envs.recv_env(1)[0].tolist() == [0, 0]
    gate.let_through()
    assert envs.recv_env(0)[0].tolist() == [0, 0]


# ---- time ------------------------------------------------------------------------------------------------------------


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


class Clock:
    """In the place of the module `time`."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now


def test_a_caller_that_comes_late_finds_what_came_in_time(make_process: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("parallel_envs.vector.in_flight.time", clock)
    envs = make_process([CountingEnv] * 2, backend="serial", step_timeout=10.0)
    envs.send([0, 0])
    clock.now = 20.0  # the learner has taken its time
    assert received(envs, 2) == {0: ([-1, 1], 1.0, False), 1: ([-1, 1], 1.0, False)}


def test_ready_ids_are_those_that_recv_would_bring(make: Make) -> None:
    envs = opened(make, [CountingEnv] * 3, num_workers=2)
    assert envs.ready_ids == []
    envs.send([0, 0], env_ids=[2, 0])
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
    envs = opened(make_parallel, [partial(GatedEnv, gate.path), CountingEnv, partial(GatedEnv, gate.path)])
    envs.send([0, 0, 0])
    while not (ids := envs.ready_ids):
        pass
    assert ids == envs.ready_ids == [1]
    assert envs.recv()[0].tolist() == [1]
    assert envs.ready_ids == []
    gate.let_through(2)
    assert sorted(envs.recv(2)[0].tolist()) == [0, 2]


# ---- calls out of turn -----------------------------------------------------------------------------------------------


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


# ---- faults ----------------------------------------------------------------------------------------------------------


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


def test_a_rejected_task_is_an_error_of_its_env(make: Make) -> None:
    envs = make([Choosy] * 2)
    envs.send_reset(tasks=[1, 99])
    assert envs.recv_env(0)[0].tolist() == [1, 0, 0]
    with pytest.raises(LookupError, match="Env 1"):
        envs.recv_env(1)
    envs.send_reset([1], tasks=[3])
    assert envs.recv_env(1)[0][0] == 3


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


@pytest.fixture
def _forgotten_records(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A log record of a restart holds the error, and that, through its traceback, all that the env ever held."""
    yield
    caplog.get_records("call").clear()


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
    envs.send_reset([1], seed=40)
    observation, reward, terminated, truncated, info = envs.recv_env(1)
    assert_same_batch(observation, ScriptedEnv().reset(seed=41)[0])
    assert (reward, terminated, truncated, info) == (0.0, False, False, {"worker_restarted": True})
    assert sum(row["restarts"] for row in envs.stats()) == 1


@pytest.mark.usefixtures("_forgotten_records")
def test_a_reset_done_anew_keeps_its_task(make: Make, tmp_path: Path) -> None:
    broken = partial(FaultyEnv, Fault.EXCEPTION, Moment.RESET, at=2, once=tmp_path / "broken")
    envs = make([broken] * 2, num_workers=1, on_failure="restart")
    envs.reset(tasks=[5, 6])
    envs.send_reset([1], tasks=[8])
    *_, infos = envs.recv()
    assert (infos["task_id"].tolist(), infos["worker_restarted"].tolist()) == ([8], [True])
    assert envs.get_tasks() == [5, 8]
