"""A worker dies while another is at work, or hangs: the death is named or mended at once, and no answer is lost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.errors import StepTimeout, WorkerDied
from tests.faults.broken_envs import lives
from tests.faults.matrix import Make
from tests.gates import Gate, wait_at
from tests.vector.small_envs import CountingEnv, GatedEnv, SlowResetEnv

THREE = np.zeros(3, int)
PATIENT: dict[str, Any] = {"step_timeout": 60.0, "reset_timeout": 60.0}
"""Deadlines that no test here should reach: waiting for the closed gate until one passes is the defect."""


class DyingEnv(CountingEnv):
    """Ends its worker in its first life, at its first `moment`."""

    def __init__(self, notes: Path, moment: str) -> None:
        super().__init__(100)
        self.moment = moment if lives(notes) == 1 else ""
        self.die_at("init")

    def die_at(self, moment: str) -> None:
        if self.moment == moment:
            os._exit(7)

    def reset(self, **arguments: Any) -> Any:
        self.die_at("reset")
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        self.die_at("step")
        return super().step(action)

    def slow_call(self) -> str:
        os._exit(7)


class SlowToMakeEnv(CountingEnv):
    def __init__(self, gate: Path) -> None:
        wait_at(gate)
        super().__init__()


def at_work_dying_idle(make: Make, gate: Gate, folder: Path, **settings: Any) -> ParallelEnvManager:
    """In the first step env 0 waits at the gate, env 1 dies, and env 2 answers at once."""
    fns = [partial(GatedEnv, gate.path), partial(DyingEnv, folder / "lives", "step"), partial(CountingEnv, 100)]
    envs = make(fns, **{**PATIENT, **settings})
    envs.reset(seed=0)
    return envs


def step_until_death(envs: ParallelEnvManager) -> WorkerDied:
    with pytest.raises(WorkerDied, match=r"during step 1\..*Still at work: envs? [02, ]+\.") as caught:
        envs.step(THREE)
    assert caught.value.env_ids == (1,)
    return caught.value


# ---- on_failure="raise" --------------------------------------------------------------------------


@pytest.mark.parametrize("copy", [True, False])
def test_a_death_in_a_step_is_raised_while_others_are_at_work(
    make: Make, gate: Gate, tmp_path: Path, copy: bool
) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path, copy=copy)
    step_until_death(envs)
    envs.restart(1)
    gate.let_through()
    observations, rewards, _, truncated, infos = envs.step_wait()
    assert observations.tolist() == [[0, 1], [0, 0], [0, 1]]
    assert rewards.tolist() == [1.0, 0.0, 1.0]
    assert truncated.tolist() == infos["worker_restarted"].tolist() == [False, True, False]
    assert envs.step(THREE)[0][:, 1].tolist() == [2, 0, 2]  # the reset row of the next-step autoreset


def test_waiting_again_without_a_restart_waits_for_the_others_and_names_the_death_again(
    make: Make, gate: Gate, tmp_path: Path
) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
    step_until_death(envs)
    gate.let_through()
    for _ in range(2):
        with pytest.raises(WorkerDied, match=r"during step 1\."):
            envs.step_wait()
    envs.restart(1)
    assert envs.step_wait()[0].tolist() == [[0, 1], [0, 0], [0, 1]]


@pytest.mark.parametrize("copy", [True, False])
def test_another_request_gives_the_failed_step_up(make: Make, gate: Gate, tmp_path: Path, copy: bool) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path, copy=copy)
    step_until_death(envs)
    envs.restart(1)
    gate.let_through()
    assert envs.call("add", 5) == (6, 5, 6)  # the late answer to the step is no answer to the call
    observations, infos = envs.reset(env_ids=[2])
    assert observations.tolist() == [[0, 1], [0, 0], [1, 0]]
    assert "worker_restarted" not in infos
    observations, *_, infos = envs.step(THREE)
    assert observations.tolist() == [[0, 2], [0, 0], [1, 1]]
    assert infos["worker_restarted"].tolist() == [False, True, False]


def test_after_a_death_it_does_not_matter_whether_others_were_still_at_work(make: Make, tmp_path: Path) -> None:
    envs = make([partial(CountingEnv, 100), partial(DyingEnv, tmp_path / "lives", "step")], **PATIENT)
    envs.reset(seed=0)
    with pytest.raises(WorkerDied):
        envs.step(THREE[:2])
    envs.restart(1)
    assert envs.step_wait()[0].tolist() == [[0, 1], [0, 0]]
    assert envs.reset(seed=0)[0].tolist() == [[1, 0], [1, 0]]


def test_a_second_death_is_raised_at_once_too(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
    step_until_death(envs)
    os.kill(envs.stats()[0]["pid"], 9)
    with pytest.raises(WorkerDied, match=r"^Worker 0 .*signal 9") as caught:
        envs.step_wait()
    assert caught.value.env_ids == (0,)
    envs.restart([0, 1])
    assert envs.step_wait()[4]["worker_restarted"].tolist() == [True, True, False]


def test_a_hanging_sibling_times_out_and_can_be_restarted(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
    step_until_death(envs)
    with pytest.raises(StepTimeout, match=r"^Env 0 did not answer within 0\.1 seconds during step 1\."):
        envs.step_wait(timeout=0.1)
    envs.restart(1)
    with pytest.raises(StepTimeout, match=r"^Env 0 did not answer"):
        envs.step_wait(timeout=0.1)
    envs.restart(0)
    assert envs.step_wait()[4]["worker_restarted"].tolist() == [True, True, False]


def test_a_reset_that_gives_up_a_hanging_step_times_out(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path, step_timeout=4.0)
    step_until_death(envs)
    with pytest.raises(StepTimeout, match=r"^Env 0 did not answer within 4\.0 seconds during step 1\."):
        envs.reset(seed=0)
    envs.restart([0, 1])
    assert envs.reset(seed=0)[0].tolist() == [[1, 0], [1, 0], [1, 0]]


def test_a_failed_step_may_be_closed(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
    step_until_death(envs)
    envs.close(timeout=0.2)
    assert envs.closed


def test_a_death_in_a_reset_is_raised_while_others_are_at_work(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = make([partial(SlowResetEnv, gate.path), partial(DyingEnv, tmp_path / "lives", "reset")], **PATIENT)
    with pytest.raises(WorkerDied, match=r"during reset\..*Still at work: env 0\."):
        envs.reset(seed=0)
    gate.let_through()
    envs.restart(1)
    observations, infos = envs.reset_wait()
    assert observations.tolist() == [[0, 0], [1, 0]]
    assert infos["worker_restarted"].tolist() == [False, True]


def test_a_death_in_a_call_is_raised_while_others_are_at_work(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
    with pytest.raises(WorkerDied, match=r"during call of 'slow_call'\."):
        envs.call("slow_call", env_ids=[0, 1])
    gate.let_through()
    with pytest.raises(WorkerDied, match=r"during call of 'slow_call'\."):
        envs.call_wait()
    envs.restart(1)
    assert envs.get_attr("elapsed") == (0, 0, 0)


def test_a_death_beside_envs_on_their_way_is_raised_at_once(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
    envs.send(THREE)
    with pytest.raises(WorkerDied, match=r"^Worker 1 "):
        envs.recv(min_envs=3)
    gate.let_through()
    order, observations, *_ = envs.recv(min_envs=2)
    assert dict(zip(order.tolist(), observations.tolist(), strict=True)) == {0: [0, 1], 2: [0, 1]}
    envs.restart(1)
    assert envs.step(THREE)[0].tolist() == [[0, 2], [0, 0], [0, 2]]


def test_a_death_on_the_way_is_no_affair_of_another_env(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
    envs.send(THREE)
    assert envs.recv_env(2)[0].tolist() == [0, 1]
    with pytest.raises(WorkerDied):
        envs.recv_env(1)
    gate.let_through()
    assert envs.recv_env(0)[0].tolist() == [0, 1]


def test_a_death_in_construction_is_raised_while_others_are_being_made(make: Make, gate: Gate, tmp_path: Path) -> None:
    fns = [partial(SlowToMakeEnv, gate.path), partial(DyingEnv, tmp_path / "lives", "init")]
    with pytest.raises(WorkerDied, match=r"^Worker 1 .*exit code 7 during its construction\."):
        make(fns, start_timeout=60.0)


# ---- on_failure="restart" ------------------------------------------------------------------------


def opened_once_restarted(gate: Gate, notes: Path) -> tuple[threading.Thread, list[bool]]:
    """Open the gate as soon as the dying env begins its second life; note whether it did so in time."""
    seen: list[bool] = []

    def watch() -> None:
        until = time.monotonic() + 40.0
        while notes.stat().st_size < 2 and time.monotonic() < until:
            time.sleep(0.01)
        seen.append(notes.stat().st_size >= 2)
        gate.let_through()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread, seen


@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize("own_pace", [False, True], ids=["step", "send"])
def test_a_dead_worker_is_restarted_while_others_are_at_work(
    make: Make, gate: Gate, tmp_path: Path, own_pace: bool, copy: bool
) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path, on_failure="restart", copy=copy)
    thread, in_time = opened_once_restarted(gate, tmp_path / "lives")
    rows = rows_at_own_pace(envs) if own_pace else rows_of_a_step(envs)
    thread.join()
    assert in_time == [True]
    assert rows == {0: ([0, 1], False), 1: ([0, 0], True), 2: ([0, 1], False)}


Rows = dict[int, tuple[list[int], bool]]


def rows_of_a_step(envs: ParallelEnvManager) -> Rows:
    """By env, its observation and whether it was restarted."""
    observations, *_, infos = envs.step(THREE)
    return dict(enumerate(zip(observations.tolist(), infos["worker_restarted"].tolist(), strict=True)))


def rows_at_own_pace(envs: ParallelEnvManager) -> Rows:
    envs.send(THREE)
    order, observations, *_, infos = envs.recv(min_envs=3)
    marks = infos["worker_restarted"].tolist()
    return dict(zip(order.tolist(), zip(observations.tolist(), marks, strict=True), strict=True))


def test_a_hanging_sibling_meets_its_deadline_after_the_restart(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path, on_failure="restart", step_timeout=3.0)
    marks = envs.step(THREE)[4]["worker_restarted"]
    assert marks.tolist() == [True, True, False]
    gate.let_through()
    envs.step(THREE)


def test_a_budget_that_is_spent_is_told_at_once(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path), AlwaysDying], on_failure="restart", max_restarts=1, **PATIENT)
    envs.reset(seed=0)
    gate.let_through()
    envs.step(THREE[:2])
    assert_raises_as_long_as_it_dies(lambda: envs.step(THREE[:2]))
    assert envs.call("add", 1, env_ids=0)[0] >= 2


class AlwaysDying(CountingEnv):
    def step(self, action: Any) -> Any:
        os._exit(7)


def assert_raises_as_long_as_it_dies(ask: Callable[[], Any]) -> None:
    ask()  # the reset row
    with pytest.raises(WorkerDied, match="as often as max_restarts allows"):
        ask()
