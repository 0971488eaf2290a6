"""Where a worker finds what it is asked, and leaves what it answers: memory that it shares with the manager.

A request and its answers then cost a doorbell each way, and nothing is copied through a socket. What is too long for
the memory travels as a message instead.
"""

from __future__ import annotations

import struct

from parallel_envs.engine import SharedBlock

_ORDERS_BYTES = 1 << 18
_ANSWERS_BYTES = 1 << 22
"""More than a turn of text needs by far, and enough for pictures. Memory that nobody writes to is never taken."""

_SIZE = struct.Struct("=Q")


class Mailbox:
    """Room for one request and for its answers.

    It belongs to the asker until the bell has rung, then to the worker until it has answered: whoever asks again before
    that must not use it.
    """

    def __init__(self, block: SharedBlock) -> None:
        whole = memoryview(block.buffer)
        self._orders, self._answers = whole[:_ORDERS_BYTES], whole[_ORDERS_BYTES:]

    @staticmethod
    def room() -> SharedBlock:
        """Memory for one."""
        return SharedBlock.create(_ORDERS_BYTES + _ANSWERS_BYTES)

    def ask(self, data: bytes) -> bool:
        """Put a request there. False: it is too long."""
        return _put(self._orders, data)

    def asked(self) -> memoryview:
        """The request."""
        return _held(self._orders)

    def answer(self, data: bytes) -> bool:
        """Put answers there. False: they are too long."""
        return _put(self._answers, data)

    def answered(self) -> memoryview:
        """The answers."""
        return _held(self._answers)


def _put(room: memoryview, data: bytes) -> bool:
    end = _SIZE.size + len(data)
    if end > len(room):
        return False
    _SIZE.pack_into(room, 0, len(data))
    room[_SIZE.size : end] = data
    return True


def _held(room: memoryview) -> memoryview:
    (size,) = _SIZE.unpack_from(room)
    return room[_SIZE.size : _SIZE.size + size]
