"""What happens when an env does not answer in time: what is told, and the three ways to go on."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied
from parallel_envs.testing import Fault, FaultyEnv, Moment, ScriptedEnv, assert_same_batch
from tests.engine.asking import ends_within
from tests.faults.courses import Witness
from tests.faults.matrix import CLOSE_SECONDS, SHORT, SLACK, Make, actions, faulty, name, reset, sound, step, within
from tests.gates import Gate
from tests.vector.small_envs import CountingEnv, GatedEnv, SlowResetEnv

TWO = np.zeros(2, int)
LONG: dict[str, Any] = {"episode_lengths": (100,)}


class StuckEnv(ScriptedEnv):
    """Hangs at its first step, in a function with a name of its own."""

    def __init__(self, way: str) -> None:
        super().__init__(**LONG)
        self.way = way

    def step(self, action: Any) -> Any:
        return getattr(self, self.way)()

    def fall_asleep(self) -> None:
        time.sleep(3600.0)

    def go_round_in_circles(self) -> None:
        while True:
            pass

    def wait_for_a_child(self) -> None:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        os.waitpid(pid, 0)


# ---- what is told --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "way"),
    [("forkserver", way) for way in ("fall_asleep", "go_round_in_circles", "wait_for_a_child")]
    + [("fork", "fall_asleep"), ("spawn", "fall_asleep")],
)
def test_the_error_shows_where_the_env_hangs(make: Make, method: str, way: str) -> None:
    envs = make([partial(StuckEnv, way), partial(ScriptedEnv, **LONG)], context=method)
    reset(envs)
    with pytest.raises(StepTimeout, match=rf"^Env 0 did not answer within {SHORT} seconds during step 1\.") as caught:
        step(envs)
    assert (caught.value.env_ids, caught.value.workers) == ((0,), (0,))
    assert f"in {way}" in str(caught.value)
    assert "engine/worker.py" not in str(caught.value)


def test_the_error_of_a_stopped_process_says_so(make: Make, tmp_path: Path) -> None:
    envs = make([faulty(Fault.SIGSTOP, Moment.STEP, tmp_path / "broken")])
    reset(envs)
    with pytest.raises(StepTimeout, match=rf"process {envs.stats()[0]['pid']} does not respond \(T \(stopped\)\)"):
        step(envs)


def test_the_error_shows_the_stacks_of_several_workers(make: Make) -> None:
    envs = make([partial(StuckEnv, "fall_asleep")] * 2)
    reset(envs)
    with pytest.raises(StepTimeout, match=r"(?s)^Envs 0, 1 .*Worker 0 is here:.*Worker 1 is here:.*fall_asleep"):
        step(envs)


def test_it_is_the_timeout_error_of_python_and_of_multiprocessing(make: Make) -> None:
    envs = make([partial(StuckEnv, "fall_asleep")])
    reset(envs)
    envs.step_async(np.zeros(1, int))
    for kind in (TimeoutError, multiprocessing.TimeoutError):
        with pytest.raises(kind):
            envs.step_wait(timeout=0.01)


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_the_deadline_of_a_call_goes_before_that_of_the_manager(make: Make, gate: Gate, backend: str) -> None:
    envs = make([partial(GatedEnv, gate.path)], step_timeout=3600.0, backend=backend)
    reset(envs)
    with within(SLACK), pytest.raises(StepTimeout, match=r"within 0\.05 seconds"):
        envs.step(np.zeros(1, int), timeout=0.05)
    gate.let_through()
    envs.step_wait(timeout=20.0)


def test_a_stopped_worker_answers_as_soon_as_it_goes_on_after_many_timeouts(make: Make) -> None:
    envs = make([CountingEnv] * 2)
    reset(envs)
    pid = envs.stats()[0]["pid"]
    os.kill(pid, signal.SIGSTOP)
    envs.step_async(TWO)
    for _ in range(300):
        with pytest.raises(StepTimeout, match="stopped"):
            envs.step_wait(timeout=0.001)
    os.kill(pid, signal.SIGCONT)
    assert envs.step_wait(timeout=20.0)[1].tolist() == [1.0, 1.0]


def test_a_thread_that_hangs_and_cannot_be_restarted_is_named(make: Make, gate: Gate) -> None:
    envs = make(
        [partial(GatedEnv, gate.path)], backend="thread", on_failure="restart", step_timeout=0.05, reset_timeout=60.0
    )
    reset(envs)
    with pytest.raises(StepTimeout, match=r"Env 0 did not answer[^@]*small_envs\.py") as caught:
        envs.step(np.zeros(1, int))
    assert any("Use backend='process'" in note for note in caught.value.__notes__)
    gate.let_through()
    assert envs.step_wait(timeout=60.0)[1].tolist() == [1.0]


def test_a_thread_that_hangs_shows_its_stack(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path)], backend="thread")
    reset(envs)
    with pytest.raises(StepTimeout, match="in wait_at"):
        step(envs)
    gate.let_through()
    assert envs.step_wait(timeout=20.0)[1].tolist() == [1.0]


# ---- waiting again -------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_waiting_again_gives_the_right_result(make: Make, gate: Gate, backend: str) -> None:
    envs = make([partial(GatedEnv, gate.path, (1, 3)), CountingEnv], backend=backend)
    reset(envs)
    for number, waits in ((1, 2), (2, 0), (3, 1), (4, 0)):
        envs.step_async(TWO)
        for _ in range(waits):
            with pytest.raises(StepTimeout, match=rf"during step {number}\."):
                envs.step_wait()
        if waits:
            gate.let_through()
        assert envs.step_wait(timeout=20.0)[1][0] == number


def test_a_stopped_process_that_goes_on_answers(make: Make, tmp_path: Path) -> None:
    envs = make([faulty(Fault.SIGSTOP, Moment.STEP, tmp_path / "broken"), sound(Moment.STEP)])
    witness = Witness(envs, **LONG)
    witness.reset()
    with pytest.raises(StepTimeout):
        step(envs)
    os.kill(envs.stats()[0]["pid"], signal.SIGCONT)
    witness.check(envs.step_wait(timeout=20.0), witness.rows(actions(envs)))
    witness.step()


def test_waiting_again_for_a_reset_gives_the_right_result(make: Make, gate: Gate) -> None:
    envs = make([partial(SlowResetEnv, gate.path)])
    with pytest.raises(StepTimeout, match=r"during reset\."):
        envs.reset(seed=0)
    gate.let_through()
    assert envs.reset_wait(timeout=20.0)[1]["began"].tolist() == [0]


def test_waiting_again_for_a_call_gives_the_right_result(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path)])
    envs.call_async("slow_call")
    with pytest.raises(StepTimeout, match=r"during call of 'slow_call'\."):
        envs.call_wait(timeout=0.05)
    gate.let_through()
    assert envs.call_wait(timeout=20.0) == ("answered",)


def test_single_envs_that_are_late_are_told_and_the_others_come(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path), CountingEnv])
    reset(envs)
    envs.send(TWO)
    with pytest.raises(StepTimeout, match=r"^Env 0 did not answer within .* during step\."):
        envs.recv(min_envs=2)
    assert envs.recv()[0].tolist() == [1]


def test_waiting_again_for_single_envs_gives_the_right_results(make: Make, gate: Gate) -> None:
    assert rows_received_by_waiting_again(make, gate) == [([0], [[0, 1]])]


def rows_received_by_waiting_again(make: Make, gate: Gate) -> list[Any]:
    envs = make([partial(GatedEnv, gate.path)], step_timeout=0.05)
    reset(envs)
    envs.send(np.zeros(1, int))
    received = []
    for patience in range(20):
        try:
            order, observations, *_ = envs.recv()
        except StepTimeout:
            gate.let_through(patience == 0)
        else:
            received.append((order.tolist(), observations.tolist()))
            break
    envs.close(timeout=CLOSE_SECONDS)
    return received


def test_a_late_reply_never_answers_a_later_question(make: Make, gate: Gate) -> None:
    """It may come before its worker is replaced, amid that, or never: what is asked next is answered rightly."""
    envs = make([partial(GatedEnv, gate.path), CountingEnv])
    reset(envs)
    with pytest.raises(StepTimeout):
        step(envs)
    gate.let_through()
    envs.restart(0)
    envs.step_wait()
    gate.let_through()
    assert envs.call("add", 5, env_ids=0) == (5,)
    assert envs.reset(seed=0)[0].tolist() == [[1, 0], [1, 0]]
    assert envs.step(TWO, timeout=20.0)[0].tolist() == [[1, 1], [1, 1]]


def test_a_late_answer_to_a_call_never_answers_a_later_one(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path)])
    envs.call_async("slow_call")
    with pytest.raises(StepTimeout):
        envs.call_wait(timeout=0.05)
    gate.let_through()
    envs.restart(0)
    with suppress(WorkerDied):
        envs.call_wait()
    assert envs.call("add", 5) == (5,)


def test_a_result_that_was_not_waited_for_belongs_to_its_own_step(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path), partial(CountingEnv, 100)], step_timeout=None)
    reset(envs)
    envs.send(TWO)
    assert envs.recv()[0].tolist() == [1]
    for number in (2, 3, 4):
        envs.send(np.zeros(1, int), env_ids=1)
        order, observations, *_ = envs.recv()
        assert (order.tolist(), observations.tolist()) == ([1], [[0, number]])
    gate.let_through()
    order, observations, *_ = envs.recv(timeout=20.0)
    assert (order.tolist(), observations.tolist()) == ([0], [[0, 1]])


# ---- restarting ----------------------------------------------------------------------------------


@pytest.mark.parametrize("num_workers", [1, 2, 4])
def test_a_restart_amid_a_step_ends_it_with_marked_rows(make: Make, num_workers: int) -> None:
    once = [partial(ScriptedEnv, **LONG)] * 3
    envs = make([*once, partial(StuckEnv, "fall_asleep")], num_workers=num_workers)
    witness = Witness(envs, **LONG)
    witness.reset()
    with pytest.raises(StepTimeout):
        step(envs)
    envs.restart(3)
    lost = set(envs.stats()[-1]["env_ids"])
    witness.check(envs.step_wait(), witness.rows(actions(envs), lost), lost)
    envs.close()


@pytest.mark.parametrize("fault", [Fault.SLEEP, Fault.SIGSTOP, Fault.INFINITE_LOOP], ids=name)
def test_the_steps_after_a_restart_by_hand_are_right(make: Make, tmp_path: Path, fault: Fault) -> None:
    envs = make([sound(Moment.STEP), faulty(fault, Moment.STEP, tmp_path / "broken")])
    witness = Witness(envs, **LONG)
    witness.reset()
    with pytest.raises(StepTimeout):
        step(envs)
    envs.restart(1)
    witness.check(envs.step_wait(), witness.rows(actions(envs), {1}), {1})
    for _ in range(4):
        witness.step()


def test_a_restart_amid_a_reset_ends_it_with_marked_rows(make: Make, tmp_path: Path) -> None:
    envs = make([sound(Moment.RESET), faulty(Fault.SLEEP, Moment.RESET, tmp_path / "broken")])
    with pytest.raises(StepTimeout):
        reset(envs)
    envs.restart(1)
    observations, infos = envs.reset_wait()
    assert infos["worker_restarted"].tolist() == [False, True]
    reference = ScriptedEnv(**LONG)
    assert_same_batch(observations, np.stack([reference.reset(seed=seed)[0] for seed in (0, 1)]))


def test_a_restart_amid_steps_of_single_envs(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path), CountingEnv])
    reset(envs)
    envs.send(TWO)
    assert envs.recv()[0].tolist() == [1]
    envs.restart(0)
    order, _, rewards, _, truncated, infos = envs.recv()
    assert (order.tolist(), rewards.tolist(), truncated.tolist()) == ([0], [0.0], [True])
    assert infos["worker_restarted"].tolist() == [True]


@pytest.mark.parametrize("other", [Fault.EXCEPTION, Fault.SIGKILL], ids=["raises", "dies"])
def test_the_error_names_what_is_broken_and_not_what_was_replaced(make: Make, gate: Gate, other: Fault) -> None:
    assert "env 1" in told_after_a_restart_of_another(make, gate, other).lower()


def told_after_a_restart_of_another(make: Make, gate: Gate, other: Fault) -> str:
    envs = make([partial(StuckEnv, "fall_asleep"), partial(ThenFaultyEnv, gate.path, other)])
    reset(envs)
    told = ""
    for _ in range(2):
        try:
            envs.step_wait(timeout=20.0) if told else step(envs)
        except (StepTimeout, EnvError, WorkerDied) as error:
            if not told:
                envs.restart(0)
                gate.let_through()
            told = str(error)
    envs.close(timeout=CLOSE_SECONDS)
    return told


class ThenFaultyEnv(FaultyEnv):
    """Waits at a gate before its first step breaks."""

    def __init__(self, gate: Path, fault: Fault) -> None:
        super().__init__(fault, Moment.STEP, **LONG)
        self.gate = gate

    def step(self, action: Any) -> Any:
        self.gate.open("rb", buffering=0).read(1)
        return super().step(action)


# ---- closing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", [Fault.SLEEP, Fault.SIGSTOP, Fault.INFINITE_LOOP], ids=name)
def test_a_manager_can_be_closed_while_a_step_is_late(make: Make, tmp_path: Path, fault: Fault) -> None:
    envs = make([sound(Moment.STEP), faulty(fault, Moment.STEP, tmp_path / "broken")])
    reset(envs)
    with pytest.raises(StepTimeout):
        step(envs)
    pids = [row["pid"] for row in envs.stats()]
    with within(CLOSE_SECONDS + SLACK):
        envs.close(timeout=CLOSE_SECONDS)
    assert all(ends_within(pid, 0.0) for pid in pids)


# ---- the numbers that may be given ---------------------------------------------------------------


@pytest.mark.parametrize("setting", ["step_timeout", "reset_timeout", "start_timeout"])
@pytest.mark.parametrize("value", [-1, -0.5, 0, 0.0, math.nan, "1", True, -math.inf])
def test_a_deadline_that_makes_no_sense_is_refused(make: Make, setting: str, value: Any) -> None:
    with pytest.raises(ValueError, match=rf"^{setting}={value!r} "):
        make([ScriptedEnv], **{setting: value})


@pytest.mark.parametrize("value", [-1, math.nan, "1", True])
@pytest.mark.parametrize("asked", ["reset", "step", "reset_wait", "step_wait", "call_wait", "recv"])
def test_a_deadline_of_a_call_that_makes_no_sense_is_refused(make: Make, asked: str, value: Any) -> None:
    envs = make([ScriptedEnv])
    with pytest.raises(ValueError, match=rf"^timeout={value!r} "):
        ask_with_timeout(envs, asked, value)


def ask_with_timeout(envs: ParallelEnvManager, asked: str, timeout: Any) -> Any:
    one = np.zeros(1, int)
    if asked not in ("reset", "reset_wait", "call_wait"):
        envs.reset(seed=0)
    match asked:
        case "reset":
            return envs.reset(timeout=timeout)
        case "step":
            return envs.step(one, timeout=timeout)
        case "reset_wait":
            envs.reset_async()
            return envs.reset_wait(timeout=timeout)
        case "step_wait":
            envs.step_async(one)
            return envs.step_wait(timeout=timeout)
        case "call_wait":
            envs.call_async("echo")
            return envs.call_wait(timeout=timeout)
        case _:
            envs.send(one)
            return envs.recv(timeout=timeout)


@pytest.mark.parametrize("asked", ["reset", "step"])
def test_a_refused_call_has_not_begun(make: Make, asked: str) -> None:
    assert told_after_a_refused_call(make, asked) == ""


def told_after_a_refused_call(make: Make, asked: str) -> str:
    envs = make([ScriptedEnv])
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="timeout"):
        ask_with_timeout(envs, asked, -1)
    told = error_of(lambda: envs.reset(seed=0))
    envs.close()
    return told


def error_of(function: Callable[[], Any]) -> str:
    """What a call raises, without the frames that hold what it held."""
    try:
        function()
    except Exception as error:  # noqa: BLE001  # whatever it is
        return repr(error)
    return ""


@pytest.mark.parametrize("setting", ["step_timeout", "reset_timeout", "start_timeout"])
def test_an_endless_deadline_is_none(make: Make, setting: str) -> None:
    envs = make([ScriptedEnv], **{setting: math.inf})
    reset(envs)
    assert step(envs)[1].shape == (1,)


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
@pytest.mark.parametrize("timeout", [3e6, 1e10, math.inf])
def test_a_deadline_may_be_farther_away_than_the_system_counts(make: Make, backend: str, timeout: float) -> None:
    assert errors_with_timeout(make, backend, timeout) == [""] * 4


def errors_with_timeout(make: Make, backend: str, timeout: float) -> list[str]:
    told = []
    for asked in ("reset", "step", "call_wait", "recv"):
        envs = make([ScriptedEnv], backend=backend)
        told.append(error_of(partial(ask_with_timeout, envs, asked, timeout)))
        envs.close()
    return told


@pytest.mark.parametrize("timeout", [0, 0.0])
def test_no_time_at_all_is_a_look_whether_it_is_done(make: Make, gate: Gate, timeout: float) -> None:
    envs = make([partial(GatedEnv, gate.path)])
    reset(envs)
    envs.step_async(np.zeros(1, int))
    with pytest.raises(StepTimeout):
        envs.step_wait(timeout=timeout)
    gate.let_through()
    assert envs.step_wait(timeout=20.0)[1].tolist() == [1.0]


def test_no_time_at_all_is_a_look_whether_something_has_landed(make: Make) -> None:
    assert looks_until_something_has_landed(make) < 10_000


def looks_until_something_has_landed(make: Make) -> int:
    envs = make([CountingEnv], step_timeout=None)
    reset(envs)
    envs.send(np.zeros(1, int))
    deadline, looks = time.monotonic() + 1.0, 0
    while time.monotonic() < deadline:
        looks += 1
        with suppress(StepTimeout):
            envs.recv(timeout=0.0)
            envs.close()
            return looks
    envs.close()
    return 10_000
