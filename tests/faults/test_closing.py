"""`close()` is over within its time in every state, and what is closed, forgotten or left by Python is gone."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.errors import StepTimeout
from parallel_envs.testing import Fault, Moment, ScriptedEnv
from tests.engine.asking import WAIT_SECONDS, ends_within
from tests.engine.scripts import run_script
from tests.faults.broken_envs import LONG, FoundingEnv
from tests.faults.matrix import CLOSE_SECONDS, SLACK, Make, actions, await_idle_fault, faulty, reset, step, within
from tests.faults.processes import all_end_within
from tests.gates import Gate
from tests.vector.small_envs import CountingEnv, GatedEnv, SlowResetEnv

Prepare = Callable[[ParallelEnvManager], Any]

SOON = 1.0


def begin_step(envs: ParallelEnvManager) -> None:
    reset(envs)
    envs.step_async(actions(envs))


def begin_flights(envs: ParallelEnvManager) -> None:
    reset(envs)
    envs.send(actions(envs))


def begin_call(envs: ParallelEnvManager) -> None:
    envs.call_async("slow_call", env_ids=0)


def time_out(envs: ParallelEnvManager) -> None:
    begin_step(envs)
    with pytest.raises(StepTimeout):
        envs.step_wait(timeout=0.01)


def stop(envs: ParallelEnvManager) -> None:
    for row in envs.stats():
        os.kill(row["pid"], signal.SIGSTOP)


def kill(envs: ParallelEnvManager) -> None:
    os.kill(envs.stats()[1]["pid"], signal.SIGKILL)


def kill_all_amid_a_step(envs: ParallelEnvManager) -> None:
    begin_step(envs)
    for row in envs.stats():
        os.kill(row["pid"], signal.SIGKILL)


def stop_amid_a_step(envs: ParallelEnvManager) -> None:
    begin_step(envs)
    stop(envs)


STATES: dict[str, Prepare] = {
    "fresh": lambda envs: None,
    "idle": reset,
    "amid a reset": lambda envs: envs.reset_async(),
    "amid a step": begin_step,
    "amid flights": begin_flights,
    "amid a call": begin_call,
    "after a timeout": time_out,
    "with stopped workers": stop,
    "with workers stopped amid a step": stop_amid_a_step,
    "with a killed worker": kill,
    "with workers killed amid a step": kill_all_amid_a_step,
}


# The start method counts where there is a worker to be ended.
CASES = [("fork", state) for state in STATES]
CASES += [(method, s) for method in ("forkserver", "spawn") for s in ("idle", "amid a step", "with stopped workers")]


@pytest.mark.parametrize(("context", "state"), CASES)
@pytest.mark.slow(sample=True)
def test_it_is_over_in_time_in_every_state(make: Make, gate: Gate, context: str, state: str) -> None:
    slow = SlowResetEnv if "reset" in state else GatedEnv
    envs = make([partial(slow, gate.path), CountingEnv], context=context)
    STATES[state](envs)
    pids = {row["pid"] for row in envs.stats()}
    with within(CLOSE_SECONDS + SLACK):
        envs.close(timeout=CLOSE_SECONDS)
    assert all_end_within(pids, 0.0)


def test_with_terminate_it_is_over_at_once(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path)] * 2)
    begin_step(envs)
    with within(SOON):
        envs.close(terminate=True)


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_the_second_time_it_does_nothing(make: Make, backend: str) -> None:
    envs = make([CountingEnv], backend=backend)
    for _ in range(3):
        envs.close(timeout=CLOSE_SECONDS)
    assert envs.closed


def test_a_thread_that_hangs_does_not_hold_it_up(make: Make, gate: Gate) -> None:
    envs = make([partial(GatedEnv, gate.path)], backend="thread")
    begin_step(envs)
    with within(CLOSE_SECONDS + SLACK):
        envs.close(timeout=CLOSE_SECONDS)


@pytest.mark.parametrize("is_broken", [False, True])
def test_two_managers_are_closed_apart(make: Make, tmp_path: Path, is_broken: bool) -> None:
    first = make([faulty(Fault.SIGSTOP, Moment.IDLE, tmp_path / "broken") if is_broken else ScriptedEnv])
    second = make([CountingEnv] * 2)
    reset(first)
    reset(second)
    step(first)
    if is_broken:
        await_idle_fault(first, Fault.SIGSTOP, env=0)
    first.close(timeout=CLOSE_SECONDS)
    assert step(second)[1].tolist() == [1, 1]


# ---- without a call ------------------------------------------------------------------------------


@pytest.mark.parametrize("state", ["idle", "with workers stopped amid a step"])
def test_a_manager_that_is_forgotten_is_closed_in_the_five_seconds_of_the_default(gate: Gate, state: str) -> None:
    with within(5.0 + SLACK):
        pids = pids_of_a_forgotten_manager(gate.path, STATES[state])
        gc.collect()
    assert all_end_within(pids, SOON)


def pids_of_a_forgotten_manager(path: Path, prepare: Prepare) -> set[int]:
    envs = ParallelEnvManager([partial(GatedEnv, path), CountingEnv])
    weakref.finalize(envs, int)
    prepare(envs)
    return {row["pid"] for row in envs.stats()}


EXIT = """
from parallel_envs import ParallelEnvManager
from parallel_envs.testing import FaultyEnv, ScriptedEnv

class NotedEnv(ScriptedEnv):
    def close(self):
        open(f"closed {{os.getpid()}}", "w").close()

envs = ParallelEnvManager([NotedEnv, {other}], context=sys.argv[1])
envs.reset(seed=0)
print(*[row["pid"] for row in envs.stats()], supervisor_pid(), flush=True)
{last}
"""
LASTS = {
    "idle": ("NotedEnv", ""),
    "amid a step that hangs": ("lambda: FaultyEnv('sleep', 'step')", "envs.step_async([0, 0])"),
    "with a stopped worker": ("NotedEnv", "os.kill(envs.stats()[1]['pid'], signal.SIGSTOP)"),
    "after a crash": ("NotedEnv", "os.kill(envs.stats()[1]['pid'], signal.SIGKILL)"),
}


@pytest.mark.parametrize(
    ("method", "last"),
    [("forkserver", last) for last in LASTS]
    + [(one, last) for one in ("fork", "spawn") for last in ("idle", "after a crash")],
)
@pytest.mark.slow(sample=True)
def test_at_the_end_of_a_script_all_is_closed_in_time(method: str, tmp_path: Path, last: str) -> None:
    other, line = LASTS[last]
    with within(WAIT_SECONDS):
        done = run_script(tmp_path, EXIT.format(other=other, last=line), method)
    pids = {int(pid) for pid in done.stdout.split()}
    assert len(pids) == 3
    assert all_end_within(pids, SOON)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(tmp_path.glob("closed *"))) == (2 if last == "idle" else 1)


# ---- what an env started -------------------------------------------------------------------------


def founded(envs: ParallelEnvManager) -> set[int]:
    """The processes that the envs have started just now."""
    pids = {pid for pids in envs.call("found") for pid in pids}
    assert not any(ends_within(pid, 0.0) for pid in pids)
    return pids


def kill_workers(envs: ParallelEnvManager) -> None:
    for row in envs.stats():
        os.kill(row["pid"], signal.SIGKILL)


ENDS: dict[str, Prepare] = {
    "close": lambda envs: envs.close(),
    "terminate": lambda envs: envs.close(terminate=True),
    "restart": lambda envs: envs.restart(),
    "death": kill_workers,
}


@pytest.mark.parametrize(
    ("method", "end"),
    [("fork", end) for end in ENDS] + [(one, end) for one in ("forkserver", "spawn") for end in ("close", "death")],
)
def test_what_an_env_started_ends_with_its_worker(make: Make, method: str, end: str) -> None:
    envs = make([FoundingEnv] * 2, context=method)
    pids = founded(envs)
    ENDS[end](envs)
    if end == "death":
        with pytest.raises(Exception, match="killed by signal 9"):
            reset(envs)
    assert all_end_within(pids, SOON)


def test_what_an_env_started_ends_with_a_worker_that_is_restarted_for_a_fault(make: Make) -> None:
    envs = make([FoundingEnv, partial(ScriptedEnv, **LONG)], on_failure="restart")
    reset(envs)
    pids = set(envs.call("found", env_ids=0)[0])
    os.kill(envs.stats()[0]["pid"], signal.SIGKILL)
    assert envs.step(np.zeros(2, int))[3].tolist() == [True, False]
    assert all_end_within(pids, SOON)
