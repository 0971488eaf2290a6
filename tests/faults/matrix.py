"""What can go wrong when, what the caller is to be told of it, and what the system says of processes."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied
from parallel_envs.testing import FAULTS_AT, Fault, FaultyEnv, Moment, ScriptedEnv
from tests.engine.asking import ends_within
from tests.engine.scripts import environment, written

Make = Callable[..., ParallelEnvManager]
Act = Callable[[ParallelEnvManager], Any]

SHORT = 0.2
"""A deadline that a hanging env is to miss, and no other."""

DEADLINES = {"step_timeout": SHORT, "reset_timeout": SHORT, "start_timeout": 20.0}
CLOSE_SECONDS = 0.25
SLACK = 2.0
"""What a busy machine may add to a deadline."""

HUGE = 4 << 20

EXIT_CODES = {Fault.SIGKILL: -9, Fault.SIGSEGV: -11, Fault.OS_EXIT: 17}
ENDINGS = {
    Fault.SIGKILL: "was killed by signal 9 (SIGKILL)",
    Fault.SIGSEGV: "was killed by signal 11 (SIGSEGV)",
    Fault.OS_EXIT: "ended with exit code 17",
}
HANGING = {Fault.SIGSTOP, Fault.INFINITE_LOOP, Fault.SLEEP}
RAISED = {
    Fault.EXCEPTION: "ValueError",
    Fault.UNPICKLABLE_EXCEPTION: "parallel_envs.testing.scripted.UnpicklableError",
    Fault.TWO_ARGUMENT_EXCEPTION: "parallel_envs.testing.scripted.TwoArgumentError",
    Fault.SYSTEM_EXIT: "SystemExit",
}
HARMLESS = {(Fault.HUGE_REPLY, moment) for moment in Moment} | {(Fault.INFINITE_LOOP, Moment.IDLE)}
"""These break nothing: a reply is only large; an env whose own thread goes round in circles still answers."""

ALL = [(fault, moment) for moment in Moment for fault in Fault if fault in FAULTS_AT[moment]]


def covering(cases: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Parameters of a test: a case that shows nothing new is slow.

    New is each value, and each pair of a value with a kind of fault (it kills, it hangs, it raises).
    """
    seen: set[Any] = set()
    parameters = []
    for case in cases:
        kinds = {
            "kills" if v in EXIT_CODES else "hangs" if v in HANGING else "raises" for v in case if type(v) is Fault
        }
        shown = {*case, *((kind, value) for kind in kinds for value in case if type(value) is not Fault)}
        parameters.append(pytest.param(*case, marks=[pytest.mark.slow] if shown <= seen else []))
        seen |= shown
    return parameters


LENGTHS = {Moment.AUTORESET: (1,)}
"""Episode lengths, where the fault wants an episode to end."""


def name(value: object) -> str | None:
    return value.value if isinstance(value, Fault | Moment) else None


def scripted(moment: Moment) -> dict[str, Any]:
    return {"episode_lengths": LENGTHS.get(moment, (100,))}


def faulty(fault: Fault, moment: Moment, once: Path) -> Callable[[], FaultyEnv]:
    """An env that breaks at the first such moment of its first life."""
    return partial(FaultyEnv, fault, moment, num_bytes=HUGE, once=once, **scripted(moment))


def sound(moment: Moment) -> Callable[[], ScriptedEnv]:
    return partial(ScriptedEnv, **scripted(moment))


def actions(envs: ParallelEnvManager) -> Any:
    return np.arange(envs.num_envs) % 3


def reset(envs: ParallelEnvManager) -> Any:
    return envs.reset(seed=0)


def step(envs: ParallelEnvManager) -> Any:
    return envs.step(actions(envs))


def poke(envs: ParallelEnvManager) -> Any:
    envs.call_async("poke", env_ids=1)
    return envs.call_wait(timeout=SHORT)


ASKING: dict[Moment, tuple[Act, ...]] = {
    Moment.RESET: (reset,),
    Moment.STEP: (reset, step),
    Moment.AUTORESET: (reset, step, step),
    Moment.CALL: (reset, poke),
    Moment.IDLE: (reset, step, step),
}
"""What leads up to the moment, and what is asked when it goes wrong."""

DOING = {
    Moment.CONSTRUCTOR: "its construction",
    Moment.RESET: "reset",
    Moment.STEP: "step 1",
    Moment.AUTORESET: "step 2",
    Moment.CALL: "call of 'poke'",
    Moment.IDLE: "step 2",
}


def await_idle_fault(envs: ParallelEnvManager, fault: Fault, env: int = 1) -> None:
    """Wait until what is to happen to an idle env has happened."""
    pid = envs.stats()[worker_of(envs, env)]["pid"]
    if fault in EXIT_CODES:
        assert ends_within(pid, 20.0)
    elif fault is Fault.SIGSTOP:
        assert stops_within(pid, 20.0)


def worker_of(envs: ParallelEnvManager, env: int) -> int:
    return next(int(row["worker"]) for row in envs.stats() if env in row["env_ids"])


def error_of(fault: Fault) -> type[Exception]:
    return WorkerDied if fault in EXIT_CODES else StepTimeout if fault in HANGING else EnvError


def text_of(fault: Fault, moment: Moment, env: int = 1) -> str:
    """A pattern for the first sentence."""
    doing = DOING[moment]
    if fault in EXIT_CODES:
        return rf"^Worker {env} \(env {env}, pid \d+\) {re.escape(ENDINGS[fault])} during {re.escape(doing)}\."
    if fault in HANGING:
        return rf"^Envs? .*{env}.* did not answer within [\d.]+ seconds during {doing}\."
    return rf"^Env {env} raised {re.escape(RAISED[fault])} during {re.escape(doing)}: "


@contextmanager
def within(seconds: float) -> Iterator[None]:
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds, f"took {took:.2f} s, not {seconds} s"


# ---- processes -------------------------------------------------------------------------------------------------------

QUIET_LOOKS = 3
"""A process that is just being born has no environment to look at for a moment: one look may miss it."""


def stops_within(pid: int, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (state := state_of(pid)) != "T" and time.monotonic() < deadline:
        os.sched_yield()
    return state == "T"


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def marked(mark: str) -> set[int]:
    """The living processes that have this in their environment."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and state_of(int(folder.name)) != "Z":
                found.add(int(folder.name))
        except OSError:  # it has just ended, or belongs to someone else
            continue
    return found


def left_after(seconds: float, mark: str) -> set[int]:
    """The processes of `marked` that have not ended by then; those too that show only now that they were just born."""
    deadline, quiet_looks = time.monotonic() + seconds, 0
    while quiet_looks < QUIET_LOOKS and time.monotonic() < deadline:
        quiet_looks = 0 if marked(mark) else quiet_looks + 1
        time.sleep(0.02)
    return marked(mark)


def all_end_within(pids: set[int], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    return all(ends_within(pid, max(deadline - time.monotonic(), 0.0)) for pid in pids)


@contextmanager
def running(
    folder: Path, script: str, *arguments: str, stderr: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A script, and the mark that it and all its processes bear."""
    mark = f"PARALLEL_ENVS_ORPHAN={uuid.uuid4().hex}"
    variables = {**environment(), **dict([mark.split("=")])}
    command = [sys.executable, str(written(folder, script)), *arguments]
    with subprocess.Popen(
        command, text=True, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=stderr
    ) as process:
        try:
            yield process, mark
        finally:
            process.kill()
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)
