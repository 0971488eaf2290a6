"""Bytes between processes: frames over stream sockets, polling of many descriptors, and the set of open descriptors.

A frame is eight bytes of length, then that many bytes. Descriptors may travel with a frame, sent with its header.
`send_frame` and `receive_frame` block; a worker uses them. `Outbox` and `Inbox` wait for nothing on a channel that does
not block; a process that watches many channels uses them.
"""

from __future__ import annotations

import array
import contextlib
import errno
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Collection, Iterator, Sequence

from parallel_envs.errors import WorkerStartError

# ---- frames ---------------------------------------------------------------------------------------------------------

_HEADER = struct.Struct("<Q")
MOST_FDS = 250  # the most descriptors that may travel with one frame; the kernel's own limit is slightly higher


class ChannelClosed(ConnectionError):
    """The other end of the channel is closed."""


def channel_pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def send_frame(channel: socket.socket, data: bytes, fds: Sequence[int] = ()) -> None:
    """Send a frame. Block until the kernel has taken all of it."""
    channel.sendmsg([_HEADER.pack(len(data))], _ancillary(fds))
    channel.sendall(data)


def receive_frame(channel: socket.socket) -> tuple[bytearray, list[int]]:
    """Block until a frame has arrived. Return the frame and its descriptors. Raise `ChannelClosed`."""
    inbox = Inbox(channel, takes_fds=True)
    data = inbox.receive()
    assert data is not None, "the channel does not block"
    return data, inbox.fds


def _ancillary(fds: Sequence[int]) -> list[tuple[int, int, array.array[int]]]:
    return [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []


class Outbox:
    """Send frames without blocking. Bytes that the kernel does not take at once wait here for the next `flush`.

    Descriptors that have to wait are duplicated, so the sender may close its own copies at once.
    """

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._parts: deque[tuple[memoryview, list[int]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._parts)

    def put(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a frame, or keep the part that has to wait. `OSError`: no room for the descriptors, nothing was sent."""
        header = memoryview(_HEADER.pack(len(data)))
        count = 0 if self._parts else self._send_some(header, fds)
        waiting_fds: list[int] = []
        try:
            for fd in fds if not count else ():
                waiting_fds.append(os.dup(fd))  # noqa: PERF401  # the duplicates so far are closed if one fails
        except OSError:
            for fd in waiting_fds:
                os.close(fd)
            raise
        self._parts.extend(((header[count:], waiting_fds), (memoryview(data), [])))
        self.flush()

    def flush(self) -> None:
        """Send the bytes that the kernel takes now. Raise `ChannelClosed` if the other end is closed."""
        while self._parts:
            view, fds = self._parts[0]
            count = self._send_some(view, fds) if view.nbytes else 0
            while fds and count:  # the descriptors left with the first byte
                os.close(fds.pop())
            if count < view.nbytes:
                self._parts[0] = (view[count:], fds)
                return
            self._parts.popleft()

    def _send_some(self, view: memoryview, fds: Sequence[int]) -> int:
        """Send the bytes that the kernel takes now, and `fds` with the first byte. Return the number of bytes."""
        try:
            return self._channel.sendmsg([view], _ancillary(fds))
        except BlockingIOError:
            return 0
        except OSError as error:
            raise ChannelClosed(str(error)) from error

    def close(self) -> None:
        """Drop the waiting bytes and close the waiting descriptors."""
        for _, fds in self._parts:
            while fds:
                os.close(fds.pop())
        self._parts.clear()


class Inbox:
    """Receive frames without blocking.

    With `takes_fds=True` the descriptors of a frame are received too. They are in `fds` once `receive` has returned the
    frame, and belong to the caller, who must empty the list before the next call. Otherwise the kernel drops them.
    """

    def __init__(self, channel: socket.socket, *, takes_fds: bool = False) -> None:
        self._channel = channel
        self._takes_fds = takes_fds
        self.fds: list[int] = []
        self._in_header = True
        self._data = bytearray(_HEADER.size)
        self._filled = 0

    def receive(self) -> bytearray | None:
        """Return the next whole frame, or None if a part of it has yet to arrive. Raise `ChannelClosed`."""
        while True:
            if self._filled < len(self._data):
                view = memoryview(self._data)[self._filled :]
                try:
                    if self._takes_fds and self._in_header:
                        data, fds, _, _ = socket.recv_fds(self._channel, view.nbytes, MOST_FDS)
                        count, view[: len(data)] = len(data), data
                        for fd in fds:
                            os.set_inheritable(fd, False)
                        self.fds += fds
                    else:
                        count = self._channel.recv_into(view)
                except BlockingIOError:
                    return None
                except OSError as error:
                    raise ChannelClosed(str(error)) from error
                if not count:
                    raise ChannelClosed("the other side closed the channel")
                self._filled += count
            elif self._in_header:
                (size,) = _HEADER.unpack(self._data)
                self._in_header, self._data, self._filled = False, bytearray(size), 0
            else:
                frame = self._data
                self._in_header, self._data, self._filled = True, bytearray(_HEADER.size), 0
                return frame


# ---- descriptors ----------------------------------------------------------------------------------------------------

owned: set[int] = set()
"""Open descriptors of all pools and of the supervisor client in this process.

A child forked from this process inherits them all and must close them at once. A pipe end of another worker that stays
open in the child would keep that worker from seeing that its parent has ended.
"""

TOO_MANY_FILES = os.strerror(errno.EMFILE)
"""The system's text for "no room for another open file"; every error about it contains this text."""


def close_in_child(kept: Collection[int]) -> None:
    """In a forked child: close every owned descriptor except `kept`."""
    for fd in owned.difference(kept):
        with contextlib.suppress(OSError):
            os.close(fd)
    owned.clear()


@contextlib.contextmanager
def advice_on_too_many_files() -> Iterator[None]:
    """Raise `WorkerStartError` with advice if this process or the supervisor has no room for another open file."""
    try:
        yield
    except (OSError, WorkerStartError) as error:
        if TOO_MANY_FILES not in str(error):  # errors of the supervisor arrive as text
            raise
        import resource  # exists only on systems that have worker processes

        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        raise WorkerStartError(
            f"{str(error).removesuffix('.')}. Each worker process takes several, and `ulimit -n` allows {limit} in "
            "each process: give a smaller num_workers, or raise the limit (`ulimit -n 4096`) before you start your "
            "program."
        ) from error


# ---- polling --------------------------------------------------------------------------------------------------------

READ, WRITE = select.POLLIN, select.POLLOUT

_LONGEST_SECONDS = 2_000_000.0


class Poller:
    """A set of descriptors to wait for. Ends and errors count as readable."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._epoll = select.epoll()
        owned.add(self._epoll.fileno())

    def watch(self, fd: int, mask: int) -> None:
        """Watch a descriptor for the events of `mask`, in place of the events before. A mask of 0 stops watching."""
        if mask == 0:
            self.forget(fd)
            return
        before = self._masks.get(fd)
        self._masks[fd] = mask
        if before is None:
            self._epoll.register(fd, mask)
        elif before != mask:
            self._epoll.modify(fd, mask)

    def forget(self, fd: int) -> None:
        """Stop watching a descriptor. Call this before the descriptor is closed."""
        if self._masks.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                self._epoll.unregister(fd)

    def wait(self, timeout: float | None) -> list[tuple[int, int]]:
        """Wait until descriptors are ready or `timeout` seconds have passed. Return these, with their events."""
        return self._epoll.poll(None if timeout is None else min(timeout, _LONGEST_SECONDS))  # it counts no further

    def close(self) -> None:
        if not self._epoll.closed:
            owned.discard(self._epoll.fileno())
            self._epoll.close()


def readable(fd: int, timeout: float = 0.0) -> bool:
    """Return whether `fd` has data, an end or an error to read within `timeout` seconds."""
    poll = select.poll()  # select.select cannot take descriptors from 1024 up
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))
