"""Pass the output of workers on to the stderr of the user's process: whole lines, each with the name of its worker.

The supervisor never waits here, neither for a silent worker nor for a reader of stderr that is stopped, slow or gone.
Memory is bounded: the supervisor reads from workers only while `StderrWriter.has_room`. A worker that writes faster
than stderr is read is blocked in its own write.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import stat
import time
from collections import deque

_TAIL_LINES = 200
_TAIL_BYTES = 256 << 10
_LONGEST_LINE = 64 << 10  # longer lines are passed on in pieces of about this size
_READ_BYTES = 16 << 10  # small, since the worker's name makes an empty line 20 times longer
_MOST_WAITING_BYTES = 1 << 20
_PIECE_BYTES = select.PIPE_BUF  # a pipe takes up to this much as a whole or not at all
_STANDSTILL_SECONDS = 0.25  # a reader that takes nothing for this long has stopped
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class WorkerOutput:
    """Reading end of the pipe that one worker's stdout and stderr lead to."""

    def __init__(self, name: str, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd, self._name = fd, name.encode()
        self.ended = False  # true once the last writer has closed its end
        self._unfinished = b""
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines that the worker wrote: at most 200 lines and about 256 KiB."""
        return tuple(line.decode(errors="replace") for line in self._tail)

    def read(self) -> bytes | None:
        """Read a piece and return its whole lines, with the worker's name. Return None if there is nothing to read."""
        try:
            data = os.read(self.fd, _READ_BYTES)
        except (BlockingIOError, OSError):
            return None
        self.ended = not data
        if self.ended:
            return self._rest()
        lines = (self._unfinished + data).splitlines(keepends=True)  # a progress bar ends its lines with "\r"
        is_whole = lines[-1].endswith(b"\n") or len(lines[-1]) > _LONGEST_LINE
        self._unfinished = b"" if is_whole else lines.pop()
        return self._named([line.rstrip(b"\r\n") for line in lines if line != b"\r"])

    def drain(self) -> bytes:
        """Read the output that a dead worker left in its pipe, and return the lines with the worker's name."""
        import fcntl  # exists only on systems that have worker processes

        texts = []  # as much as the pipe can hold: a process that the worker started may still write without end
        for _ in range(fcntl.fcntl(self.fd, fcntl.F_GETPIPE_SZ) // _READ_BYTES + 1):
            if self.ended or (text := self.read()) is None:
                break
            texts.append(text)
        return b"".join([*texts, self._rest()])

    def _rest(self) -> bytes:
        """Return the last line if it has no line end, else b""."""
        rest, self._unfinished = self._unfinished, b""
        return self._named([rest.rstrip(b"\r")]) if rest else b""

    def _named(self, lines: list[bytes]) -> bytes:
        """Add lines to the tail, and return them with the worker's name."""
        self._tail.extend(lines[-_TAIL_LINES:])
        self._tail_bytes += sum(map(len, lines[-_TAIL_LINES:]))
        while len(self._tail) > _TAIL_LINES or (self._tail_bytes > _TAIL_BYTES and len(self._tail) > 1):
            self._tail_bytes -= len(self._tail.popleft())
        return b"".join(b"[%s] %s\n" % (self._name, line) for line in lines)


class StderrWriter:
    """Write to stderr without waiting for its reader. `fd` is the descriptor to wait on while `is_blocked`."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._dropped_bytes = 0
        self.is_blocked = False  # true while stderr has not accepted all of the text
        self.failure: str | None = None
        """Reason why stderr cannot be written to any more, such as a closed reader. From then on output is dropped."""
        self.fd = 2
        self._socket: socket.socket | None = None
        # O_NONBLOCK belongs to the open file, which the user's process shares and which must stay as it is. So pipes
        # and terminals are opened again. A plain file is not, since writes would begin at its start; they never wait.
        with contextlib.suppress(OSError):  # no /proc, a terminal of another user, or a pipe without a reader
            mode = os.fstat(2).st_mode
            if stat.S_ISSOCK(mode):
                self._socket = socket.socket(fileno=os.dup(2))
            elif stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self.fd = os.open("/proc/self/fd/2", flags)

    @property
    def has_room(self) -> bool:
        """Return whether output may be read from workers."""
        return len(self._waiting) < _MOST_WAITING_BYTES

    def put(self, text: bytes) -> None:
        """Queue a text. Drop the text if stderr has failed, or if too much is queued."""
        if self.failure is not None:
            return
        if len(self._waiting) > 2 * _MOST_WAITING_BYTES:  # many have died: their last output is read without room
            self._dropped_bytes += len(text)
            return
        if self._dropped_bytes:
            self._waiting += b"[%d bytes of output dropped: nobody was reading stderr]\n" % self._dropped_bytes
            self._dropped_bytes = 0
        self._waiting += text

    def flush(self) -> None:
        """Write as much as stderr takes now, and set `is_blocked` and `failure`."""
        self.is_blocked = False
        while self._waiting and not self.is_blocked and self.failure is None:
            end = self._waiting.rfind(b"\n", 0, _PIECE_BYTES) + 1 or _PIECE_BYTES
            try:
                if self._socket is not None:
                    written = self._socket.send(self._waiting[:end], socket.MSG_DONTWAIT)
                elif self.fd == 2 and not self._poll(0.0):
                    raise BlockingIOError
                else:
                    written = os.write(self.fd, self._waiting[:end])
                del self._waiting[:written]
            except BlockingIOError:
                self.is_blocked = True
            except OSError as error:
                self._waiting.clear()
                if error.errno not in _NO_ROOM:  # a full disk may have room again later
                    self.failure = os.strerror(error.errno or errno.EIO)

    def _poll(self, seconds: float) -> bool:
        """Return whether stderr takes text within `seconds`. An error counts as ready: the write raises it."""
        poll = select.poll()
        poll.register(self.fd, select.POLLOUT)
        return bool(poll.poll(seconds * 1000))

    def finish(self, seconds: float) -> None:
        """Write the queued text. Stop after `seconds`, or when stderr takes nothing for `_STANDSTILL_SECONDS`."""
        until = time.monotonic() + seconds
        self.flush()
        while self.is_blocked and time.monotonic() < until and self._poll(_STANDSTILL_SECONDS):
            self.flush()
