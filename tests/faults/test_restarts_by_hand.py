"""`restart(env_ids)`: when it is asked for, and what it leaves alone."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.errors import ClosedError, EnvError, WorkerDied, WorkerStartError
from parallel_envs.testing import Fault, FaultyEnv, Moment, ScriptedEnv
from tests.engine.asking import ends_within
from tests.faults.broken_envs import LONG, OneLifeEnv
from tests.faults.courses import Witness
from tests.faults.matrix import Make, faulty, reset, step
from tests.gates import Gate
from tests.vector.small_envs import CountingEnv, GatedEnv

SCRIPTED: dict[str, Any] = {"episode_lengths": (2, 3)}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
@pytest.mark.parametrize(
    ("backend", "num_workers"), [("process", 1), ("process", 2), ("process", 4), ("serial", 2), ("thread", 2)]
)
@pytest.mark.parametrize("chosen", [[2], [0, 1, 3]], ids=str)
def test_idle_envs_that_are_restarted_say_so_in_the_next_step(
    make: Make, backend: str, num_workers: int, mode: str, chosen: list[int]
) -> None:
    envs = make([partial(ScriptedEnv, **SCRIPTED)] * 4, num_workers=num_workers, backend=backend, autoreset_mode=mode)
    witness = Witness(envs, **SCRIPTED)
    witness.reset(seed=5)
    witness.step()
    witness.reset_ended()
    envs.restart(chosen)
    witness.step(lost=chosen)
    for _ in range(5):
        witness.step()


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_a_single_number_is_an_env_and_nothing_means_all(make: Make, backend: str) -> None:
    envs = make([partial(ScriptedEnv, **LONG)] * 2, backend=backend)
    witness = Witness(envs, **LONG)
    witness.reset()
    envs.restart(1)
    witness.step(lost={1})
    envs.restart()
    witness.step(lost={0, 1})


def test_a_restart_before_the_first_reset_harms_nothing(make: Make) -> None:
    envs = make([partial(ScriptedEnv, **LONG)] * 2)
    envs.restart(0)
    witness = Witness(envs, **LONG)
    witness.courses[0].num_lost += 1
    witness.reset()
    witness.step()


def test_a_reset_takes_back_what_the_next_step_would_have_said(make: Make) -> None:
    envs = make([partial(ScriptedEnv, **LONG)] * 2)
    reset(envs)
    envs.restart(0)
    assert "worker_restarted" not in envs.reset(seed=1)[1]
    assert not step(envs)[3].any()


def test_restarting_twice_is_one_loss(make: Make) -> None:
    envs = make([partial(ScriptedEnv, **LONG)] * 2)
    reset(envs)
    envs.restart(0)
    envs.restart(0)
    assert step(envs)[3].tolist() == [True, False]
    assert step(envs)[3].tolist() == [False, False]
    assert envs.stats()[0]["restarts"] == 2


def test_the_workers_process_is_another_and_the_old_one_is_gone(make: Make, method: str) -> None:
    envs = make([ScriptedEnv] * 2, context=method)
    before = [row["pid"] for row in envs.stats()]
    envs.restart(1)
    after = [row["pid"] for row in envs.stats()]
    assert after[0] == before[0]
    assert after[1] != before[1]
    assert ends_within(before[1], 0.0)


def test_one_of_several_envs_is_replaced_within_its_worker(make: Make) -> None:
    envs = make([CountingEnv] * 3, num_workers=1)
    reset(envs)
    step(envs)
    before = envs.stats()[0]["pid"]
    envs.restart(1)
    assert envs.stats()[0]["pid"] == before
    assert envs.get_attr("elapsed") == (1, 0, 1)


def test_a_dead_worker_is_replaced_as_a_whole(make: Make, tmp_path: Path) -> None:
    envs = make(
        [faulty(Fault.OS_EXIT, Moment.STEP, tmp_path / "broken"), *[partial(ScriptedEnv, **LONG)] * 3], num_workers=2
    )
    witness = Witness(envs, **LONG)
    witness.reset()
    with pytest.raises(WorkerDied):
        step(envs)
    for course in witness.courses[2:]:
        course.step(course.index % 3)
    envs.restart(0)
    witness.step(lost={0, 1})
    witness.step()


def test_a_dead_worker_that_nobody_noticed_is_replaced(make: Make, tmp_path: Path) -> None:
    idle = partial(FaultyEnv, Fault.SIGKILL, Moment.IDLE, once=tmp_path / "broken", **LONG)
    envs = make([idle, partial(ScriptedEnv, **LONG)])
    witness = Witness(envs, **LONG)
    witness.reset()
    witness.step()
    assert ends_within(envs.stats()[0]["pid"], 20.0)
    envs.restart(0)
    witness.step(lost={0})
    witness.step()


def test_by_hand_it_costs_nothing_of_the_budget(make: Make) -> None:
    envs = make([CountingEnv], on_failure="restart", max_restarts=1)
    for _ in range(4):
        envs.restart()
    assert envs.stats()[0]["restarts"] == 4


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_an_env_that_cannot_be_made_again_is_an_error_and_the_others_are_well(
    make: Make, tmp_path: Path, backend: str
) -> None:
    envs = make([CountingEnv, partial(TameEnv, tmp_path / "lives")], max_restarts=2, backend=backend)
    reset(envs)
    with pytest.raises(EnvError, match="construction 4"):
        envs.restart(1)
    assert envs.get_attr("elapsed", env_ids=0) == (0,)


class TameEnv(CountingEnv):
    """Can be made once."""

    def __init__(self, notes: Path) -> None:
        super().__init__()
        OneLifeEnv(notes)


# ---- while something is on its way ---------------------------------------------------------------


def test_idle_workers_are_restarted_while_others_are_busy(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path), CountingEnv], step_timeout=None)
    reset(envs)
    envs.send(np.zeros(1, int), env_ids=0)
    envs.restart(1)
    envs.send(np.zeros(1, int), env_ids=1)
    order, _, _, _, truncated, infos = envs.recv()
    assert (order.tolist(), truncated.tolist(), infos["worker_restarted"].tolist()) == ([1], [True], [True])
    gate.let_through()
    order, observations, *_ = envs.recv(timeout=20.0)
    assert (order.tolist(), observations.tolist()) == ([0], [[0, 1]])


def test_a_busy_worker_of_several_envs_is_replaced_as_a_whole(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path), CountingEnv, CountingEnv], num_workers=2, step_timeout=None)
    reset(envs)
    envs.step_async(np.zeros(3, int))
    envs.restart(1)
    assert envs.step_wait()[3].tolist() == [True, True, False]


@pytest.mark.parametrize("backend", ["serial", "thread"])
def test_a_busy_worker_that_is_no_process_cannot_be_restarted(make: Make, gate: Gate, backend: str) -> None:
    envs = make([partial(GatedEnv, gate.path)], backend=backend, step_timeout=None)
    reset(envs)
    envs.step_async(np.zeros(1, int))
    with pytest.raises(WorkerStartError, match="Worker 0 is busy"):
        envs.restart()
    gate.let_through()
    assert envs.step_wait()[1].tolist() == [1.0]


# ---- bad input -----------------------------------------------------------------------------------


def test_a_closed_manager_cannot_be_restarted(make: Make) -> None:
    envs = make([CountingEnv])
    envs.close()
    with pytest.raises(ClosedError, match=r"`restart`.*after a call to `close\(\)`"):
        envs.restart()


@pytest.mark.parametrize("env_ids", [2, -3, [0, 2], [0.0], ["0"], [True], [0, 0], []])
def test_unknown_envs_are_refused_and_nothing_is_restarted(make: Make, env_ids: Any) -> None:
    envs = make([CountingEnv] * 2)
    with pytest.raises(ValueError, match="env_ids"):
        envs.restart(env_ids)
    assert [row["restarts"] for row in envs.stats()] == [0, 0]


def test_it_is_logged_as_asked_for(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    envs = make([CountingEnv])
    with caplog.at_level(logging.INFO, "parallel_envs"):
        envs.restart(0)
    assert "Worker 0 (env 0) is restarted on request." in caplog.text
