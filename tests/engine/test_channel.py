"""Frames over a stream: whole, in order, with their descriptors, however the stream is cut."""

from __future__ import annotations

import os
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
    receive_frame,
    send_frame,
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


# ---- properties ----------------------------------------------------------------------------------


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


@given(sent=st.lists(st.binary(max_size=300).map(lambda part: part * 200), max_size=6), flushes=st.integers(1, 3))
def test_frames_arrive_whole_though_the_kernel_takes_little_at_once(sent: list[bytes], flushes: int) -> None:
    ours, theirs = channel_pair()
    with closing(ours), closing(theirs):
        for end in (ours, theirs):
            end.setblocking(False)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the least there is: some kilobytes
        outbox, inbox = Outbox(ours), Inbox(theirs)
        arrived: list[bytes] = []
        for frame in sent:
            outbox.put(frame)
        while outbox or len(arrived) < len(sent):
            for _ in range(flushes):
                outbox.flush()
            while (received := inbox.receive()) is not None:
                arrived.append(bytes(received))
        assert arrived == sent
        assert not outbox


@given(sent=frames)
def test_the_side_that_blocks_understands_the_side_that_does_not(sent: list[bytes]) -> None:
    ours, theirs = channel_pair()
    with closing(ours), closing(theirs):
        outbox = Outbox(ours)
        for frame in sent:
            outbox.put(frame)
        assert [bytes(receive_frame(theirs)[0]) for _ in sent] == sent
        for frame in sent:
            send_frame(theirs, frame)
        ours.setblocking(False)
        inbox = Inbox(ours)
        assert [bytes(inbox.receive() or b"") for _ in sent] == sent
        assert inbox.receive() is None


# ---- descriptors ---------------------------------------------------------------------------------


def test_descriptors_travel_with_their_own_frame(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    (first_read, first_write), (second_read, second_write) = os.pipe(), os.pipe()
    outbox = Outbox(ours)
    outbox.put(b"none")
    outbox.put(b"two", (first_write, second_write))
    outbox.put(b"none")
    for fd in (first_write, second_write):
        os.close(fd)  # the sender may give up its own at once
    arrived = [receive_frame(theirs) for _ in range(3)]
    assert [(bytes(data), len(fds)) for data, fds in arrived] == [(b"none", 0), (b"two", 2), (b"none", 0)]
    for reader, writer in zip((first_read, second_read), arrived[1][1], strict=True):
        assert not os.get_inheritable(writer)
        os.write(writer, b"through it")
        assert os.read(reader, 100) == b"through it"
        os.close(writer)
        os.close(reader)


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


def test_an_outbox_that_is_closed_gives_up_what_has_not_left(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, _ = ends
    ours.setblocking(False)
    reader, writer = os.pipe()
    outbox = Outbox(ours)
    outbox.put(bytes(8 << 20))
    outbox.put(b"later", (writer,))
    os.close(writer)
    assert outbox
    outbox.close()
    assert not outbox
    assert os.read(reader, 1) == b""
    os.close(reader)


# ---- the other side has gone ---------------------------------------------------------------------


@pytest.mark.parametrize("kept", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 3])
def test_a_side_that_has_gone_is_told(ends: tuple[socket.socket, socket.socket], kept: int) -> None:
    ours, theirs = ends
    theirs.sendall(on_the_wire([b"a frame"])[:kept])  # and no more
    theirs.close()
    if kept == 0:
        with pytest.raises(ChannelClosed):
            Inbox(ours).receive()
        outbox = Outbox(ours)
        with pytest.raises(ChannelClosed):
            outbox.put(b"anyone?")
        outbox.close()
    with pytest.raises(ChannelClosed):
        receive_frame(ours)


def test_what_was_sent_before_the_end_is_received(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    theirs.sendall(on_the_wire([b"first", b"second"]) + b"half a header"[:4])
    theirs.close()
    inbox = Inbox(ours)
    assert [bytes(inbox.receive() or b"") for _ in range(2)] == [b"first", b"second"]
    with pytest.raises(ChannelClosed):
        inbox.receive()
