"""However its process ends, a pool leaves no worker and no supervisor behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

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


CASES = [("forkserver", work) for work in WORKERS]
CASES += [(method, work) for method in ("fork", "spawn") for work in ("in a loop", "with children", "stopped")]


@pytest.mark.parametrize(("method", "work"), CASES)
def test_nothing_is_left_when_its_process_is_killed(method: str, work: str, tmp_path: Path) -> None:
    left = _left_after(signal.SIGKILL, SCRIPT.format(work=WORKERS[work]), tmp_path, method)
    assert left == []


@pytest.mark.parametrize(
    ("method", "number"),
    [("forkserver", number) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV)]
    + [("fork", signal.SIGTERM), ("spawn", signal.SIGTERM)],
)
def test_nothing_is_left_when_its_process_ends_by_any_signal(
    method: str, number: signal.Signals, tmp_path: Path
) -> None:
    left = _left_after(number, SCRIPT.format(work="pool.ring(key)"), tmp_path, method)
    assert left == []


def test_nothing_is_left_when_its_process_is_killed_amid_the_start(method: str, tmp_path: Path) -> None:
    script = "opened(1, dict)[0].close()\nprint('ready', flush=True)\nwhile True:\n    opened(2, dict)[0].close()"
    left = _left_after(signal.SIGKILL, script, tmp_path, method)
    assert left == []


def test_nothing_is_left_though_nobody_reads_what_workers_write(method: str, tmp_path: Path) -> None:
    script = """
class Talker:
    def ring(self, argument):
        while True:
            print("x" * 1000)

pool, key = opened(1, Talker)
pool.ring(key)
while select.select([], [2], [], 0.0)[1]:
    time.sleep(0.01)
print("ready", flush=True)
time.sleep(1000)
"""
    left = _left_after(signal.SIGKILL, "import select\n" + script, tmp_path, method)
    assert left == []


def _left_after(number: int, script: str, folder: Path, method: str) -> list[str]:
    """What still lives two seconds after the script got the signal, of all that it and its workers had started."""
    with running_script(folder, script, method) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert len(_living_in(folder)) > 1
        os.kill(process.pid, number)
        process.wait(WAIT_SECONDS)
        deadline = time.monotonic() + GONE_SECONDS
        while (living := _living_in(folder)) and time.monotonic() < deadline:
            ends_within(min(living), max(deadline - time.monotonic(), 0.0))
    kill(living)
    return list(living.values())


def _living_in(folder: Path) -> dict[int, str]:
    """The command lines of the processes whose working folder this is, by pid: a script and all that it started."""
    found = psutil.process_iter(["pid", "cwd", "cmdline"])
    return {one.pid: " ".join(one.info["cmdline"] or []) for one in found if one.info["cwd"] == str(folder)}
