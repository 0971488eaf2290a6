"""Waiting for many descriptors at once, with the quickest means the system has."""

from __future__ import annotations

import contextlib
import select

from parallel_envs.engine.descriptors import owned

_LONGEST_SECONDS = 2_000_000.0

READ, WRITE = select.POLLIN, select.POLLOUT


class Poller:
    """A set of descriptors to wait for. Ends and errors count as readable."""

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}
        self._epoll = select.epoll() if hasattr(select, "epoll") else None
        self._poll = None if self._epoll is not None else select.poll()
        if self._epoll is not None:
            owned.add(self._epoll.fileno())

    def watch(self, fd: int, mask: int) -> None:
        """Wait for this descriptor too, or for other things on it than before; for nothing with a mask of 0."""
        if mask == 0:
            self.forget(fd)
            return
        before = self._masks.get(fd)
        self._masks[fd] = mask
        poller = self._epoll or self._poll
        assert poller is not None
        if before is None:
            poller.register(fd, mask)
        elif before != mask:
            poller.modify(fd, mask)

    def forget(self, fd: int) -> None:
        """Wait for it no longer. Must come before the descriptor is closed."""
        if self._masks.pop(fd, None) is not None:
            with contextlib.suppress(OSError):
                (self._epoll or self._poll).unregister(fd)  # type: ignore[union-attr]  # one of them is there

    def wait(self, timeout: float | None) -> list[tuple[int, int]]:
        """The descriptors that are ready, once there are any or `timeout` seconds have passed.

        It may come back with none a little early, after the longest time that the system can count.
        """
        if timeout is not None:
            timeout = min(timeout, _LONGEST_SECONDS)
        if self._epoll is not None:
            return self._epoll.poll(timeout)
        assert self._poll is not None
        return self._poll.poll(None if timeout is None else timeout * 1000)

    def close(self) -> None:
        if self._epoll is not None and not self._epoll.closed:
            owned.discard(self._epoll.fileno())
            self._epoll.close()


def readable(fd: int, timeout: float = 0.0) -> bool:
    """Whether there is something to read, or an end or an error to see, within `timeout` seconds."""
    poll = select.poll()  # select.select cannot take descriptors from 1024 up
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout * 1000))
