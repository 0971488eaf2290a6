"""What goes wrong x when x how workers are started, with `on_failure="raise"`; and deaths beside work.

Each time the caller is told what, where and when, in bounded time; the manager goes on; and nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
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
from tests.faults.broken_envs import lives
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
    covering,
    error_of,
    faulty,
    name,
    reset,
    sound,
    step,
    text_of,
    within,
)
from tests.gates import Gate, wait_at
from tests.vector.small_envs import CountingEnv, GatedEnv, SlowResetEnv

# All of it under "fork" and "forkserver". A worker that is spawned takes a second to start: every third case there,
# which are all faults and all moments. (One that is to hang while it is made has not begun when the deadline is over.)
CASES = [(method, *case) for method in ("fork", "forkserver") for case in ALL]
CASES += [("spawn", *case) for case in ALL[::3] if case[1] is not Moment.CONSTRUCTOR or case[0] not in HANGING]
CONSTRUCTING = [case for case in CASES if case[2] is Moment.CONSTRUCTOR]
CLOSING = [case for case in CASES if case[2] is Moment.CLOSE]
BREAKING = [case for case in CASES if case[2] in ASKING and case[1:] not in HARMLESS]
RAISING = [
    (backend, *case)
    for backend in ("serial", "thread")
    for case in ALL
    if case[0] in RAISED and (case[1] in ASKING or case[1] is Moment.CONSTRUCTOR)
]
STOP_SECONDS = 2.0
"""What a manager that cannot be made gives its workers to end."""

THREE = np.zeros(3, int)
PATIENT: dict[str, Any] = {"step_timeout": 60.0, "reset_timeout": 60.0}
"""Deadlines that no test here should reach: waiting for the closed gate until one passes is the defect."""


def neighbours(fault: Fault, moment: Moment, folder: Path) -> list[Any]:
    """A sound env, and one that breaks."""
    return [sound(moment), faulty(fault, moment, folder / "broken")]


@pytest.mark.parametrize(("context", "fault", "moment"), covering(CONSTRUCTING), ids=name)
def test_a_fault_in_a_constructor_is_told(
    make: Make, tmp_path: Path, context: str, fault: Fault, moment: Moment
) -> None:
    envs = neighbours(fault, moment, tmp_path)
    if (fault, moment) in HARMLESS:
        assert len(make(envs, context=context).metadata) > 0
        return
    limit = SHORT if fault in HANGING else 20.0
    with within(limit + STOP_SECONDS + SLACK), pytest.raises(error_of(fault), match=text_of(fault, moment)):
        make(envs, context=context, start_timeout=limit)


@pytest.mark.parametrize(("context", "fault", "moment"), covering(BREAKING), ids=name)
def test_a_fault_is_told_in_time(make: Make, tmp_path: Path, context: str, fault: Fault, moment: Moment) -> None:
    envs = make(neighbours(fault, moment, tmp_path), context=context)
    pid = envs.stats()[1]["pid"]
    error = told_of(envs, fault, moment)
    match error:
        case WorkerDied():
            assert (error.worker, error.pid, error.exitcode) == (1, pid, EXIT_CODES[fault])
            assert f"pid {pid}" in str(error)
        case StepTimeout():
            assert 1 in error.env_ids
            assert 1 in error.workers
            stopped = f"process {pid} does not respond (T (stopped))"
            assert (stopped if fault is Fault.SIGSTOP else "_inflict") in str(error)
        case EnvError():
            assert error.env_ids == (1,)
            assert error.type_name == RAISED[fault]
            assert "_inflict" in str(error.__cause__)
    if not isinstance(error, EnvError):  # after an error the manager goes on at once, otherwise after a restart
        envs.restart(1)
    if isinstance(error, StepTimeout):
        end_what_is_pending(envs, moment)
    observations, _ = envs.reset(seed=0)
    assert observations.shape == (2, 3)
    assert envs.step(actions(envs))[4] == {}


def told_of(envs: ParallelEnvManager, fault: Fault, moment: Moment) -> Any:
    """Go to the moment. The error, which comes in time and names the env, the fault and the moment."""
    APPROACHES[moment](envs)
    if moment is Moment.IDLE:
        await_idle_fault(envs, fault)
    with within(SHORT + SLACK), pytest.raises(error_of(fault), match=text_of(fault, moment)) as caught:
        ASKING[moment](envs)
    return caught.value


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


@pytest.mark.parametrize(("context", "fault", "moment"), covering(CLOSING), ids=name)
@pytest.mark.slow(sample=True)
def test_close_ends_in_time_in_any_case(make: Make, tmp_path: Path, context: str, fault: Fault, moment: Moment) -> None:
    envs = make(neighbours(fault, moment, tmp_path), context=context)
    reset(envs)
    with within(CLOSE_SECONDS + SLACK):
        envs.close(timeout=CLOSE_SECONDS)
    assert envs.closed


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize(("backend", "fault", "moment"), RAISING, ids=name)
def test_every_backend_tells_an_error(make: Make, tmp_path: Path, backend: str, fault: Fault, moment: Moment) -> None:
    if moment is Moment.CONSTRUCTOR:
        with pytest.raises(EnvError, match=text_of(fault, moment)):
            make(neighbours(fault, moment, tmp_path), backend=backend)
        return
    envs = make(neighbours(fault, moment, tmp_path), backend=backend)
    assert told_of(envs, fault, moment).env_ids == (1,)
    reset(envs)
    assert step(envs)[4] == {}


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("backend", ["process", "serial", "thread"])
@pytest.mark.parametrize("moment", [moment for fault, moment in ALL if fault is Fault.HUGE_REPLY], ids=name)
def test_a_huge_reply_comes_whole(make: Make, tmp_path: Path, backend: str, moment: Moment) -> None:
    envs = make(neighbours(Fault.HUGE_REPLY, moment, tmp_path), **PATIENT, backend=backend)
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


def test_an_env_whose_own_thread_loops_stops_no_step(make: Make, tmp_path: Path) -> None:
    envs = make(neighbours(Fault.INFINITE_LOOP, Moment.IDLE, tmp_path), step_timeout=20.0)
    reset(envs)
    for _ in range(20):
        assert not step(envs)[3].any()


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
@pytest.mark.parametrize("fault", RAISED, ids=name)
def test_error_in_close_is_logged(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, backend: str, fault: Fault
) -> None:
    note = tmp_path / "closed"
    broken = faulty(fault, Moment.CLOSE, tmp_path / "broken")
    envs = make([broken, partial(NotedEnv, note)], num_workers=1, backend=backend)
    reset(envs)
    envs.close()
    assert envs.closed
    assert note.exists()
    assert "raised while it was closed" in caplog.text or backend == "process"


class NotedEnv(ScriptedEnv):
    """Notes in a file that it was closed."""

    def __init__(self, note: Path) -> None:
        super().__init__()
        self.note = note

    def close(self) -> None:
        self.note.touch()


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


def test_a_dead_worker_names_all_its_envs_and_its_last_output(make: Make, tmp_path: Path) -> None:
    envs = make([*neighbours(Fault.SIGSEGV, Moment.STEP, tmp_path), *[sound(Moment.STEP)] * 4], num_workers=2)
    reset(envs)
    with pytest.raises(
        WorkerDied, match=r"(?s)^Worker 0 \(envs 0-2, pid .*Its last output:.*Segmentation fault.*_inflict"
    ):
        step(envs)


@pytest.mark.parametrize("asked", ["reset", "step", "send", "call", "get_attr", "set_attr", "render"])
def test_a_death_while_idle_is_told_by_whatever_is_asked_next(make: Make, tmp_path: Path, asked: str) -> None:
    envs = make(neighbours(Fault.OS_EXIT, Moment.IDLE, tmp_path), context="fork")
    reset(envs)
    step(envs)
    await_idle_fault(envs, Fault.OS_EXIT)
    asks: dict[str, Any] = {
        "reset": lambda: reset(envs),
        "step": lambda: step(envs),
        "send": lambda: (envs.send(actions(envs)), envs.recv(2)),
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


def step_until_death(envs: ParallelEnvManager) -> None:
    with pytest.raises(WorkerDied, match=r"during step 1\..*Still at work: envs? [02, ]+\.") as caught:
        envs.step(THREE)
    assert caught.value.env_ids == (1,)


@pytest.mark.parametrize(("copy", "context"), [(True, "fork"), (False, "forkserver")])
def test_a_death_in_a_step_waits_for_nobody(make: Make, gate: Gate, tmp_path: Path, copy: bool, context: str) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path, copy=copy, context=context)
    step_until_death(envs)
    envs.restart(1)
    with pytest.raises(StepTimeout, match="Env 0 did not answer"):
        envs.step_wait(timeout=SHORT)
    gate.let_through()
    observations, rewards, _, truncated, infos = envs.step_wait()
    assert observations.tolist() == [[0, 1], [0, 0], [0, 1]]
    assert rewards.tolist() == [1.0, 0.0, 1.0]
    assert truncated.tolist() == infos["worker_restarted"].tolist() == [False, True, False]
    assert envs.step(THREE)[0][:, 1].tolist() == [2, 0, 2]  # the reset row of the next-step autoreset


def test_only_workers_that_live_are_told_to_be_at_work(make: Make, gate: Gate) -> None:
    envs = make([partial(CountingEnv, 9), partial(CountingEnv, 9), partial(GatedEnv, gate.path)], step_timeout=None)
    reset(envs)
    for row in envs.stats()[:2]:
        os.kill(row["pid"], signal.SIGKILL)
    assert all(ends_within(row["pid"], WAIT_SECONDS) for row in envs.stats()[:2])
    with pytest.raises(WorkerDied, match=r"^Worker 0 \(env 0, .*Still at work: env 2\."):
        step(envs)
    gate.let_through()


@pytest.mark.parametrize("with_others", [True, False])
def test_waiting_again_without_a_restart_waits_for_the_others_and_names_the_death_again(
    make: Make, gate: Gate, tmp_path: Path, with_others: bool
) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
    gate.let_through(0 if with_others else 1)
    with pytest.raises(WorkerDied):
        envs.step(THREE)
    gate.let_through()
    for _ in range(2):
        with pytest.raises(WorkerDied, match=r"during step 1\."):
            envs.step_wait()
    envs.restart(1)
    assert envs.step_wait()[0].tolist() == [[0, 1], [0, 0], [0, 1]]
    assert envs.reset(seed=0)[0].tolist() == [[1, 0]] * 3


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


@pytest.mark.parametrize("then", ["dies", "hangs"])
def test_what_becomes_of_a_sibling_after_a_death_is_told_too(make: Make, gate: Gate, tmp_path: Path, then: str) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
    step_until_death(envs)
    if then == "dies":
        os.kill(envs.stats()[0]["pid"], signal.SIGKILL)
        with pytest.raises(WorkerDied, match=r"^Worker 0 .*signal 9") as caught:
            envs.step_wait()
        assert caught.value.env_ids == (0,)
        envs.restart([0, 1])
    else:
        for restarted in (1, 0):
            with pytest.raises(StepTimeout, match=r"^Env 0 did not answer within 0\.1 seconds during step 1\."):
                envs.step_wait(timeout=0.1)
            envs.restart(restarted)
    assert envs.step_wait()[4]["worker_restarted"].tolist() == [True, True, False]


def test_a_reset_that_gives_up_a_hanging_step_times_out(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path, step_timeout=1.0)
    step_until_death(envs)
    with pytest.raises(StepTimeout, match=r"^Env 0 did not answer within 1\.0 seconds during step 1\."):
        envs.reset(seed=0)
    envs.restart([0, 1])
    assert envs.reset(seed=0)[0].tolist() == [[1, 0], [1, 0], [1, 0]]


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


@pytest.mark.parametrize("ask", [lambda envs: envs.recv(min_envs=2), lambda envs: envs.recv_env(1)])
def test_a_death_beside_envs_on_their_way_is_raised_at_once(make: Make, gate: Gate, tmp_path: Path, ask: Any) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
    envs.send(THREE)
    assert envs.recv_env(2)[0].tolist() == [0, 1]  # the death is no affair of another env
    with pytest.raises(WorkerDied, match=r"^Worker 1 "):
        ask(envs)
    gate.let_through()
    assert envs.recv_env(0)[0].tolist() == [0, 1]
    envs.restart(1)
    assert envs.step(THREE)[0].tolist() == [[0, 2], [0, 0], [0, 2]]


def test_a_death_in_construction_is_raised_while_others_are_being_made(make: Make, gate: Gate, tmp_path: Path) -> None:
    fns = [partial(SlowToMakeEnv, gate.path), partial(DyingEnv, tmp_path / "lives", "init")]
    with pytest.raises(WorkerDied, match=r"^Worker 1 .*exit code 7 during its construction\."):
        make(fns, start_timeout=60.0)


@pytest.mark.parametrize(("own_pace", "copy"), [(False, True), (True, False)], ids=["step", "send"])
def test_a_restart_waits_for_nobody_at_work(make: Make, gate: Gate, tmp_path: Path, own_pace: bool, copy: bool) -> None:
    """The gate opens only when the dying env has begun its second life."""
    notes = tmp_path / "lives"
    fns: list[Callable[[], Any]] = [
        partial(GatedEnv, gate.path),
        partial(OpeningEnv, notes, gate.path),
        partial(CountingEnv, 100),
    ]
    envs = make(fns, **PATIENT, on_failure="restart", copy=copy)
    envs.reset(seed=0)
    if own_pace:
        envs.send(THREE)
        order, observations, *_, infos = envs.recv(min_envs=3)
    else:
        observations, *_, infos = envs.step(THREE)
        order = np.arange(3)
    marks = infos["worker_restarted"].tolist()
    rows = dict(zip(order.tolist(), zip(observations.tolist(), marks, strict=True), strict=True))
    assert rows == {0: ([0, 1], False), 1: ([0, 0], True), 2: ([0, 1], False)}


class OpeningEnv(DyingEnv):
    """Dies in its first step, and opens the gate in its second life."""

    def __init__(self, notes: Path, gate: Path) -> None:
        super().__init__(notes, "step")
        if self.moment == "":
            gate.write_bytes(b".")


def test_a_hanging_sibling_meets_its_deadline_after_the_restart(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path, on_failure="restart", step_timeout=1.0)
    marks = envs.step(THREE)[4]["worker_restarted"]
    assert marks.tolist() == [True, True, False]
    gate.let_through()
    envs.step(THREE)


def test_a_budget_that_is_spent_is_told_at_once(make: Make, gate: Gate) -> None:
    waits = partial(GatedEnv, gate.path, waits_at=(3,))
    envs = make([waits, AlwaysDying], on_failure="restart", max_restarts=1, **PATIENT)
    envs.reset(seed=0)
    for _ in range(2):  # the loss, and the reset row
        envs.step(THREE[:2])
    with pytest.raises(WorkerDied, match="as often as max_restarts allows"):
        envs.step(THREE[:2])
    gate.let_through()
    assert envs.call("add", 1, env_ids=0)[0] >= 2


class AlwaysDying(CountingEnv):
    def step(self, action: Any) -> Any:
        os._exit(7)
