"""However its process ends, a pool leaves no worker and no supervisor behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.engine.asking import WAIT_SECONDS, ends_within, kill
from tests.engine.scripts import running_script

GONE_SECONDS = 2.0

WORKERS = {
    "idle": "pass",
    "asleep": "pool.ring(key)",
    "in a loop": "pool.call(0, key, 'spin'); pool.call(1, key, 'spin')",
    "with children": "pool.wait(pool.call_all(key, 'start')); pool.ring(key)",
    "stopped": "os.kill(pool.pid(0), signal.SIGSTOP); os.kill(pool.pid(1), signal.SIGSTOP)",
    "amid huge replies": "pool.call_all(key, 'much'); pool.pump(10.0)",
}
SCRIPT = """
class Object:
    def ring(self, argument):
        time.sleep(1000)
    def spin(self):
        while True:
            pass
    def start(self):
        os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "1000")
    def much(self):
        return bytes(64 << 20)

pool, key = opened(2, Object)
{work}
print("ready", flush=True)
time.sleep(1000)
"""


CASES: list[Any] = [("fork", work, signal.SIGKILL) for work in WORKERS]
CASES += [(one, "with children", signal.SIGKILL) for one in ("forkserver", "spawn")]
CASES += [("forkserver", "asleep", number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV)]
CASES += [
    pytest.param(*case, marks=pytest.mark.slow)
    for case in (
        *(("forkserver", work, signal.SIGKILL) for work in WORKERS if work != "with children"),
        *(("spawn", work, signal.SIGKILL) for work in ("in a loop", "stopped")),
        *((method, "asleep", signal.SIGTERM) for method in ("fork", "spawn")),
    )
]


@pytest.mark.parametrize(("method", "work", "number"), CASES)
def test_nothing_is_left_when_its_process_ends_by_a_signal(method: str, work: str, number: int, tmp_path: Path) -> None:
    """Two seconds later nothing lives of all that the script and its workers had started."""
    with running_script(tmp_path, SCRIPT.format(work=WORKERS[work]), method) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(_living_in(tmp_path)) > 1
        os.kill(process.pid, number)
        process.wait(WAIT_SECONDS)
        deadline = time.monotonic() + GONE_SECONDS
        while (living := _living_in(tmp_path)) and time.monotonic() < deadline:
            ends_within(min(living), max(deadline - time.monotonic(), 0.0))
    kill(living)
    assert living == {}


def _living_in(folder: Path) -> dict[int, str]:
    """The command lines of the processes whose working folder this is, by pid: a script and all that it started."""
    found = psutil.process_iter(["pid", "cwd", "cmdline"])
    return {one.pid: " ".join(one.info["cmdline"] or []) for one in found if one.info["cwd"] == str(folder)}
