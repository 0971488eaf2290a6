"""What goes wrong x when x how workers are started, with `on_failure="raise"`; and deaths beside work.

Each time the caller is told what, where and when, in bounded time; the manager goes on; and nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.error import AlreadyPendingCallError

from parallel_envs import ParallelEnvManager
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied
from parallel_envs.testing import Fault, Moment, ScriptedEnv, assert_same_batch
from tests.engine.asking import WAIT_SECONDS, ends_within
from tests.faults import matrix
from tests.faults.broken_envs import Breaking
from tests.faults.matrix import SHORT, SLACK, Make, covering, faulty, name, reset, sound, step, within
from tests.gates import Gate, wait_at
from tests.vector.small_envs import CountingEnv, GatedEnv, SlowResetEnv

# All of it under "fork" and "forkserver". A worker that is spawned takes a second to start: every third case there,
# which are all faults and all moments. (One that is to hang while it is made has not begun when the deadline is over.)
CASES = [(method, *case) for method in ("fork", "forkserver") for case in matrix.ALL]
CASES += [
    ("spawn", *case) for case in matrix.ALL[::3] if case[1] is not Moment.CONSTRUCTOR or case[0] not in matrix.HANGING
]
CASES += [(backend, *case) for backend in ("serial", "thread") for case in matrix.ALL if case[0] in matrix.RAISED]
CONSTRUCTING = [case for case in CASES if case[2] is Moment.CONSTRUCTOR]
CLOSING = [case for case in CASES if case[2] is Moment.CLOSE and case[1] not in matrix.RAISED]
BREAKING = [case for case in CASES if case[2] in matrix.ASKING and case[1:] not in matrix.HARMLESS]
STOP_SECONDS = 2.0
"""What a manager that cannot be made gives its workers to end."""

THREE = np.zeros(3, int)
PATIENT: dict[str, Any] = {"step_timeout": 60.0, "reset_timeout": 60.0}
"""Deadlines that no test here should reach: waiting for the closed gate until one passes is the defect."""


def where(kind: str) -> dict[str, Any]:
    """Settings for workers of a kind: of a backend, or processes of a start method."""
    return {"backend": kind, "num_workers": 2} if kind in ("serial", "thread") else {"context": kind}


def neighbours(fault: Fault, moment: Moment, folder: Path) -> list[Any]:
    """A sound env, and one that breaks."""
    return [sound(moment), faulty(fault, moment, folder / "broken")]


@pytest.mark.parametrize(("kind", "fault", "moment"), covering(CONSTRUCTING), ids=name)
def test_a_fault_in_a_constructor_is_told(make: Make, tmp_path: Path, kind: str, fault: Fault, moment: Moment) -> None:
    envs = neighbours(fault, moment, tmp_path)
    if (fault, moment) in matrix.HARMLESS:
        assert len(make(envs, **where(kind)).metadata) > 0
        return
    limit = SHORT if fault in matrix.HANGING else 20.0
    with (
        within(limit + STOP_SECONDS + SLACK),
        pytest.raises(matrix.error_of(fault), match=matrix.text_of(fault, moment)),
    ):
        make(envs, **where(kind), start_timeout=limit)


@pytest.mark.parametrize(("kind", "fault", "moment"), covering(BREAKING), ids=name)
def test_a_fault_is_told_in_time(make: Make, tmp_path: Path, kind: str, fault: Fault, moment: Moment) -> None:
    envs = make(neighbours(fault, moment, tmp_path), **where(kind))
    pid = envs.stats()[1]["pid"]
    *approach, ask = matrix.ASKING[moment]
    for act in approach:
        act(envs)
    if moment is Moment.IDLE:
        matrix.await_idle_fault(envs, fault)
    with within(SHORT + SLACK), pytest.raises(matrix.error_of(fault), match=matrix.text_of(fault, moment)) as caught:
        ask(envs)
    error: Any = caught.value
    match error:
        case WorkerDied():
            assert (error.worker, error.pid, error.exitcode) == (1, pid, matrix.EXIT_CODES[fault])
            assert f"pid {pid}" in str(error)
        case StepTimeout():
            assert 1 in error.env_ids
            assert 1 in error.workers
            stopped = f"process {pid} does not respond (T (stopped))"
            assert (stopped if fault is Fault.SIGSTOP else "_inflict") in str(error)
        case EnvError():
            assert (error.env_ids, error.type_name) == ((1,), matrix.RAISED[fault])
            assert "_inflict" in "".join(traceback.format_exception(error.__cause__))
    if not isinstance(error, EnvError):  # after an error the manager goes on at once, otherwise after a restart
        envs.restart(1)
    if isinstance(error, StepTimeout):
        end_what_is_pending(envs, moment)
    assert envs.reset(seed=0)[0].shape == (2, 3)
    assert step(envs)[4] == {}


def end_what_is_pending(envs: ParallelEnvManager, moment: Moment) -> None:
    """After a timeout and a restart the question is still open: its answer tells of the restart."""
    with pytest.raises(AlreadyPendingCallError):
        step(envs)
    if moment is Moment.CALL:
        with pytest.raises(WorkerDied, match="call of 'poke'"):
            envs.call_wait()
        return
    observations, *_, infos = envs.reset_wait() if moment is Moment.RESET else envs.step_wait()
    if moment is Moment.RESET:
        assert_same_batch(observations, np.stack([sound(moment)().reset(seed=seed)[0] for seed in (0, 1)]))
    assert infos["worker_restarted"].tolist() == [False, True]


@pytest.mark.parametrize(("kind", "fault", "moment"), covering(CLOSING), ids=name)
@pytest.mark.slow(sample=True)
def test_close_ends_in_time_in_any_case(make: Make, tmp_path: Path, kind: str, fault: Fault, moment: Moment) -> None:
    envs = make(neighbours(fault, moment, tmp_path), **where(kind))
    reset(envs)
    with within(matrix.CLOSE_SECONDS + SLACK):
        envs.close(timeout=matrix.CLOSE_SECONDS)
    assert envs.closed


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
@pytest.mark.parametrize("fault", matrix.RAISED, ids=name)
def test_an_error_in_close_keeps_no_other_env_open(
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
    told = r"(?s)^Worker 0 \(envs 0-2, pid .*Its last output:.*Segmentation fault.*_inflict"
    with pytest.raises(WorkerDied, match=told):
        step(envs)


IDLE_ASKS: dict[str, Any] = {
    "send": lambda envs: (envs.send(matrix.actions(envs)), envs.recv(2)),
    "call": lambda envs: envs.call("echo"),
    "set_attr": lambda envs: envs.set_attr("label", 1),
}
"""Requests other than steps and resets: the matrix has those two."""


@pytest.mark.parametrize("asked", IDLE_ASKS)
def test_a_death_while_idle_is_told_by_whatever_is_asked_next(make: Make, tmp_path: Path, asked: str) -> None:
    envs = make(neighbours(Fault.OS_EXIT, Moment.IDLE, tmp_path), context="fork")
    reset(envs)
    step(envs)
    matrix.await_idle_fault(envs, Fault.OS_EXIT)
    with within(1.0 + SLACK), pytest.raises(WorkerDied, match="exit code 17"):
        IDLE_ASKS[asked](envs)


def test_a_death_in_a_call_advises_what_is_left_to_do(make: Make) -> None:
    for on_failure, is_known in (("raise", True), ("restart", False)):
        envs = make([ScriptedEnv], on_failure=on_failure)
        with pytest.raises(WorkerDied, match=r"Call envs\.restart\(env_ids\) to replace it") as caught:
            envs.apply(lambda env: os._exit(1))
        assert ("on_failure='restart'" in str(caught.value)) is is_known
        assert ("the next step or reset does so by itself" in str(caught.value)) is not is_known


class DyingEnv(Breaking, CountingEnv):
    """Ends its worker in its first life, at its first `moment`, and opens the gate, if any, in its second."""

    def __init__(self, notes: Path | None, moment: str, gate: Path | None = None) -> None:
        super().__init__(notes, {moment: "exit"}, {}, length=100)
        if gate is not None and self.life == 2:
            gate.write_bytes(b".")

    def slow_call(self) -> str:
        os._exit(7)


def slow_to_make(gate: Path) -> CountingEnv:
    wait_at(gate)
    return CountingEnv()


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


def test_a_death_in_a_step_waits_for_nobody(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path, copy=False)
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
    assert envs.reset(seed=0)[0].tolist() == [[1, 0]] * 3


def test_another_request_gives_the_failed_step_up(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
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


def test_a_sibling_that_dies_after_a_death_is_told_too(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
    step_until_death(envs)
    os.kill(envs.stats()[0]["pid"], signal.SIGKILL)
    with pytest.raises(WorkerDied, match=r"^Worker 0 .*signal 9") as caught:
        envs.step_wait()
    assert caught.value.env_ids == (0,)
    envs.restart([0, 1])
    assert envs.step_wait()[4]["worker_restarted"].tolist() == [True, True, False]


def test_a_sibling_that_hangs_after_a_death_is_told_too(make: Make, gate: Gate, tmp_path: Path) -> None:
    """A wait for the step ends at its deadline, and so does a reset, which gives the step up."""
    envs = at_work_dying_idle(make, gate, tmp_path, step_timeout=0.1)
    for ask in (envs.step_wait, partial(envs.reset, seed=0)):
        step_until_death(envs) if ask == envs.step_wait else None
        with pytest.raises(StepTimeout, match=r"^Env 0 did not answer within 0\.1 seconds during step 1\."):
            ask()
        envs.restart(1)
    envs.restart(0)
    assert envs.reset(seed=0)[0].tolist() == [[1, 0], [1, 0], [1, 0]]


def test_a_death_in_construction_or_a_reset_is_raised_while_others_are_at_work(
    make: Make, gate: Gate, tmp_path: Path
) -> None:
    with pytest.raises(WorkerDied, match=r"^Worker 1 .*exit code 1 during its construction\."):
        make(
            [partial(slow_to_make, gate.path), partial(DyingEnv, tmp_path / "lives", "construction")],
            start_timeout=60.0,
        )
    envs = make([partial(SlowResetEnv, gate.path), partial(DyingEnv, tmp_path / "of resets", "reset")], **PATIENT)
    with pytest.raises(WorkerDied, match=r"during reset\..*Still at work: env 0\."):
        envs.reset(seed=0)
    gate.let_through()
    envs.restart(1)
    observations, infos = envs.reset_wait()
    assert observations.tolist() == [[0, 0], [1, 0]]
    assert infos["worker_restarted"].tolist() == [False, True]


def test_a_death_in_a_call_is_raised_while_others_are_at_work(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path)
    told = pytest.raises(WorkerDied, match=r"during call of 'slow_call'\.")
    with told:
        envs.call("slow_call", env_ids=[0, 1])
    gate.let_through()
    with told:
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


@pytest.mark.parametrize("own_pace", [False, True], ids=["step", "send"])
def test_a_restart_waits_for_nobody_at_work(make: Make, gate: Gate, tmp_path: Path, own_pace: bool) -> None:
    """The gate opens only when the dying env has begun its second life."""
    opening = partial(DyingEnv, tmp_path / "lives", "step", gate.path)
    fns: list[Any] = [partial(GatedEnv, gate.path), opening, partial(CountingEnv, 100)]
    envs = make(fns, **PATIENT, on_failure="restart", copy=not own_pace)
    envs.reset(seed=0)
    order = np.arange(3)
    if own_pace:
        envs.send(THREE)
        order, observations, *_, infos = envs.recv(min_envs=3)
    else:
        observations, *_, infos = envs.step(THREE)
    marks = infos["worker_restarted"].tolist()
    rows = dict(zip(order.tolist(), zip(observations.tolist(), marks, strict=True), strict=True))
    assert rows == {0: ([0, 1], False), 1: ([0, 0], True), 2: ([0, 1], False)}


def test_a_hanging_sibling_meets_its_deadline_after_the_restart(make: Make, gate: Gate, tmp_path: Path) -> None:
    envs = at_work_dying_idle(make, gate, tmp_path, on_failure="restart", step_timeout=0.3)
    assert envs.step(THREE)[4]["worker_restarted"].tolist() == [True, True, False]
    gate.let_through()
    envs.step(THREE, timeout=60.0)


def test_a_budget_that_is_spent_is_told_at_once(make: Make, gate: Gate) -> None:
    fns: list[Any] = [partial(GatedEnv, gate.path, waits_at=(3,)), partial(DyingEnv, None, "step")]
    envs = make(fns, on_failure="restart", max_restarts=1, **PATIENT)
    envs.reset(seed=0)
    for _ in range(2):  # the loss, and the reset row
        envs.step(THREE[:2])
    with pytest.raises(WorkerDied, match="as often as max_restarts allows"):
        envs.step(THREE[:2])
    gate.let_through()
    assert envs.call("add", 1, env_ids=0)[0] >= 2
