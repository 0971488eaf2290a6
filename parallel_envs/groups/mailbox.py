"""Where a worker finds what it is asked, and leaves what it answers: memory that it shares with the manager.

A request and its answers then cost a doorbell each way, and nothing is copied through a socket. What is too long for
the memory travels as a message instead.

    orders    number, bytes │ request
    answers   number, bytes, checksum │ a part │ number, bytes, checksum │ the next part │ 0

`number` is that of the request. A part is there as soon as it has been written, and may be read while the worker is at
the next one: no system call lies between, so neither the order of its bytes nor that of their coming is certain, and
the checksum tells whether all of them have come. Once the worker has said that it is done, everything is there.
"""

from __future__ import annotations

import struct
import zlib

from parallel_envs.engine import SharedBlock

_ORDERS_BYTES = 1 << 18
_ANSWERS_BYTES = 1 << 22
"""More than a turn of text needs by far, and enough for pictures. Memory that nobody writes to is never taken."""

_ORDER = struct.Struct("=QQ")
_PART = struct.Struct("=QQQ")
_CHECKED_BYTES = 1 << 16
"""What is longer has no checksum, which would take as long as what is gained. It is read when all is there, and so is
what comes after it."""


class Mailbox:
    """Room for one request and for its answers. Each of the two processes has an object of its own over the memory.

    It belongs to the asker until the bell has rung, then to the worker until it has answered: whoever asks again before
    that must not use it. Parts of the answers may be read meanwhile.
    """

    def __init__(self, block: SharedBlock) -> None:
        whole = memoryview(block.buffer)
        self._orders, self._answers = whole[:_ORDERS_BYTES], whole[_ORDERS_BYTES:]
        self._number = self._at = 0  # of the request; where the next part begins

    @staticmethod
    def room() -> SharedBlock:
        """Memory for one."""
        return SharedBlock.create(_ORDERS_BYTES + _ANSWERS_BYTES)

    # ---- the asker's side -------------------------------------------------------------------------------------------

    def ask(self, number: int, data: bytes) -> bool:
        """Put a request there. False: it is too long. Numbers, from 1 up, are never used again."""
        end = _ORDER.size + len(data)
        if end > len(self._orders):
            return False
        _ORDER.pack_into(self._orders, 0, number, len(data))
        self._orders[_ORDER.size : end] = data
        self._number, self._at = number, 0
        return True

    def early(self) -> memoryview | None:
        """The next part of the answers, if it is there, while the worker may still be at work. `take` passes it."""
        part = self._part()
        if part is None:
            return None
        data, checksum = part
        whole = len(data) <= _CHECKED_BYTES and checksum == _checksum(self._number, data)
        return data if whole else None

    def next(self) -> memoryview | None:
        """The next part, after the worker has said that it is done; None if there is no other."""
        part = self._part()
        return None if part is None else part[0]

    def take(self, data: memoryview) -> None:
        """This part has been read."""
        self._at += _PART.size + len(data)

    def _part(self) -> tuple[memoryview, int] | None:
        begin = self._at + _PART.size
        if begin > len(self._answers):
            return None
        number, size, checksum = _PART.unpack_from(self._answers, self._at)
        if number != self._number or begin + size > len(self._answers):
            return None
        return self._answers[begin : begin + size], checksum

    # ---- the worker's side ------------------------------------------------------------------------------------------

    def asked(self) -> memoryview:
        """The request."""
        self._number, size = _ORDER.unpack_from(self._orders)
        self._at = 0
        return self._orders[_ORDER.size : _ORDER.size + size]

    def answer(self, data: bytes) -> bool:
        """Put a part of the answers there, after those before it. False: there is no room for it."""
        begin = self._at + _PART.size
        end = begin + len(data)
        if end > len(self._answers):
            return False
        if end + _PART.size <= len(self._answers):
            _PART.pack_into(self._answers, end, 0, 0, 0)  # what is left of earlier answers is no part of these
        self._answers[begin:end] = data
        _PART.pack_into(self._answers, self._at, self._number, len(data), _checksum(self._number, data))
        self._at = end
        return True


def _checksum(number: int, data: bytes | memoryview) -> int:
    """Of a part, its length, and the number of its request."""
    size = len(data)
    return 0 if size > _CHECKED_BYTES else zlib.crc32(data, zlib.crc32(_ORDER.pack(number, size)))
