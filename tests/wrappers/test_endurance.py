"""Ten thousand turns leave nothing behind."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.wrappers import STRATEGIES, PolicyPool
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


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_ten_thousand_turns_leave_nothing_behind(seat: Seat, pool: PolicyPool, strategy: str) -> None:
    if strategy == "gpu":
        pytest.importorskip("torch")
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
            one, other = wrapper.agent_policy("a"), wrapper.agent_policy("b")
            one.send(seen[0]["a"])
            assert (other.step(seen[0]["b"]), one.recv()) == (0, 0)
    assert held(pids) == before
    for pid, earlier in zip(pids, bytes_before, strict=True):
        assert resident(pid) - earlier < MOST_BYTES
    assert wrapper.tallies["b"].turns == 2 * WARM_UP + TURNS + 2 * (TURNS // 1000)


def test_ten_thousand_passes_leave_nothing_behind(seat: Seat) -> None:
    """Of networks that are trained, replaced and asked in ever other company."""
    torch = pytest.importorskip("torch")
    from tests.wrappers.test_torch import discrete

    policies: dict[str, Any] = {agent: discrete(seed) for seed, agent in enumerate("abcd")}
    wrapper = seat("batch", policies)
    companies = [{agent: np.zeros(6, np.float32) for agent in agents} for agents in ("abcd", "ab", "bcd", "dcba", "ac")]

    def passes(count: int) -> None:
        for number in range(count):
            wrapper.step(companies[number % 5])
            if number % 50 == 0:
                with torch.no_grad():
                    policies["b"].module[0].weight += 0.001
            if number % 500 == 0:
                policies["c"].module = discrete(number).module

    passes(WARM_UP)
    before, bytes_before = held([os.getpid()]), resident(os.getpid())
    passes(TURNS)
    assert held([os.getpid()]) == before
    assert resident(os.getpid()) - bytes_before < MOST_BYTES
