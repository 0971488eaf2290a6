"""`send_reset`: some envs reset at their own pace, among others that step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError, NoAsyncCallError

from parallel_envs.errors import EnvError, StepTimeout
from parallel_envs.testing import Fault, FaultyEnv, Moment, ScriptedEnv, assert_same_batch
from tests.gates import Gate
from tests.vector.conftest import Make, Manager
from tests.vector.small_envs import ArgumentsEnv, CountingEnv, FailingEnv, GatedEnv, SlowResetEnv
from tests.vector.task_envs import ByOptions, ByResetTask, Choosy

workers = pytest.mark.parametrize("num_workers", [1, 2, 4])


def zeros(num: int) -> Any:
    return np.zeros(num, int)


def received(envs: Manager, count: int) -> dict[int, Any]:
    """What `count` envs have answered, by env: observation, reward, and whether an episode has ended."""
    env_ids, observations, rewards, terminated, truncated, _ = envs.recv(min_envs=count)
    rows = zip(observations.tolist(), rewards.tolist(), (terminated | truncated).tolist(), strict=True)
    return dict(sorted(zip(env_ids.tolist(), rows, strict=True)))


# ---- resetting -----------------------------------------------------------------------------------


@workers
def test_resetting_all_and_receiving_all_is_a_reset(make: Make, num_workers: int) -> None:
    envs, reference = (make([ScriptedEnv] * 4, num_workers=num_workers) for _ in range(2))
    envs.send_reset(seed=3)
    order, observations, *rest, _ = envs.recv(min_envs=4)
    assert_same_batch(observations[np.argsort(order)], reference.reset(seed=3)[0])
    assert [array.tolist() for array in rest] == [[0.0] * 4, [False] * 4, [False] * 4]
    assert_same_batch(envs.step(zeros(4))[0], reference.step(zeros(4))[0])


@workers
def test_some_reset_while_others_step(make: Make, num_workers: int) -> None:
    envs = make([CountingEnv] * 4, num_workers=num_workers)
    envs.reset(seed=0)
    envs.send(zeros(2), env_ids=[3, 1])
    envs.send_reset([2])
    envs.send(zeros(1), env_ids=[0])
    expected = {env: ([0, 1], 1.0, False) for env in (0, 1, 3)} | {2: ([1, 0], 0.0, False)}
    assert received(envs, 4) == dict(sorted(expected.items()))
    assert envs.step(zeros(4))[0].tolist() == [[0, 2], [0, 2], [1, 1], [0, 2]]


def test_a_reset_takes_the_place_of_the_pending_one(make: Make) -> None:
    envs = make([partial(CountingEnv, 1)] * 2)
    envs.reset(seed=0)
    envs.send(zeros(2))
    received(envs, 2)
    envs.send_reset([1])
    assert received(envs, 1) == {1: ([1, 0], 0.0, False)}
    envs.send(zeros(2))
    assert received(envs, 2) == {0: ([1, 0], 0.0, False), 1: ([1, 1], 1.0, True)}


def test_infos_of_resets_and_steps_come_together(make: Make) -> None:
    envs = make([CountingEnv] * 2, num_workers=1)
    envs.reset(seed=0)
    envs.send(zeros(1), env_ids=[1])
    envs.send_reset([0])
    env_ids, *_, infos = envs.recv(min_envs=2)
    place = np.argsort(env_ids)  # which of the two is received first is not said
    assert_same_batch(
        {key: value[place] for key, value in infos.items()},
        {
            "elapsed": np.array([0, 1]),
            "_elapsed": np.array([False, True]),
            "began": np.array([1, 0]),
            "_began": np.array([True, False]),
        },
    )


def test_seeds_and_options_reach_the_env_they_are_for(make: Make) -> None:
    envs = make([ArgumentsEnv] * 4, num_workers=2)
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
        observations, *_, infos = envs.step(zeros(3))
        assert observations[:, 0].tolist() == infos["task_id"].tolist() == [11, 22, 33]


def test_a_mask_says_which(make_process: Make) -> None:
    envs = make_process([CountingEnv] * 3)
    envs.reset(seed=0)
    envs.send(zeros(1), env_ids=[0])
    envs.send_reset(options={"reset_mask": np.array([False, True, True])})
    assert {env: row[0] for env, row in received(envs, 3).items()} == {0: [0, 1], 1: [1, 0], 2: [1, 0]}


# ---- receiving one -------------------------------------------------------------------------------


def test_recv_env_returns_what_the_env_itself_would(make: Make) -> None:
    envs = make([CountingEnv] * 3, num_workers=2)
    envs.send_reset([2, 0])
    envs.send(zeros(1), env_ids=[1])
    answers = {0: ([0, 0], 0.0, False, False, {"began": 0}), 1: ([-1, 1], 1.0, False, False, {"elapsed": 1})}
    for env, expected in answers.items():
        observation, *rest = envs.recv_env(env)
        assert (observation.tolist(), *rest) == expected
        assert [type(value) for value in rest] == [float, bool, bool, dict]
    assert received(envs, 1) == {2: ([0, 0], 0.0, False)}


def test_what_recv_env_returned_is_the_callers(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    envs.send_reset([0])
    observation = envs.recv_env(0)[0]
    envs.step(zeros(2))
    assert observation.tolist() == [0, 0]


def test_recv_env_waits_for_that_env_alone(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(SlowResetEnv, gate.path), CountingEnv])
    envs.send_reset()
    assert envs.recv_env(1)[0].tolist() == [0, 0]
    gate.let_through()
    assert envs.recv_env(0)[0].tolist() == [0, 0]


def test_recv_env_of_an_env_that_was_sent_nothing_is_refused(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    with pytest.raises(NoAsyncCallError, match="env 1"):
        envs.recv_env(1)
    envs.send_reset([0])
    with pytest.raises(NoAsyncCallError, match="env 1"):
        envs.recv_env(1)
    envs.recv_env(0)
    with pytest.raises(NoAsyncCallError, match="env 0"):
        envs.recv_env(0)


# ---- time ----------------------------------------------------------------------------------------


def test_the_rest_goes_on_while_one_env_resets_slowly(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(SlowResetEnv, gate.path), partial(CountingEnv, 100)])
    envs.send_reset([0])
    for number in range(1, 5):
        envs.send(zeros(1), env_ids=[1])
        assert received(envs, 1) == {1: ([-1, number], float(number), False)}
    gate.let_through()
    assert received(envs, 1) == {0: ([0, 0], 0.0, False)}


def test_recv_env_times_out_and_loses_nothing(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(SlowResetEnv, gate.path), partial(GatedEnv, gate.path)])
    envs.send_reset([0])
    envs.send(zeros(1), env_ids=[1])
    for env in (0, 1):
        with pytest.raises(StepTimeout):
            envs.recv_env(env, timeout=0.02)
    gate.let_through(2)
    assert [envs.recv_env(env)[0].tolist() for env in (0, 1)] == [[0, 0], [-1, 1]]


def test_a_reset_has_the_time_of_resets(make_parallel: Make, gate: Gate) -> None:
    envs = make_parallel([partial(SlowResetEnv, gate.path), CountingEnv], reset_timeout=0.02)
    envs.send_reset([0])
    with pytest.raises(StepTimeout, match=r"(?s)Env 0 .*0\.02 seconds during reset") as caught:
        envs.recv()
    assert caught.value.env_ids == (0,)


@pytest.mark.parametrize("asked", ["reset", "step"])
def test_an_answer_that_was_late_is_received_after_all(make_parallel: Make, gate: Gate, asked: str) -> None:
    env = partial(SlowResetEnv if asked == "reset" else GatedEnv, gate.path)
    envs = make_parallel([env], reset_timeout=0.02, step_timeout=0.02)
    envs.send_reset() if asked == "reset" else envs.send(zeros(1))
    with pytest.raises(StepTimeout):
        envs.recv()
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


def test_a_caller_who_comes_late_finds_what_came_in_time(make_process: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("parallel_envs.vector.in_flight.time", clock)
    envs = make_process([CountingEnv] * 2, backend="serial", step_timeout=10.0)
    envs.send(zeros(2))
    clock.now = 20.0  # the learner has taken its time
    assert received(envs, 2) == {0: ([-1, 1], 1.0, False), 1: ([-1, 1], 1.0, False)}


# ---- what is refused -----------------------------------------------------------------------------


@pytest.mark.parametrize("asked", ["send_reset", "send"])
def test_an_env_on_its_way_is_not_asked_again(make: Make, asked: str) -> None:
    envs = make([CountingEnv] * 2)
    envs.send_reset([1])
    with pytest.raises(AlreadyPendingCallError, match=f"`{asked}`.*env 1"):
        envs.send_reset() if asked == "send_reset" else envs.send(zeros(2))
    assert received(envs, 1) == {1: ([0, 0], 0.0, False)}
    assert envs.step(zeros(2))[0].tolist() == [[-1, 1], [0, 1]]


@pytest.mark.parametrize("asked", ["step", "reset", "call", "set_tasks"])
def test_nothing_else_goes_on_until_all_have_been_received(make: Make, asked: str) -> None:
    envs = make([ByResetTask] * 2)
    ways: dict[str, Callable[[], Any]] = {
        "step": lambda: envs.step(zeros(2)),
        "reset": envs.reset,
        "call": lambda: envs.call("played"),
        "set_tasks": lambda: envs.set_tasks([1, 2]),
    }
    envs.send_reset([0])
    with pytest.raises(AlreadyPendingCallError):
        ways[asked]()
    received(envs, 1)
    ways[asked]()


BAD: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"env_ids": [0, 9]}, ValueError, "9"),
    ({"env_ids": [1, 1]}, ValueError, "twice"),
    ({"env_ids": []}, ValueError, "empty"),
    ({"env_ids": [0, 1], "tasks": [1]}, ValueError, "1 tasks.*2 env"),
    ({"env_ids": [0, 1], "tasks": [1, threading.Lock()]}, TypeError, "lock"),
    ({"env_ids": [0], "tasks": 5}, TypeError, "tasks=5"),
    ({"env_ids": [0, 1], "options": [{}]}, ValueError, "1 options.*2 env"),
    ({"env_ids": [0], "seed": [1, 2]}, ValueError, "2 seeds"),
    ({"env_ids": [0], "seed": "x"}, TypeError, "seed='x'"),
]


@pytest.mark.parametrize(("arguments", "error", "words"), BAD)
def test_bad_resets_are_refused_before_anything_moves(
    make_process: Make, arguments: dict[str, Any], error: type[Exception], words: str
) -> None:
    envs = make_process([ByResetTask] * 3, num_workers=2)
    envs.reset(tasks=[5, 6, 7])
    with pytest.raises(error, match=words):
        envs.send_reset(**arguments)
    assert envs.step(zeros(3))[0].tolist() == [[5, 0, 1], [6, 0, 1], [7, 0, 1]]


def test_options_that_cannot_travel_leave_nothing_on_the_way(make_process: Make) -> None:
    envs = make_process([CountingEnv] * 2)
    with pytest.raises(TypeError, match="lock"):
        envs.send_reset(options=[{}, {"lock": threading.Lock()}])
    envs.send(zeros(2))
    assert len(envs.recv(min_envs=2)[0]) == 2


# ---- faults --------------------------------------------------------------------------------------


def test_an_error_is_of_its_env_and_the_others_come_after(make: Make) -> None:
    envs = make([CountingEnv, partial(FailingEnv, at_resets=(2,)), CountingEnv], num_workers=2)
    envs.reset(seed=0)
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


@pytest.fixture
def _forgotten_records(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A log record of a restart holds the error, and that, through its traceback, all that the env ever held."""
    yield
    caplog.get_records("call").clear()


@pytest.mark.usefixtures("_forgotten_records")
@pytest.mark.parametrize(
    ("fault", "num_workers"),
    [
        *((fault, num_workers) for fault in (Fault.EXCEPTION, Fault.SIGKILL) for num_workers in (1, 3)),
        (Fault.SLEEP, 1),
    ],
)
def test_a_reset_that_failed_is_done_anew_as_it_was_asked_for(
    make_process: Make, tmp_path: Path, fault: Fault, num_workers: int
) -> None:
    broken = partial(FaultyEnv, fault, Moment.RESET, at=2, once=tmp_path / "broken")
    envs = make_process(
        [ScriptedEnv, broken, ScriptedEnv], num_workers=num_workers, on_failure="restart", reset_timeout=1.0
    )
    envs.reset(seed=0)
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
