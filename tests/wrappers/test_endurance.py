"""Ten thousand turns leave nothing behind."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.wrappers import PolicyPool
from tests.wrappers.agents import Constant
from tests.wrappers.conftest import Seat

TURNS = 10_000
WARM_UP = 500
MOST_BYTES = 4 << 20


def resident(pid: int) -> int:
    """Bytes of memory that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def descriptors(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def held(pids: list[int]) -> tuple[int, int]:
    """Descriptors of all processes, and threads of this one."""
    return sum(map(descriptors, pids)), threading.active_count()


@pytest.mark.parametrize("strategy", ["thread", "process"])
def test_ten_thousand_turns_leave_nothing_behind(seat: Seat, pool: PolicyPool, strategy: str) -> None:
    wrapper = seat(strategy, {"a": Constant(), "b": Constant()})
    pids = [os.getpid()]
    if strategy == "process":
        pids += [pool.processes().pid(worker) for worker in range(2)]
    seen: list[Any] = [{"a": np.zeros(3), "b": np.zeros(3)}, {"b": np.zeros(3)}, {"a": np.zeros(3), "b": 1}]
    for _ in range(WARM_UP):
        wrapper.step(seen[0])
        wrapper.step(seen[1])
    before, bytes_before = held(pids), [resident(pid) for pid in pids]
    for number in range(TURNS):
        wrapper.step(seen[number % 2])
        if number % 1000 == 0:
            wrapper.step(seen[2])
            wrapper.reset()
            wrapper.get_state("a")
    assert held(pids) == before
    for pid, earlier in zip(pids, bytes_before, strict=True):
        assert resident(pid) - earlier < MOST_BYTES
    assert wrapper.tallies["b"].turns == 2 * WARM_UP + TURNS + TURNS // 1000
