"""What happens when an env does not answer in time: what is told, the ways to go on, and what makes no sense."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.engine import supervisor_pid
from parallel_envs.errors import ClosedError, EnvError, StepTimeout, WorkerDied
from parallel_envs.testing import Fault, FaultyEnv, Moment, ScriptedEnv
from tests.faults.broken_envs import LONG
from tests.faults.courses import Witness
from tests.faults.matrix import SHORT, SLACK, Make, actions, faulty, name, reset, sound, step, within
from tests.gates import Gate, wait_at
from tests.vector.small_envs import CountingEnv, GatedEnv, SlowResetEnv

ONE, TWO = np.zeros(1, int), np.zeros(2, int)


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


def test_the_error_shows_where_each_env_hangs(make: Make) -> None:
    ways = "fall_asleep", "go_round_in_circles", "wait_for_a_child"
    envs = make([*(partial(StuckEnv, way) for way in ways), partial(ScriptedEnv, **LONG)])
    reset(envs)
    with pytest.raises(
        StepTimeout, match=rf"^Envs 0-2 did not answer within {SHORT} seconds during step 1\."
    ) as caught:
        step(envs)
    assert (caught.value.env_ids, caught.value.workers) == ((0, 1, 2), (0, 1, 2))
    assert isinstance(caught.value, multiprocessing.TimeoutError)
    assert re.search(
        "(?s)" + "".join(f"Worker {n} is here:.*in {way}.*" for n, way in enumerate(ways)), str(caught.value)
    )
    assert "engine/worker.py" not in str(caught.value)


@pytest.mark.parametrize("on_failure", ["raise", "restart"])
def test_a_thread_that_hangs_shows_its_stack_and_cannot_be_restarted(make: Make, gate: Gate, on_failure: str) -> None:
    envs = make([partial(GatedEnv, gate.path)], backend="thread", on_failure=on_failure, reset_timeout=60.0)
    reset(envs)
    with pytest.raises(StepTimeout, match=r"(?s)Env 0 did not answer.*small_envs\.py.*in wait_at") as caught:
        step(envs)
    if on_failure == "restart":
        assert any("Use backend='process'" in note for note in caught.value.__notes__)
    gate.let_through()
    assert envs.step_wait(timeout=60.0)[1].tolist() == [1.0]


@pytest.mark.parametrize("backend", ["thread", "process"])
def test_waiting_again_gives_the_right_result_and_the_deadline_of_a_call_goes_before_that_of_the_manager(
    make: Make, gate: Gate, backend: str
) -> None:
    envs = make([partial(GatedEnv, gate.path, (1, 3)), CountingEnv], backend=backend)
    reset(envs)
    for number, waits in ((1, ({}, {"timeout": 0.05}, {"timeout": 0})), (2, ()), (3, ({"timeout": 0.05},)), (4, ())):
        envs.step_async(TWO)
        for wait in waits:
            text = rf"within {wait.get('timeout', SHORT)}(\.0)? seconds during step {number}\."
            with within(SLACK), pytest.raises(StepTimeout, match=text):
                envs.step_wait(**wait)
        if waits:
            gate.let_through()
        assert envs.step_wait(timeout=20.0)[1][0] == number


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


def test_waiting_again_for_a_reset_or_a_call_gives_the_right_result(make: Make, gate: Gate) -> None:
    envs = make([partial(SlowResetEnv, gate.path)])
    with pytest.raises(StepTimeout, match=r"during reset\."):
        envs.reset(seed=0)
    gate.let_through()
    assert envs.reset_wait(timeout=20.0)[1]["began"].tolist() == [0]
    envs = make([partial(GatedEnv, gate.path)])
    envs.call_async("slow_call")
    with pytest.raises(StepTimeout, match=r"during call of 'slow_call'\."):
        envs.call_wait(timeout=0.05)
    gate.let_through()
    assert envs.call_wait(timeout=20.0) == ("answered",)


def test_a_single_env_that_is_late_is_told_and_may_be_restarted(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path), CountingEnv])
    reset(envs)
    envs.send(TWO)
    with pytest.raises(StepTimeout, match=r"^Env 0 did not answer within .* during step\."):
        envs.recv(min_envs=2)
    assert envs.recv()[0].tolist() == [1]
    envs.restart(0)
    order, _, rewards, _, truncated, infos = envs.recv()
    assert (order.tolist(), rewards.tolist(), truncated.tolist()) == ([0], [0.0], [True])
    assert infos["worker_restarted"].tolist() == [True]


@pytest.mark.parametrize(("fault", "num_workers"), [(Fault.SLEEP, 1), (Fault.INFINITE_LOOP, 4)], ids=name)
def test_a_restart_amid_a_step_marks_its_rows(make: Make, tmp_path: Path, fault: Fault, num_workers: int) -> None:
    fns = [*[sound(Moment.STEP)] * 3, faulty(fault, Moment.STEP, tmp_path / "broken")]
    envs = make(fns, num_workers=num_workers)
    witness = Witness(envs, **LONG)
    witness.reset()
    with pytest.raises(StepTimeout):
        step(envs)
    envs.restart(3)
    lost = set(envs.stats()[-1]["env_ids"])
    witness.check(envs.step_wait(), witness.rows(actions(envs), lost), lost)
    for _ in range(4):
        witness.step()


@pytest.mark.parametrize(("other", "kind"), [(Fault.EXCEPTION, EnvError), (Fault.SIGKILL, WorkerDied)], ids=name)
def test_the_error_names_only_what_is_broken_now(make: Make, gate: Gate, other: Fault, kind: type[Exception]) -> None:
    envs = make([partial(StuckEnv, "fall_asleep"), partial(ThenFaultyEnv, gate.path, other)])
    reset(envs)
    with pytest.raises(StepTimeout):
        step(envs)
    envs.restart(0)
    gate.let_through()
    with pytest.raises(kind, match=r"(?i)^(Worker 1 \()?env 1\b"):
        envs.step_wait(timeout=20.0)


class ThenFaultyEnv(FaultyEnv):
    """Waits at a gate before its first step breaks."""

    def __init__(self, gate: Path, fault: Fault) -> None:
        super().__init__(fault, Moment.STEP, **LONG)
        self.gate = gate

    def step(self, action: Any) -> Any:
        wait_at(self.gate)
        return super().step(action)


DEADLINES = ("step_timeout", "reset_timeout", "start_timeout")
SETTINGS: list[tuple[str, Any, type[Exception], str]] = [
    *((name, value, ValueError, "") for name in DEADLINES for value in (-0.5, 0, math.nan, "1", True)),
    *(("max_restarts", value, ValueError, "") for value in (0, -1)),
    *(("max_restarts", value, TypeError, "") for value in (1.5, True)),
    *(("restart_window", value, ValueError, "") for value in (-1, math.nan, None, "1", True)),
    *(("on_failure", value, ValueError, "is unknown") for value in ("Restart", "", None, True)),
]


def test_bad_settings_leave_nothing(make: Make) -> None:
    children = Path(f"/proc/{supervisor_pid()}/task/{supervisor_pid()}/children")
    workers = children.read_text()
    for setting, value, kind, text in SETTINGS:
        with pytest.raises(kind, match=rf"^{setting}={value!r} {text}") as caught:
            make([ScriptedEnv], **{setting: value})
        assert caught.value.__traceback__ is not None  # while the error is held, and with it all that its frames hold
        assert children.read_text() == workers


BEGINNING: dict[str, Callable[[ParallelEnvManager], Any]] = {
    "reset": lambda envs: None,
    "step": reset,
    "reset_wait": lambda envs: envs.reset_async(),
    "step_wait": lambda envs: (reset(envs), envs.step_async(ONE)),
    "call_wait": lambda envs: envs.call_async("echo"),
    "recv": lambda envs: (reset(envs), envs.send(ONE)),
    "close": lambda envs: None,
}
"""What leads up to a call that takes a deadline."""


def ask_with_timeout(envs: ParallelEnvManager, asked: str, timeout: Any) -> Any:
    BEGINNING[asked](envs)
    return getattr(envs, asked)(*([ONE] if asked == "step" else []), timeout=timeout)


@pytest.mark.parametrize("asked", BEGINNING)
def test_a_deadline_of_a_call_that_makes_no_sense_is_refused(make: Make, asked: str) -> None:
    envs = make([ScriptedEnv], backend="serial")
    with pytest.raises(ValueError, match=r"^timeout=-1 "):
        ask_with_timeout(envs, asked, -1)
    assert not envs.closed
    if asked in ("reset", "step", "close"):  # a refused call has not begun
        envs.reset(seed=0)


def test_unknown_envs_are_not_restarted_nor_those_of_a_closed_manager(make: Make) -> None:
    envs = make([CountingEnv] * 2, backend="serial")
    for env_ids in (2, -3, [0.0], [True], [0, 0], []):
        with pytest.raises(ValueError, match="env_ids"):
            envs.restart(env_ids)  # type: ignore[arg-type]  # that it is refused is the fact
    assert envs.num_restarts == 0
    envs.close()
    with pytest.raises(ClosedError, match=r"`restart`.*after a call to `close\(\)`"):
        envs.restart()


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
@pytest.mark.parametrize("timeout", [3e6, 1e10, math.inf])
def test_a_deadline_may_be_farther_away_than_the_system_counts(make: Make, backend: str, timeout: float) -> None:
    for asked in ("reset", "step", "call_wait", "recv"):
        settings = dict.fromkeys(DEADLINES, timeout)
        envs = make([ScriptedEnv], backend=backend, context="fork", **settings)
        ask_with_timeout(envs, asked, timeout)
        envs.close()
