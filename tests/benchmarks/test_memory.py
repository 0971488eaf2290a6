"""What is held, how it grows, and how many system calls a step makes."""

from __future__ import annotations

import mmap
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

import gymnasium
import pytest

from benchmarks import memory, syscalls
from benchmarks.memory import FLAT_BYTES, Growth, Holdings, descendants, growth, watch
from benchmarks.syscalls import StraceMissing, Trace, measure_calls, parse_summary, per_step
from parallel_envs.bench.envs import SpinEnv
from parallel_envs.bench.runners import InProcess, Workload
from parallel_envs.engine import SharedBlock, supervisor_pid


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_SETTLE_SECONDS", 0.0)


def test_what_is_left_open_running_or_mapped_is_seen() -> None:
    before, stop = Holdings.now(), threading.Event()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    assert Holdings.settled(before).counts_gained(before) == {"descriptors": 1}
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert Holdings.settled(before).counts_gained(before) == {"descriptors": 1, "threads": 1}
    block = SharedBlock.create(mmap.PAGESIZE)
    block.close()
    assert Holdings.settled(before).counts_gained(before)["mappings"] == 1
    del block
    stop.set()
    thread.join()
    os.close(descriptor)
    assert Holdings.settled(before).counts_gained(before) == {}
    now = Holdings.now()
    assert now.counts_gained(replace(now, descriptors=now.descriptors + 1)) == {}, "less is no gain"


def test_processes_are_counted_with_those_they_started_and_without_the_keeper() -> None:
    before = set(descendants())
    line = ["sh", "-c", "sh -c 'echo; cat; :'; :"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        started = set(descendants()) - before
        assert child.pid in started
        assert len(started) >= 2
        assert not started & {os.getpid(), supervisor_pid()}


@pytest.fixture
def contestant() -> Iterator[InProcess]:
    workload = Workload(factory=partial(SpinEnv, 0.0), action_space=gymnasium.spaces.Discrete(2), num_envs=2)
    opened = InProcess(workload)
    opened.open()
    yield opened
    opened.close()


def test_ten_points_are_spread_evenly_over_the_steps(contestant: InProcess) -> None:
    points = watch(contestant, 200)
    assert [point.steps for point in points] == [20, 40, 60, 80, 100, 120, 140, 160, 180, 200]
    assert all(point.rss_bytes > 0 and point.num_descriptors > 0 for point in points)


def test_descriptors_that_are_left_open_are_seen(contestant: InProcess) -> None:
    with ExitStack() as left_open:

        def leak(text: str) -> None:
            fd = os.open(os.devnull, os.O_RDONLY)
            left_open.callback(os.close, fd)

        grown = growth(watch(contestant, 200, tell=leak))
    assert grown.num_descriptors == 9
    assert not grown.flat
    assert "NOT flat" in str(grown)


def test_flat_is_less_than_a_mebibyte_and_no_descriptor() -> None:
    assert Growth(FLAT_BYTES, 0).flat
    assert Growth(-FLAT_BYTES, -1).flat
    assert not Growth(FLAT_BYTES + 1, 0).flat
    assert not Growth(0, 1).flat


SUMMARY = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 71.43    0.000050           3        16           read
 28.57    0.000020          10         2         1 write
  0.00    0.000000           0         0           poll
------ ----------- ----------- --------- --------- ----------------
100.00    0.000070           3        18         1 total
"""


def test_the_table_of_strace_is_read_by_column_and_what_starting_up_cost_cancels_out() -> None:
    assert parse_summary(SUMMARY) == {"read": 16, "write": 2, "poll": 0}
    few = Trace(steps=100, calls={"read": 1000, "write": 300})
    many = Trace(steps=300, calls={"read": 1800, "write": 700, "poll": 20})
    assert per_step(few, many) == {"poll": 0.1, "read": 4.0, "write": 2.0}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_gymnasium_makes_six_calls_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "_WARM_UP_STEPS", 50)
    try:
        rows = {row.name: row for row in measure_calls(num_envs=2, steps=200)}
    except StraceMissing as reason:
        pytest.skip(str(reason))
    assert rows["gymnasium"].read_write == pytest.approx(6.0, abs=0.2)
    assert rows["parallel_envs"].error is None
