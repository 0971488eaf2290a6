"""What workers write, on its way to the stderr of the user's process: whole lines, with their writer's name.

Nobody waits here: neither for a worker that writes no more, nor for a reader of stderr who is stopped, slow or gone.
"""

from __future__ import annotations

import os
import select
from collections import deque

_TAIL_LINES = 200
_LONGEST_LINE = 64 << 10  # output without line ends is passed on in pieces of about this size
_MOST_BYTES = 64 << 10
_PIECE_BYTES = select.PIPE_BUF  # what a pipe that is writable takes without making the writer wait


class Output:
    """The reading end of what one worker writes. `tail` holds its last lines."""

    def __init__(self, name: str, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd, self._name = fd, name.encode()
        self.tail: deque[str] = deque(maxlen=_TAIL_LINES)
        self.ended = False
        self._unfinished = b""

    def read(self) -> bytes | None:
        """Some of the lines that have come, named. None: nothing has come. `ended` tells that nothing will."""
        try:
            data = os.read(self.fd, _MOST_BYTES)
        except (BlockingIOError, OSError):
            return None
        self.ended = not data
        return self.rest() if self.ended else self._named(self._whole_lines(data))

    def rest(self) -> bytes:
        """The line that was never ended."""
        rest, self._unfinished = self._unfinished, b""
        return self._named([rest.rstrip(b"\r")]) if rest else b""

    def _whole_lines(self, data: bytes) -> list[bytes]:
        lines = (self._unfinished + data).splitlines(keepends=True)  # a progress bar ends its lines with "\r"
        ends = lines[-1].endswith(b"\n") or len(lines[-1]) > _LONGEST_LINE
        self._unfinished = b"" if ends else lines.pop()
        return [line.rstrip(b"\r\n") for line in lines if line != b"\r"]

    def _named(self, lines: list[bytes]) -> bytes:
        self.tail.extend(line.decode(errors="replace") for line in lines)
        return b"".join(b"[%s] %s\n" % (self._name, line) for line in lines)


class Printer:
    """Writes to stderr without ever waiting for its reader, who may be stopped, slow or gone."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self.waiting_bytes = 0

    def put(self, text: bytes) -> None:
        self._waiting.append(text)
        self.waiting_bytes += len(text)

    def flush(self) -> bool:
        """Write what can be written now. True: something is left."""
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        while self._waiting and any(event & select.POLLOUT for _, event in poll.poll(0)):
            piece = self._waiting[0][:_PIECE_BYTES]
            try:
                count = os.write(2, piece)
            except OSError:
                self._waiting.clear()  # nobody will ever read it
                self.waiting_bytes = 0
                break
            self.waiting_bytes -= count
            rest = self._waiting.popleft()[count:]
            if rest:
                self._waiting.appendleft(rest)
        return bool(self._waiting)
