"""The death matrix under `on_failure="raise"`: what goes wrong x when x how workers are started.

Each time the caller is told what, where and when, in bounded time; the manager goes on; and nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError

from parallel_envs import ParallelEnvManager
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied
from parallel_envs.testing import Fault, Moment, ScriptedEnv
from tests.engine.asking import WAIT_SECONDS, ends_within
from tests.faults.matrix import (
    ALL,
    APPROACHES,
    ASKING,
    CLOSE_SECONDS,
    EXIT_CODES,
    HANGING,
    HARMLESS,
    HUGE,
    RAISED,
    SHORT,
    SLACK,
    Make,
    actions,
    await_idle_fault,
    error_of,
    faulty,
    name,
    reset,
    sound,
    step,
    text_of,
    within,
)
from tests.gates import Gate
from tests.vector.small_envs import CountingEnv, GatedEnv

# All of it under "fork" and "forkserver". A worker that is spawned takes a second to start: every third case there,
# which are all faults and all moments. (One that is to hang while it is made has not begun when the deadline is over.)
CASES = [(method, *case) for method in ("forkserver", "fork") for case in ALL]
CASES += [("spawn", *case) for case in ALL[::3] if case[1] is not Moment.CONSTRUCTOR or case[0] not in HANGING]
CONSTRUCTING = [case for case in CASES if case[2] is Moment.CONSTRUCTOR]
CLOSING = [case for case in CASES if case[2] is Moment.CLOSE]
ASKED = [case for case in CASES if case[2] in ASKING]
BREAKING = [case for case in ASKED if case[1:] not in HARMLESS]
RAISING = [case for case in ALL if case[0] in RAISED and case[1] in ASKING]
LARGE = [moment for fault, moment in ALL if fault is Fault.HUGE_REPLY]
STOP_SECONDS = 2.0
"""What a manager that cannot be made gives its workers to end."""


def neighbours(fault: Fault, moment: Moment, folder: Path) -> list[Any]:
    """A sound env, and one that breaks."""
    return [sound(moment), faulty(fault, moment, folder / "broken")]


# ---- construction --------------------------------------------------------------------------------


@pytest.mark.parametrize(("context", "fault", "moment"), CONSTRUCTING, ids=name)
def test_a_manager_whose_env_breaks_in_its_constructor_is_not_made(
    make: Make, tmp_path: Path, context: str, fault: Fault, moment: Moment
) -> None:
    envs = neighbours(fault, moment, tmp_path)
    if (fault, moment) in HARMLESS:
        assert len(make(envs, context=context).metadata) > 0
        return
    limit = SHORT if fault in HANGING else 20.0
    with within(limit + STOP_SECONDS + SLACK), pytest.raises(error_of(fault), match=text_of(fault, moment)):
        make(envs, context=context, start_timeout=limit)


# ---- reset, step, autoreset, call, idle ----------------------------------------------------------


@pytest.mark.parametrize(("context", "fault", "moment"), BREAKING, ids=name)
def test_a_fault_is_told_in_time_and_the_manager_goes_on(
    make: Make, tmp_path: Path, context: str, fault: Fault, moment: Moment
) -> None:
    envs = make(neighbours(fault, moment, tmp_path), context=context)
    pid = envs.stats()[1]["pid"]
    APPROACHES[moment](envs)
    if moment is Moment.IDLE:
        await_idle_fault(envs, fault)
    with within(SHORT + SLACK), pytest.raises(error_of(fault), match=text_of(fault, moment)) as caught:
        ASKING[moment](envs)
    check_details(caught.value, fault, pid)
    go_on(envs, caught.value, moment)


def check_details(error: Exception, fault: Fault, pid: int) -> None:
    """What a program, not a reader, is told."""
    match error:
        case WorkerDied():
            assert (error.worker, error.pid, error.exitcode) == (1, pid, EXIT_CODES[fault])
            assert f"pid {pid}" in str(error)
        case StepTimeout():
            assert 1 in error.env_ids
            assert 1 in error.workers
            assert ("stopped" if fault is Fault.SIGSTOP else "_inflict") in str(error)
        case EnvError():
            assert error.env_ids == (1,)
            assert error.type_name == RAISED[fault]
            assert "_inflict" in str(error.__cause__)


def go_on(envs: ParallelEnvManager, error: Exception, moment: Moment) -> None:
    """Every manager can be used again: at once after an error, after a restart otherwise."""
    if not isinstance(error, EnvError):
        envs.restart(1)
    if isinstance(error, StepTimeout):
        end_what_is_pending(envs, moment)
    observations, _ = envs.reset(seed=0)
    assert observations.shape == (2, 3)
    assert envs.step(actions(envs))[4] == {}


def end_what_is_pending(envs: ParallelEnvManager, moment: Moment) -> None:
    """After a timeout and a restart the question is still open: its answer tells of the restart."""
    with pytest.raises(AlreadyPendingCallError):
        step(envs)
    if moment is Moment.CALL:
        with pytest.raises(WorkerDied, match="call of 'poke'"):
            envs.call_wait()
        return
    infos = envs.reset_wait()[1] if moment is Moment.RESET else envs.step_wait()[4]
    assert infos["worker_restarted"].tolist() == [False, True]


@pytest.mark.parametrize(("context", "fault", "moment"), BREAKING[::7], ids=name)
def test_a_manager_can_be_closed_after_any_fault(
    make: Make, tmp_path: Path, context: str, fault: Fault, moment: Moment
) -> None:
    envs = make(neighbours(fault, moment, tmp_path), context=context)
    APPROACHES[moment](envs)
    if moment is Moment.IDLE:
        await_idle_fault(envs, fault)
    with pytest.raises(error_of(fault)):
        ASKING[moment](envs)
    with within(CLOSE_SECONDS + SLACK):
        envs.close(timeout=CLOSE_SECONDS)


@pytest.mark.parametrize("backend", ["serial", "thread"])
@pytest.mark.parametrize(("fault", "moment"), RAISING, ids=name)
def test_an_error_is_told_by_every_backend(
    make: Make, tmp_path: Path, backend: str, fault: Fault, moment: Moment
) -> None:
    envs = make(neighbours(fault, moment, tmp_path), backend=backend)
    APPROACHES[moment](envs)
    with pytest.raises(EnvError, match=text_of(fault, moment)) as caught:
        ASKING[moment](envs)
    assert caught.value.env_ids == (1,)
    reset(envs)
    assert step(envs)[4] == {}


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
@pytest.mark.parametrize("moment", LARGE, ids=name)
def test_a_huge_reply_comes_whole(make: Make, tmp_path: Path, backend: str, moment: Moment) -> None:
    limits = {"step_timeout": 20.0, "reset_timeout": 20.0, "backend": backend}
    envs = make([sound(moment), faulty(Fault.HUGE_REPLY, moment, tmp_path / "broken")], **limits)
    if moment is Moment.CONSTRUCTOR:
        assert len(envs.get_attr("metadata", env_ids=1)[0]["huge"]) == HUGE
        return
    APPROACHES[moment](envs)
    if moment is Moment.CALL:
        assert len(envs.call("poke", env_ids=1)[0]) == HUGE
        return
    infos = ASKING[moment](envs)[-1]
    assert infos["huge"][0] is None
    assert len(infos["huge"][1]) == HUGE


def test_a_thread_of_an_env_that_goes_round_in_circles_stops_nobody(make: Make, tmp_path: Path) -> None:
    envs = make(neighbours(Fault.INFINITE_LOOP, Moment.IDLE, tmp_path), step_timeout=20.0)
    reset(envs)
    for _ in range(20):
        assert not step(envs)[3].any()


# ---- close ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("context", "fault", "moment"), CLOSING, ids=name)
def test_close_ends_in_time_whatever_an_env_does_then(
    make: Make, tmp_path: Path, context: str, fault: Fault, moment: Moment
) -> None:
    envs = make(neighbours(fault, moment, tmp_path), context=context)
    reset(envs)
    with within(CLOSE_SECONDS + SLACK):
        envs.close(timeout=CLOSE_SECONDS)
    assert envs.closed


@pytest.mark.parametrize("backend", ["serial", "thread"])
@pytest.mark.parametrize("fault", RAISED, ids=name)
def test_an_error_in_close_keeps_no_env_open(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, backend: str, fault: Fault
) -> None:
    note = tmp_path / "closed"
    broken = faulty(fault, Moment.CLOSE, tmp_path / "broken")
    envs = make([broken, partial(NotedEnv, note)], num_workers=1, backend=backend)
    reset(envs)
    envs.close()
    assert envs.closed
    assert note.exists()
    assert "raised while it was closed" in caplog.text


class NotedEnv(ScriptedEnv):
    """Notes in a file that it was closed."""

    def __init__(self, note: Path) -> None:
        super().__init__()
        self.note = note

    def close(self) -> None:
        self.note.touch()


# ---- many at once --------------------------------------------------------------------------------


def test_when_all_workers_die_one_of_them_is_named(make: Make, tmp_path: Path) -> None:
    envs = make([faulty(Fault.SIGKILL, Moment.STEP, tmp_path / f"broken {env}") for env in range(3)])
    reset(envs)
    with pytest.raises(WorkerDied, match=r"^Worker (\d) \(env \1, "):
        step(envs)
    until = time.monotonic() + WAIT_SECONDS
    while len(list(tmp_path.iterdir())) < 3 and time.monotonic() < until:
        time.sleep(0.01)  # the error of the first does not wait for the others, which break once each
    envs.restart()
    reset(envs)
    assert step(envs)[1].shape == (3,)


def test_a_dead_worker_names_all_its_envs(make: Make, tmp_path: Path) -> None:
    envs = make([*neighbours(Fault.OS_EXIT, Moment.STEP, tmp_path), *[sound(Moment.STEP)] * 4], num_workers=2)
    reset(envs)
    with pytest.raises(WorkerDied, match=r"^Worker 0 \(envs 0-2, pid "):
        step(envs)


def test_the_last_output_of_a_dead_worker_is_in_the_error(make: Make, tmp_path: Path) -> None:
    envs = make(neighbours(Fault.SIGSEGV, Moment.STEP, tmp_path))
    reset(envs)
    with pytest.raises(WorkerDied, match=r"(?s)Its last output:.*Segmentation fault.*_inflict"):
        step(envs)


@pytest.mark.parametrize("asked", ["reset", "step", "send", "call", "get_attr", "set_attr", "render"])
def test_a_death_while_idle_is_told_by_whatever_is_asked_next(make: Make, tmp_path: Path, asked: str) -> None:
    envs = make(neighbours(Fault.OS_EXIT, Moment.IDLE, tmp_path))
    reset(envs)
    step(envs)
    await_idle_fault(envs, Fault.OS_EXIT)
    asks: dict[str, Any] = {
        "reset": lambda: reset(envs),
        "step": lambda: step(envs),
        "send": lambda: send_and_receive(envs),
        "call": lambda: envs.call("echo"),
        "get_attr": lambda: envs.get_attr("elapsed"),
        "set_attr": lambda: envs.set_attr("label", 1),
        "render": envs.render,
    }
    with within(1.0 + SLACK), pytest.raises(WorkerDied, match="exit code 17"):
        asks[asked]()


def test_a_death_in_a_call_advises_what_is_left_to_do(make: Make) -> None:
    for on_failure, is_known in (("raise", True), ("restart", False)):
        envs = make([ScriptedEnv], on_failure=on_failure)
        with pytest.raises(WorkerDied, match=r"Call envs\.restart\(env_ids\) to replace it") as caught:
            envs.apply(lambda env: os._exit(1))
        assert ("on_failure='restart'" in str(caught.value)) is is_known
        assert ("the next step or reset does so by itself" in str(caught.value)) is not is_known


def test_the_living_answer_while_a_dead_worker_waits_to_be_replaced(make: Make, tmp_path: Path) -> None:
    envs = make(neighbours(Fault.OS_EXIT, Moment.STEP, tmp_path))
    reset(envs)
    with pytest.raises(WorkerDied):
        step(envs)
    assert envs.get_attr("elapsed", env_ids=0) == (1,)
    envs.send(np.array([1]), env_ids=0)
    assert envs.recv()[0].tolist() == [0]


def send_and_receive(envs: ParallelEnvManager) -> Any:
    envs.send(actions(envs))
    return envs.recv(2)


# ---- while others take long ----------------------------------------------------------------------


def test_only_workers_that_live_are_told_to_be_at_work(make: Make, gate: Gate) -> None:
    envs = make([partial(CountingEnv, 9), partial(CountingEnv, 9), partial(GatedEnv, gate.path)], step_timeout=None)
    reset(envs)
    for row in envs.stats()[:2]:
        os.kill(row["pid"], signal.SIGKILL)
    assert all(ends_within(row["pid"], WAIT_SECONDS) for row in envs.stats()[:2])
    with pytest.raises(WorkerDied, match=r"^Worker 0 \(env 0, .*Still at work: env 2\."):
        step(envs)
    gate.let_through()


@pytest.mark.parametrize("method", ["forkserver", "fork"])
def test_a_death_is_told_while_others_are_busy_and_they_can_be_waited_for_after_a_restart(
    make: Make, gate: Gate, method: str
) -> None:
    envs = make([partial(GatedEnv, gate.path), partial(CountingEnv, 9)], context=method, step_timeout=None)
    reset(envs)
    pid = envs.stats()[1]["pid"]
    os.kill(pid, signal.SIGKILL)
    assert ends_within(pid, WAIT_SECONDS)
    envs.step_async(actions(envs))
    with pytest.raises(WorkerDied, match=r"^Worker 1 \(env 1, .*Still at work: env 0\.") as died:
        envs.step_wait(timeout=60)
    assert died.value.env_ids == (1,)
    envs.restart(1)
    with pytest.raises(StepTimeout, match="Env 0 did not answer"):
        envs.step_wait(timeout=SHORT)
    gate.let_through()
    _, rewards, _, truncated, infos = envs.step_wait(timeout=60)
    assert rewards.tolist() == [1, 0]
    assert truncated.tolist() == [False, True]
    assert infos["worker_restarted"].tolist() == [False, True]
    assert step(envs)[1].tolist() == [2, 0]  # the new env's first reset
