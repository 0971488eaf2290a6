"""`close()` is over within its time in every state, and what is closed, forgotten or left by Python is gone."""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.engine import supervisor_pid
from parallel_envs.errors import ParallelEnvsError, StepTimeout
from parallel_envs.testing import Fault, FaultyEnv, Moment, ScriptedEnv
from tests.engine.asking import WAIT_SECONDS, ends_within
from tests.engine.scripts import run_script
from tests.faults.broken_envs import FoundingEnv
from tests.faults.matrix import CLOSE_SECONDS, SLACK, Make, actions, all_end_within, reset, within
from tests.gates import Gate
from tests.vector.small_envs import CountingEnv, GatedEnv, SlowResetEnv

Prepare = Callable[[ParallelEnvManager], Any]

SOON = 1.0


def then(*parts: Prepare) -> Prepare:
    return lambda envs: [part(envs) for part in parts]


def begin_step(envs: ParallelEnvManager) -> None:
    reset(envs)
    envs.step_async(actions(envs))


def time_out(envs: ParallelEnvManager) -> None:
    with pytest.raises(StepTimeout):
        envs.step_wait(timeout=0.01)


def strike(number: int, *workers: int) -> Prepare:
    """A signal for some workers, or for all."""

    def strike_them(envs: ParallelEnvManager) -> None:
        for row in envs.stats():
            if not workers or row["worker"] in workers:
                os.kill(row["pid"], number)

    return strike_them


STATES: dict[str, Prepare] = {
    "fresh": lambda envs: None,
    "idle": reset,
    "amid a reset": lambda envs: envs.reset_async(),
    "amid a step": begin_step,
    "amid flights": then(reset, lambda envs: envs.send(actions(envs))),
    "amid a call": lambda envs: envs.call_async("slow_call", env_ids=0),
    "after a timeout": then(begin_step, time_out),
    "with stopped workers": strike(signal.SIGSTOP),
    "with workers stopped amid a step": then(begin_step, strike(signal.SIGSTOP)),
    "with a killed worker": strike(signal.SIGKILL, 1),
    "with workers killed amid a step": then(begin_step, strike(signal.SIGKILL)),
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
    with within(0.1):  # the second time there is nothing to do
        envs.close()


@pytest.mark.parametrize(("backend", "how"), [("thread", {"timeout": CLOSE_SECONDS}), ("process", {"terminate": True})])
def test_an_env_that_hangs_holds_up_no_close(make: Make, gate: Gate, backend: str, how: Any) -> None:
    envs = make([partial(GatedEnv, gate.path)] * 2, backend=backend)
    begin_step(envs)
    with within(SOON if "terminate" in how else CLOSE_SECONDS + SLACK):
        envs.close(**how)


@pytest.mark.parametrize("state", ["idle", pytest.param("with workers stopped amid a step", marks=pytest.mark.slow)])
def test_a_manager_that_is_forgotten_is_closed_in_the_five_seconds_of_the_default(gate: Gate, state: str) -> None:
    with within(5.0 + SLACK):
        pids = pids_of_a_forgotten_manager(gate.path, STATES[state])
        gc.collect()
    assert all_end_within(pids, SOON)


def pids_of_a_forgotten_manager(path: Path, prepare: Prepare) -> set[int]:
    envs = ParallelEnvManager([partial(GatedEnv, path), CountingEnv])
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
    "by sys.exit": ("NotedEnv", "sys.exit(3)"),
    "by an error": ("NotedEnv", "raise ValueError('of the script')"),
    "in a function": ("NotedEnv", "def f():\n    envs = ParallelEnvManager([ScriptedEnv])\n    sys.exit(4)\nf()"),
    "amid a step that hangs": ("lambda: FaultyEnv('sleep', 'step')", "envs.step_async([0, 0])"),
    "with a stopped worker": ("NotedEnv", "os.kill(envs.stats()[1]['pid'], signal.SIGSTOP)"),
    "after a crash": ("NotedEnv", "os.kill(envs.stats()[1]['pid'], signal.SIGKILL)"),
}


QUICK = [
    ("forkserver", "amid a step that hangs"),
    ("spawn", "idle"),
    ("fork", "by an error"),
    ("fork", "in a function"),
]
SLOW = [("fork", last) for last in LASTS] + [("forkserver", "idle"), ("spawn", "after a crash")]


@pytest.mark.parametrize(
    ("method", "last"), [*QUICK, *(pytest.param(*case, marks=pytest.mark.slow) for case in SLOW if case not in QUICK)]
)
def test_at_the_end_of_a_script_all_is_closed_in_time(method: str, tmp_path: Path, last: str) -> None:
    other, line = LASTS[last]
    with within(WAIT_SECONDS):
        done = run_script(tmp_path, EXIT.format(other=other, last=line), method)
    pids = {int(pid) for pid in done.stdout.split()}
    assert len(pids) == 3
    assert all_end_within(pids, SOON)
    assert done.returncode == {"by sys.exit": 3, "by an error": 1, "in a function": 4}.get(last, 0)
    assert done.stderr.splitlines()[-1:] == (["ValueError: of the script"] if last == "by an error" else [])
    assert len(list(tmp_path.glob("closed *"))) == (1 if "step" in last or "worker" in last or "crash" in last else 2)


ENDS: dict[str, Prepare] = {
    "close": lambda envs: envs.close(),
    "terminate": lambda envs: envs.close(terminate=True),
    "restart": lambda envs: envs.restart(),
    "death": strike(signal.SIGKILL),
}


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize(
    ("method", "end"),
    [("fork", end) for end in ENDS] + [(one, end) for one in ("forkserver", "spawn") for end in ("close", "death")],
)
def test_what_an_env_started_ends_with_its_worker(make: Make, method: str, end: str) -> None:
    envs = make([FoundingEnv] * 2, context=method)
    pids = {pid for pids in envs.call("found") for pid in pids}
    assert not any(ends_within(pid, 0.0) for pid in pids)
    ENDS[end](envs)
    if end == "death":
        with pytest.raises(Exception, match="killed by signal 9"):
            reset(envs)
    assert all_end_within(pids, SOON)


PAGE = os.sysconf("SC_PAGE_SIZE")
MEMORY_SLACK = 2 << 20


def held() -> dict[str, int]:
    """What this process and the supervisor hold."""
    gc.collect()
    pids = {"here": os.getpid(), "supervisor": supervisor_pid() or os.getpid()}
    descriptors = {f"descriptors {name}": len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()}  # noqa: PTH208
    children = Path(f"/proc/{pids['supervisor']}/task/{pids['supervisor']}/children").read_text().split()
    own = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {**descriptors, "threads": threading.active_count(), "processes": len(children) + len(own)}


def memory() -> dict[str, int]:
    """Resident bytes of this process and of the supervisor."""
    pids = {"here": os.getpid(), "supervisor": supervisor_pid() or os.getpid()}
    return {name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE for name, pid in pids.items()}


def live_of_a_manager(**settings: Any) -> None:
    with ParallelEnvManager([ScriptedEnv] * 2, **settings) as envs:
        envs.reset(seed=0)
        envs.step([0, 1])


def live_of_no_manager(fault: Fault) -> None:
    with pytest.raises(ParallelEnvsError):
        ParallelEnvManager([ScriptedEnv, partial(FaultyEnv, fault, Moment.CONSTRUCTOR)])


def live_of_a_forgotten_manager() -> None:
    ParallelEnvManager([ScriptedEnv] * 2).reset(seed=0)


@contextmanager
def lives_of_a_worker() -> Iterator[Callable[[], Any]]:
    """It dies, and is restarted."""
    dying = partial(FaultyEnv, Fault.SIGKILL, Moment.STEP, at=2, episode_lengths=[100])
    with ParallelEnvManager([dying, ScriptedEnv], on_failure="restart", max_restarts=1000) as envs:
        envs.reset(seed=0)

        def live() -> None:
            before = envs.stats()[0]["restarts"]
            while envs.stats()[0]["restarts"] == before:
                envs.step([0, 0])

        yield live


CYCLES: dict[str, tuple[int, Callable[[], Any]]] = {
    "serial": (1700, partial(live_of_a_manager, backend="serial")),
    "thread": (300, partial(live_of_a_manager, backend="thread")),
    "forkserver, one worker": (220, partial(live_of_a_manager, context="forkserver", num_workers=1)),
    "forkserver": (40, partial(live_of_a_manager, context="forkserver")),
    "fork": (100, partial(live_of_a_manager, context="fork", num_workers=1)),
    "spawn": (10, partial(live_of_a_manager, context="spawn")),
    "restarts": (120, lives_of_a_worker),
    "raises as it is made": (30, partial(live_of_no_manager, Fault.EXCEPTION)),
    "exits as it is made": (30, partial(live_of_no_manager, Fault.OS_EXIT)),
    "forgotten": (30, live_of_a_forgotten_manager),
}


@pytest.mark.parametrize("kind", CYCLES)
@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_nothing_grows(kind: str, whole: bool) -> None:
    """A few cycles leave no thing behind; many take no memory either."""
    count = CYCLES[kind][0] if whole else 4
    warm_up = min(count // 2, 100)
    live = CYCLES[kind][1]
    with live() if kind == "restarts" else nullcontext(live) as once:
        for _ in range(warm_up):
            once()
        things, size = held(), memory()
        for _ in range(count - warm_up):
            once()
        assert held() == things
        assert not whole or all(bytes_ - size[name] < MEMORY_SLACK for name, bytes_ in memory().items())
