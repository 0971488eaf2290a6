"""Made and closed again and again: no descriptor, thread, process or memory is held in the end."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
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
    """What this process and the supervisor hold."""
    gc.collect()
    pids = {"here": os.getpid(), "supervisor": supervisor_pid() or os.getpid()}
    descriptors = {f"descriptors {name}": len(os.listdir(f"/proc/{pid}/fd")) for name, pid in pids.items()}  # noqa: PTH208
    children = Path(f"/proc/{pids['supervisor']}/task/{pids['supervisor']}/children").read_text().split()
    own = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return {**descriptors, "threads": threading.active_count(), "processes": len(children) + len(own)}


def memory() -> dict[str, int]:
    """Resident bytes of this process and of the supervisor."""
    gc.collect()
    pids = {"here": os.getpid(), "supervisor": supervisor_pid() or os.getpid()}
    return {name: int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE for name, pid in pids.items()}


CYCLES: list[Any] = [
    (1700, {"backend": "serial"}),
    (300, {"backend": "thread"}),
    (220, {"context": "forkserver", "num_workers": 1}),
    (40, {"context": "forkserver"}),
    (100, {"context": "fork", "num_workers": 1}),
    (10, {"context": "spawn"}),
    (120, {"on_failure": "restart"}),
]


def named(value: object) -> str:
    return "-".join(map(str, value.values())) if isinstance(value, dict) else str(value)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "settings"), CYCLES, ids=named)
def test_nothing_grows(count: int, settings: dict[str, Any]) -> None:
    things, size = growth(count, min(count // 2, 100), settings)
    assert all(number == 0 for number in things.values()), things
    assert all(number < MEMORY_SLACK for number in size.values()), size


@pytest.mark.parametrize("settings", [settings for _, settings in CYCLES], ids=named)
def test_nothing_is_held_after_a_few_cycles(settings: dict[str, Any]) -> None:
    things, _ = growth(4, 2, settings)
    assert all(number == 0 for number in things.values()), things


def growth(count: int, warm_up: int, settings: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """How much more is held after `count` cycles than after the first `warm_up` of them: things, and bytes.

    A cycle is the life of a manager, or where it restarts the life of a worker.
    """
    if "on_failure" not in settings:
        return grown(count, warm_up, lambda: cycle(settings))
    dying = partial(FaultyEnv, Fault.SIGKILL, Moment.STEP, at=2, episode_lengths=[100])
    with ParallelEnvManager([dying, ScriptedEnv], on_failure="restart", max_restarts=1000) as envs:
        envs.reset(seed=0)

        def live() -> None:
            before = envs.stats()[0]["restarts"]
            while envs.stats()[0]["restarts"] == before:
                envs.step([0, 0])

        return grown(count, warm_up, live)


def grown(count: int, warm_up: int, once: Callable[[], None]) -> tuple[dict[str, int], dict[str, int]]:
    for _ in range(warm_up):
        once()
    things, size = held(), memory()
    for _ in range(count - warm_up):
        once()
    more, larger = held(), memory()
    return {key: more[key] - things[key] for key in things}, {key: larger[key] - size[key] for key in size}


def cycle(settings: dict[str, Any]) -> None:
    with ParallelEnvManager([ScriptedEnv] * 2, **settings) as envs:
        envs.reset(seed=0)
        envs.step([0, 1])


def make_in_vain(fault: Fault) -> None:
    with pytest.raises(ParallelEnvsError):
        ParallelEnvManager([ScriptedEnv, partial(FaultyEnv, fault, Moment.CONSTRUCTOR)])


@pytest.mark.parametrize("count", [3, pytest.param(30, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "once",
    [
        partial(make_in_vain, Fault.EXCEPTION),
        partial(make_in_vain, Fault.OS_EXIT),
        lambda: ParallelEnvManager([ScriptedEnv] * 2).reset(seed=0),
    ],
    ids=["raises as it is made", "exits as it is made", "forgotten"],
)
def test_nothing_grows_with_managers_that_are_not_closed(once: Callable[[], Any], count: int) -> None:
    before = held()
    for _ in range(count):
        once()
    assert held() == before
