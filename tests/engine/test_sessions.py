"""What a worker's object has started in a session of its own ends with the worker, too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from parallel_envs.engine import WorkerPool
from tests.engine.asking import host, value_of
from tests.engine.conftest import Open

LEAVES_ONE_BEHIND = """
import subprocess
print(subprocess.Popen(["sleep", "1000"], start_new_session=True, stdout=subprocess.DEVNULL).pid)
"""


class Starter:
    """Starts a process far away from its worker."""

    def start(self) -> int:
        """One whose parent is the worker."""
        return subprocess.Popen(["sleep", "1000"], start_new_session=True).pid

    def start_orphan(self) -> int:
        """One whose parent has ended."""
        return int(subprocess.run([sys.executable, "-c", LEAVES_ONE_BEHIND], stdout=subprocess.PIPE, check=True).stdout)


def started(pool: WorkerPool) -> list[Path]:
    key = host(pool, Starter)
    processes = [Path(f"/proc/{value_of(pool, pool.call(0, key, way))}") for way in ("start", "start_orphan")]
    assert all(process.exists() for process in processes)
    return processes


def test_with_a_pool_that_is_closed(open_processes: Open) -> None:
    pool = open_processes(1)
    processes = started(pool)
    pool.close()
    assert not any(process.exists() for process in processes)


@pytest.mark.parametrize("method", ["forkserver", "spawn"])
def test_with_a_worker_that_is_killed(open_processes: Open) -> None:
    pool = open_processes(2)
    processes = started(pool)
    pool.kill(0)
    assert not any(process.exists() for process in processes)
