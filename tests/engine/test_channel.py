"""Frames over a stream: whole, in order, with their descriptors, however the stream is cut."""

from __future__ import annotations

import fcntl
import os
import resource
import select
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from parallel_envs.engine.channel import (
    ChannelClosed,
    Inbox,
    Outbox,
    channel_pair,
    readable,
    receive_frame,
)

frames = st.lists(st.binary(max_size=300), max_size=8)
HEADER_BYTES = 8


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = channel_pair()
    yield ours, theirs
    for end in (ours, theirs):
        end.close()


def on_the_wire(sent: list[bytes]) -> bytes:
    return b"".join(len(frame).to_bytes(HEADER_BYTES, "little") + frame for frame in sent)


@given(sent=frames, cuts=st.lists(st.integers(1, 40), min_size=1))
@example(sent=[b"", b"", b"x"], cuts=[1])
@example(sent=[b"x" * 300], cuts=[7, 1, 1])
def test_frames_arrive_whole_however_they_are_cut(sent: list[bytes], cuts: list[int]) -> None:
    ours, theirs = channel_pair()
    with closing(ours), closing(theirs):
        ours.setblocking(False)
        inbox, left = Inbox(ours), on_the_wire(sent)
        arrived: list[bytes] = []
        for cut in _repeated(cuts):
            theirs.sendall(left[:cut])
            left = left[cut:]
            while (frame := inbox.receive()) is not None:
                arrived.append(bytes(frame))
            if not left:
                break
        assert arrived == sent


def _repeated(cuts: list[int]) -> Iterator[int]:
    while True:
        yield from cuts


def test_descriptors_travel_with_a_frame_that_leaves_in_pieces(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    ours.setblocking(False)
    reader, writer = os.pipe()
    outbox = Outbox(ours)
    outbox.put(bytes(1 << 20))
    outbox.put(bytes(1 << 20), (writer,))
    os.close(writer)
    received: list[tuple[bytearray, list[int]]] = []
    receiving = threading.Thread(target=lambda: received.extend(receive_frame(theirs) for _ in range(2)))
    receiving.start()
    while outbox:
        select.select([], [ours], [])
        outbox.flush()
    receiving.join()
    assert [(len(data), len(fds)) for data, fds in received] == [(1 << 20, 0), (1 << 20, 1)]
    os.close(received[1][1][0])
    assert os.read(reader, 1) == b""  # that was the last writing end
    os.close(reader)


@pytest.mark.parametrize("kept", [0, 1, HEADER_BYTES, HEADER_BYTES + 3])
def test_a_frame_that_is_cut_by_the_senders_end_is_no_frame(
    ends: tuple[socket.socket, socket.socket], kept: int
) -> None:
    ours, theirs = ends
    theirs.sendall(on_the_wire([b"first", b"second"]) + on_the_wire([b"a frame"])[:kept])
    theirs.close()
    inbox = Inbox(ours)
    assert bytes(receive_frame(ours)[0]) == b"first"
    assert bytes(inbox.receive() or b"") == b"second"
    with pytest.raises(ChannelClosed):
        inbox.receive()
    with pytest.raises(ChannelClosed):
        receive_frame(ours)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for fd in ends:
        try:
            os.close(fd)
        except OSError:  # the test has closed it
            continue


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
