"""Workers that write without end, and a stderr that nobody reads: nothing hangs, grows without bound, or is lost."""

from __future__ import annotations

import os
import select
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.engine.asking import WAIT_SECONDS
from tests.engine.scripts import running_script
from tests.faults.matrix import left_after, running

GONE_SECONDS = 5.0
MOST_GROWTH = 16 << 20
"""What the supervisor may grow by: it holds a MiB or two of output, and what the interpreter needs to handle it."""

OPENING = """
import logging
import numpy as np
from parallel_envs import ParallelEnvManager
from parallel_envs.testing import ScriptedEnv

class FloodingEnv(ScriptedEnv):
    '''An action above 0 begins a flood that does not end, or ends the worker.'''

    def __init__(self):
        super().__init__(episode_lengths=[10**9])

    def step(self, action):
        while action == 1:  # nothing but line ends: the names of their worker make them 20 times as long
            os.write(1, b"\\n" * 65536)
        while action == 2:  # an ordinary print
            print()
        while action == 3:  # lines that never end, and both streams
            os.write(1, b"x" * 65536)
            os.write(2, b"y" * 100)
        if action == 9:
            print("the last words")
            os.kill(os.getpid(), signal.SIGKILL)
        return super().step(0)

    def write(self, first, last, size):
        for number in range(first, last):
            os.write(1 + number % 2, b"%d %s\\n" % (number, b"z" * size))

def ticks():
    '''The processor time that the supervisor has used.'''
    fields = open(f"/proc/{supervisor_pid()}/stat").read().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])

def held():
    return int(open(f"/proc/{supervisor_pid()}/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
"""

FLOOD = (
    OPENING
    + """
envs = ParallelEnvManager([FloodingEnv] * 3, context=sys.argv[1], on_failure="raise")
envs.reset(seed=0)
before = held()
envs.send([int(sys.argv[2])] * 2, env_ids=[0, 1])
began, most, count = time.monotonic(), 0, 0
while time.monotonic() - began < 0.7:
    other = ParallelEnvManager([ScriptedEnv], context=sys.argv[1])  # made, restarted and closed amid the flood
    other.reset(seed=0)
    other.restart(0)
    other.close()
    most, count = max(most, held() - before), count + 1
print(most, count, flush=True)
began = time.monotonic()
envs.send([9], env_ids=[2])
try:
    envs.recv_env(2)
except Exception as error:
    print(type(error).__name__, error.env_ids, "the last words" in str(error), time.monotonic() - began, flush=True)
began = time.monotonic()
envs.close(timeout=1.0)
print(time.monotonic() - began, flush=True)
envs = ParallelEnvManager([FloodingEnv] * 2, context=sys.argv[1], on_failure="raise")
envs.reset(seed=0)
envs.send([int(sys.argv[2])] * 2)
print("killed", flush=True)
time.sleep(1000)
"""
)


FLOODS: list[Any] = [("forkserver", "unread", 1)]
FLOODS += [pytest.param("forkserver", "read", kind, marks=pytest.mark.slow) for kind in (1, 2, 3)]
FLOODS += [pytest.param("fork", "read", 3, marks=pytest.mark.slow)]


@pytest.mark.parametrize(("method", "read", "kind"), FLOODS)
def test_a_flood_is_bounded_and_hides_no_death(tmp_path: Path, method: str, read: str, kind: int) -> None:
    reader, writer = os.pipe()
    stderr = writer if read == "unread" else subprocess.DEVNULL
    try:
        with running(tmp_path, FLOOD, method, str(kind), stderr=stderr) as (process, mark):
            assert process.stdout is not None
            growth, count = map(int, process.stdout.readline().split())
            assert growth < MOST_GROWTH
            assert count >= 1
            death, closing, _ = (process.stdout.readline() for _ in range(3))
            assert death.startswith("WorkerDied (2,) True ")
            assert float(death.split()[-1]) < 10.0
            assert float(closing) < 5.0
            process.kill()
            process.wait()
            assert left_after(GONE_SECONDS, mark) == set()
    finally:
        os.close(writer)
        os.close(reader)


FULL = (
    OPENING
    + """
envs = ParallelEnvManager([FloodingEnv] * 2, context=sys.argv[1])
envs.reset(seed=0)
envs.call_async("write", 0, 30_000, 99, env_ids=0)
try:
    envs.call_wait(timeout=0.7)
    print("written", flush=True)
except TimeoutError:
    print("held up", flush=True)
before = ticks()
other = ParallelEnvManager([ScriptedEnv], context=sys.argv[1])
other.reset(seed=0)
other.step([0])
other.close()
time.sleep(0.5)
print(ticks() - before, flush=True)
sys.stdin.readline()
envs.call_wait()
envs.close()
print("closed", flush=True)
"""
)


def test_a_writer_waits_while_stderr_is_full_and_no_line_is_lost(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with running_script(tmp_path, FULL, "forkserver", stderr=writer, stdin=subprocess.PIPE) as process:
        os.close(writer)
        assert process.stdout is not None
        assert process.stdin is not None
        assert process.stdout.readline() == "held up\n"
        assert int(process.stdout.readline()) < 25  # of 50 ticks: it does not spin
        process.stdin.write("\n")
        process.stdin.flush()
        with os.fdopen(reader, "rb") as errors:
            lines = errors.read().splitlines()
        assert process.stdout.read() == "closed\n"
    assert lines == [b"[env worker 0] %d %s" % (number, b"z" * 99) for number in range(30_000)]


LEFT = (
    OPENING
    + """
logging.basicConfig(filename="log", level=logging.WARNING, format="%(name)s %(message)s")
envs = ParallelEnvManager([FloodingEnv] * 2, context=sys.argv[1])
envs.reset(seed=0)
print("ready", flush=True)
{before}
sys.stdin.readline()
{after}
for first in range(10):
    envs.call("write", 3000 * first, 3000 * (first + 1), 99)
before = ticks()
time.sleep(0.5)
print(ticks() - before, flush=True)
try:
    envs.step([9, 0])
except Exception as error:
    print("the last words" in str(error), flush=True)
envs.close()
"""
)
MOMENTS = {
    "before anything was written": ("", ""),
    "while it is full": ("envs.call_async('write', 0, 30_000, 99)", "envs.call_wait(timeout=20)"),
}


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("method", ["fork", pytest.param("forkserver", marks=pytest.mark.slow)])
def test_workers_print_on_when_the_reader_of_stderr_has_left(tmp_path: Path, method: str, moment: str) -> None:
    before, after = MOMENTS[moment]
    script = LEFT.replace("{before}", before).replace("{after}", after)
    reader, writer = os.pipe()
    with running_script(tmp_path, script, method, stderr=writer, stdin=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        if before:
            poll, until = select.poll(), time.monotonic() + WAIT_SECONDS
            poll.register(writer, select.POLLOUT)
            while poll.poll(0):  # until the pipe takes no more
                assert time.monotonic() < until, "nothing fills the pipe"
                os.sched_yield()
        os.close(writer)
        os.close(reader)
        told, _ = process.communicate("\n", timeout=WAIT_SECONDS)
    assert process.returncode == 0
    idle_ticks, last_words = told.splitlines()
    assert int(idle_ticks) < 25
    assert last_words == "True"
    news = [line for line in (tmp_path / "log").read_text().splitlines() if "reads stderr" in line]
    assert len(news) == 1
    assert news[0].startswith("parallel_envs.")
