"""Waiting for many descriptors."""

from __future__ import annotations

import fcntl
import os
import resource
import time
from collections.abc import Iterator

import pytest

from parallel_envs.engine.channel import READ, WRITE, Poller, owned, readable
from tests.engine.asking import SOON_SECONDS


@pytest.fixture
def poller() -> Iterator[Poller]:
    poller = Poller()
    yield poller
    poller.close()


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:  # the test has closed it
            continue


def test_what_is_ready_is_told_until_it_is_forgotten(poller: Poller, pipe: tuple[int, int]) -> None:
    reader, writer = pipe
    poller.watch(reader, READ)
    assert poller.wait(0.0) == []
    assert not readable(reader)
    assert not readable(reader, 0.01)
    os.write(writer, b"x")
    assert readable(reader)
    assert [fd for fd, _ in poller.wait(None)] == [reader]
    poller.watch(writer, WRITE)
    assert {fd for fd, _ in poller.wait(None)} == {reader, writer}
    poller.forget(writer)
    os.read(reader, 1)
    assert poller.wait(0.0) == []
    os.close(writer)
    assert [fd for fd, _ in poller.wait(1.0)] == [reader]  # an end counts as readable
    for fd in (reader, reader, 12345):
        poller.forget(fd)
    assert poller.wait(0.0) == []
    before = set(owned)
    poller.close()
    poller.close()
    assert owned <= before


def test_only_what_is_asked_for_counts(poller: Poller, pipe: tuple[int, int]) -> None:
    _, writer = pipe
    poller.watch(writer, READ)
    assert poller.wait(0.0) == []
    poller.watch(writer, WRITE)
    assert [fd for fd, _ in poller.wait(0.0)] == [writer]
    poller.watch(writer, 0)
    assert poller.wait(0.0) == []
    poller.watch(writer, WRITE)
    assert [fd for fd, _ in poller.wait(0.0)] == [writer]


def test_a_number_may_be_used_again(poller: Poller) -> None:
    for _ in range(3):
        reader, writer = os.pipe()
        os.write(writer, b"x")
        poller.watch(reader, READ)
        assert [fd for fd, _ in poller.wait(1.0)] == [reader]
        poller.forget(reader)
        os.close(reader)
        os.close(writer)


def test_a_wait_ends_when_its_time_is_up(poller: Poller, pipe: tuple[int, int]) -> None:
    poller.watch(pipe[0], READ)
    began = time.monotonic()
    assert poller.wait(0.03) == []
    assert 0.025 <= time.monotonic() - began < SOON_SECONDS


# ---- one descriptor ------------------------------------------------------------------------------


def test_readable_takes_numbers_that_select_does_not(pipe: tuple[int, int]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    try:
        high = fcntl.fcntl(pipe[0], fcntl.F_DUPFD, 2000)
        os.write(pipe[1], b"x")
        assert readable(high)
        os.close(high)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
