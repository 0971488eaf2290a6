"""Made and closed again and again: no descriptor, thread, process or memory is held in the end."""

from __future__ import annotations

import gc
import os
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallel_envs import ParallelEnvManager
from parallel_envs.engine import supervisor_pid
from parallel_envs.errors import ParallelEnvsError
from parallel_envs.testing import Fault, FaultyEnv, Moment, ScriptedEnv

PAGE = os.sysconf("SC_PAGE_SIZE")
MEMORY_SLACK = 2 << 20


def held() -> dict[str, int]:
    """What this process and the keeper hold."""
    gc.collect()
    pids = {"here": os.getpid(), "keeper": supervisor_pid() or os.getpid()}
    descriptors = {f"descriptors {name}": len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()}  # noqa: PTH208
    children = Path(f"/proc/{pids['keeper']}/task/{pids['keeper']}/children").read_text().split()
    own = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {**descriptors, "threads": threading.active_count(), "processes": len(children) + len(own)}


def memory() -> dict[str, int]:
    """Resident bytes of this process and of the keeper."""
    gc.collect()
    pids = {"here": os.getpid(), "keeper": supervisor_pid() or os.getpid()}
    return {name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE for name, pid in pids.items()}


def cycle(**settings: Any) -> None:
    with ParallelEnvManager([ScriptedEnv] * 2, **settings) as envs:
        envs.reset(seed=0)
        envs.step([0, 1])


def growth(count: int, warm_up: int, **settings: Any) -> tuple[dict[str, int], dict[str, int]]:
    """How much more is held after `count` cycles than after the first `warm_up` of them: things, and bytes."""
    for _ in range(warm_up):
        cycle(**settings)
    things, size = held(), memory()
    for _ in range(count - warm_up):
        cycle(**settings)
    more, larger = held(), memory()
    return {key: more[key] - things[key] for key in things}, {key: larger[key] - size[key] for key in size}


@pytest.mark.parametrize(
    ("count", "settings"),
    [
        (1700, {"backend": "serial"}),
        (300, {"backend": "thread"}),
        (220, {"context": "forkserver", "num_workers": 1}),
        (40, {"context": "forkserver"}),
        (100, {"context": "fork", "num_workers": 1}),
        (10, {"context": "spawn"}),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else str(value),
)
def test_nothing_grows(count: int, settings: dict[str, Any]) -> None:
    things, size = growth(count, min(count // 2, 100), **settings)
    assert all(number == 0 for number in things.values()), things
    assert all(number < MEMORY_SLACK for number in size.values()), size


def test_nothing_grows_with_restarts() -> None:
    dying = partial(FaultyEnv, Fault.SIGKILL, Moment.STEP, at=2, episode_lengths=[100])
    with ParallelEnvManager([dying, ScriptedEnv], on_failure="restart", max_restarts=1000) as envs:
        envs.reset(seed=0)

        def lives(count: int) -> None:
            while envs.stats()[0]["restarts"] < count:
                envs.step([0, 0])

        lives(20)
        before, size = held(), memory()
        lives(120)
        assert held() == before
        assert all(memory()[key] - size[key] < MEMORY_SLACK for key in size)


@pytest.mark.parametrize("fault", [Fault.EXCEPTION, Fault.OS_EXIT], ids=lambda fault: fault.value)
def test_nothing_grows_with_managers_that_cannot_be_made(fault: Fault) -> None:
    broken: list[Any] = [ScriptedEnv, partial(FaultyEnv, fault, Moment.CONSTRUCTOR)]
    before = held()
    for _ in range(30):
        with pytest.raises(ParallelEnvsError):
            ParallelEnvManager(broken)
    assert held() == before


def test_nothing_grows_with_managers_that_are_forgotten() -> None:
    before = held()
    for _ in range(30):
        ParallelEnvManager([ScriptedEnv] * 2).reset(seed=0)
    assert held() == before
