"""`close()` ends everything within its time, whatever the workers are doing, and leaves nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from parallel_envs.engine import PendingRequest, WorkerPool
from tests.engine.asking import (
    SOON_SECONDS,
    ends_within,
    host,
    in_fork,
    refusal,
    run,
    value_of,
)
from tests.engine.conftest import Open
from tests.engine.hosted import (
    Echo,
    Founder,
    Gated,
)
from tests.engine.scripts import run_script
from tests.gates import Gate

TIMEOUT = 0.2
MARGIN = 1.0  # for a busy machine


def close_in_time(pool: WorkerPool, timeout: float = TIMEOUT) -> float:
    """The seconds that closing took: no more than it was given, and no process is left."""
    pids = [pool.pid(worker) for worker in pool.all_workers]
    began = time.monotonic()
    pool.close(timeout)
    seconds = time.monotonic() - began
    assert seconds < timeout + MARGIN
    assert all(ends_within(pid, 0.0) for pid in pids)
    return seconds


def ignore_sigterm(pool: WorkerPool, gated: int) -> None:
    run(pool, lambda: signal.signal(signal.SIGTERM, signal.SIG_IGN) and None)
    pool.ring(gated)


def send_a_huge_message(pool: WorkerPool, gated: int) -> None:
    pool.ring(gated)
    pool.call(0, gated, "swallow", bytes(16 << 20))


STATES: dict[str, tuple[float, Callable[[WorkerPool, int], object]]] = {
    "without notice of SIGTERM": (TIMEOUT, ignore_sigterm),
    "amid a huge reply": (2.0, lambda pool, gated: pool.call(0, host(pool, Founder), "much", 16 << 20)),
    "with a huge message on its way": (TIMEOUT, send_a_huge_message),
    "with thousands of bells before it": (TIMEOUT, lambda pool, gated: [pool.ring(gated) for _ in range(10_000)]),
}
"""What a worker is in when its pool is closed, and the time that closing is given. Other states: `tests/faults`."""


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
@pytest.mark.parametrize("state", STATES)
def test_workers_in_any_state_are_ended_in_time(open_processes: Open, gate: Gate, state: str) -> None:
    pool = open_processes(2)
    timeout, bring_about = STATES[state]
    bring_about(pool, host(pool, Gated, gate.path))
    assert close_in_time(pool, timeout) < 5.0
    assert close_in_time(pool, 20.0) < 0.1  # the second time there is nothing to do


def test_with_no_time_at_all_the_workers_still_end(open_processes: Open, gate: Gate) -> None:
    pool = open_processes(2)
    pool.ring(host(pool, Gated, gate.path))
    pids = [pool.pid(worker) for worker in pool.all_workers]
    pool.close(timeout=0.0)
    assert all(ends_within(pid, SOON_SECONDS) for pid in pids)
    pool.close(timeout=0.0)


OPERATIONS: dict[str, Callable[[WorkerPool, int, PendingRequest], object]] = {
    "ring": lambda pool, key, request: pool.ring(key),
    "ring_each": lambda pool, key, request: pool.ring_each(key, [(0, 1, None)]),
    "send": lambda pool, key, request: pool.call(0, key, "echo", 1),
    "wait": lambda pool, key, request: pool.wait(request),
    "pump": lambda pool, key, request: pool.pump(None),
    "look": lambda pool, key, request: pool.pump(0.0),
    "kill": lambda pool, key, request: pool.kill(0),
    "restart": lambda pool, key, request: pool.restart(0),
    "stack": lambda pool, key, request: pool.stack(0),
    "meters": lambda pool, key, request: pool.meters(0),
    "restart after close": lambda pool, key, request: (pool.close(), pool.restart(0)),
}


def test_a_forked_process_is_refused_everything_and_spoils_nothing(open_any: Open) -> None:
    pool = open_any(2)
    key = host(pool, Echo)
    pids = [pool.pid(worker) for worker in pool.all_workers]
    request = pool.ring(key, 7)
    for name, operation in OPERATIONS.items():
        told = refusal(partial(operation, pool, key, request))
        assert told.startswith(f"ClosedError: These workers belong to process {os.getpid()}"), name
    assert f"belong to process {os.getpid()}" in in_fork(lambda: refusal(lambda: pool.ring(key)))  # a fork's fork
    assert [value_of(pool, request, worker) for worker in pool.all_workers] == [7, 7]
    assert [pool.pid(worker) for worker in pool.all_workers] == pids
    assert value_of(pool, pool.ring(key, 8)) == 8


def test_a_forked_process_that_exits_as_python_does_spoils_nothing(method: str, tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        pool, key = opened(2, list)
        request = pool.call(0, key, "append", 1)
        for way in ("exit", "raise", "end"):
            child = os.fork()
            if not child:
                break
            assert os.waitpid(child, 0)[0] == child
        if not child:
            if way == "exit":
                sys.exit()
            if way == "raise":
                sys.stderr = open(os.devnull, "w")
                raise KeyError
        else:
            assert pool.wait(request, 30)
            assert pool.wait(pool.call_all(key, "clear"), 30)
            pool.close()
            print("fine")
        """,
        method,
    )
    assert (done.stdout, done.stderr) == ("fine\n", "")
