"""Frames of bytes over a stream socket: eight bytes of length, then that many bytes.

Descriptors may travel with a frame; they ride on its header. `send_frame` and `receive_frame` block and serve the
side that has nothing else to do. `Outbox` and `Inbox` never block and serve the side that watches many channels.
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence

_HEADER = struct.Struct("<Q")
MOST_FDS = 250
"""How many descriptors may travel with a frame: the system takes a few more."""


class ChannelClosed(ConnectionError):
    """The other side has gone."""


def channel_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def send_frame(channel: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send a frame, waiting for as long as it takes."""
    header = _HEADER.pack(len(data))
    channel.sendmsg([header], _ancillary(fds))
    channel.sendall(data)


def receive_frame(channel: socket.socket) -> tuple[bytearray, list[int]]:
    """Receive a frame and its descriptors, waiting for as long as it takes. Raises `ChannelClosed`."""
    header, fds, _, _ = socket.recv_fds(channel, _HEADER.size, MOST_FDS)
    for fd in fds:
        os.set_inheritable(fd, False)
    while len(header) < _HEADER.size:
        header += _receive_some(channel, _HEADER.size - len(header))
    data = bytearray(_HEADER.unpack(header)[0])
    view = memoryview(data)
    while view.nbytes:
        count = channel.recv_into(view)
        if not count:
            raise ChannelClosed("the other side closed the channel in the middle of a frame")
        view = view[count:]
    return data, list(fds)


def _receive_some(channel: socket.socket, count: int) -> bytes:
    data = channel.recv(count)
    if not data:
        raise ChannelClosed("the other side closed the channel")
    return data


def _ancillary(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


def _duplicated(fds: Sequence[int]) -> list[int]:
    copies: list[int] = []
    try:
        for fd in fds:
            copies.append(os.dup(fd))  # noqa: PERF401  # those that were made are closed if one cannot be
    except OSError:
        for fd in copies:
            os.close(fd)
        raise
    return copies


class Outbox:
    """Frames on their way out. What the kernel does not take at once waits here for the next `flush`.

    Descriptors that have to wait are duplicated, so the sender may close its own at once.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._parts: deque[tuple[memoryview, list[int]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def put(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a frame, or keep what is left of it. Raises `OSError` where there is no room for its descriptors here:
        then none of it is sent.
        """
        header = memoryview(_HEADER.pack(len(data)))
        count = 0 if self._parts else self._send_some(header, fds)
        kept = _duplicated(fds) if fds and not count else []
        self._parts.extend(((header[count:], kept), (memoryview(data), [])))
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now. Raises `ChannelClosed` when nobody is left to read."""
        while self._parts:
            view, fds = self._parts[0]
            if view.nbytes and not self._send(view, fds):
                return
            self._parts.popleft()

    def _send(self, view: memoryview, fds: list[int]) -> bool:
        """Send a part. False: the kernel took less than all of it."""
        count = self._send_some(view, fds)
        while fds and count:  # they have left with the first byte
            os.close(fds.pop())
        if count < view.nbytes:
            self._parts[0] = (view[count:], fds)
            return False
        return True

    def _send_some(self, view: memoryview, fds: Sequence[int]) -> int:
        """Send what the kernel takes now, with the descriptors if that is anything. Return how many bytes it took."""
        try:
            return self._channel.sendmsg([view], _ancillary(fds))
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def close(self) -> None:
        for _, fds in self._parts:
            while fds:
                os.close(fds.pop())
        self._parts.clear()


class Inbox:
    """Frames on their way in, put together from whatever has arrived.

    With `takes_fds=True` the descriptors of a frame are received too. They are in `fds` once `receive` has returned the
    frame, and belong to the caller, who must empty the list before the next call. Otherwise the kernel drops them.
    """

    def __init__(self, channel: socket.socket, *, takes_fds: bool = False) -> None:
        self._channel = channel
        self._takes_fds = takes_fds
        self.fds: list[int] = []
        self._restart()

    def _restart(self) -> None:
        self._in_header = True
        self._data = bytearray(_HEADER.size)
        self._filled = 0

    def receive(self) -> bytearray | None:
        """The next whole frame, or None if more of it has yet to come. Raises `ChannelClosed`."""
        while True:
            if self._filled == len(self._data):
                if not self._in_header:
                    data = self._data
                    self._restart()
                    return data
                self._start_body()
            elif not self._read_some():
                return None

    def _start_body(self) -> None:
        (size,) = _HEADER.unpack(self._data)
        self._in_header, self._data, self._filled = False, bytearray(size), 0

    def _read_some(self) -> bool:
        try:
            view = memoryview(self._data)[self._filled :]
            count = self._receive_with_fds(view) if self._takes_fds else self._channel.recv_into(view)
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not count:
            raise ChannelClosed("the other side closed the channel")
        self._filled += count
        return True

    def _receive_with_fds(self, view: memoryview) -> int:
        room = socket.CMSG_SPACE(MOST_FDS * array.array("i").itemsize)
        count, ancillary, _, _ = self._channel.recvmsg_into([view], room)
        for level, kind, data in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                received = array.array("i", data[: len(data) - len(data) % 4])
                for fd in received:
                    os.set_inheritable(fd, False)
                self.fds.extend(received)
        return count
