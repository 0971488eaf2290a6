from __future__ import annotations

import mmap
import os
import subprocess
import threading
from dataclasses import replace

import pytest

from benchmarks import memory
from benchmarks.memory import Holdings, descendants
from parallel_envs.engine import SharedBlock, supervisor_pid


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_SETTLE_SECONDS", 0.0)


def test_a_descriptor_that_is_left_open_is_seen() -> None:
    before = Holdings.now()
    descriptor = os.open(os.devnull, os.O_RDONLY)
    assert Holdings.settled(before).counts_gained(before) == {"descriptors": 1}
    os.close(descriptor)
    assert Holdings.settled(before).counts_gained(before) == {}


def test_a_thread_that_is_left_running_is_seen() -> None:
    before, stop = Holdings.now(), threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert Holdings.settled(before).counts_gained(before) == {"threads": 1}
    stop.set()
    thread.join()


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


def test_shared_memory_that_is_left_mapped_is_seen() -> None:
    before = Holdings.now()
    block = SharedBlock.create(mmap.PAGESIZE)
    block.close()
    assert Holdings.settled(before).counts_gained(before)["mappings"] == 1
    del block
    assert Holdings.settled(before).counts_gained(before) == {}


def test_what_there_is_less_of_is_no_gain() -> None:
    now = Holdings.now()
    assert now.counts_gained(replace(now, descriptors=now.descriptors + 1)) == {}
