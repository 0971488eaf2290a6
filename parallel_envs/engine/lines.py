"""The processes of a pool with everything that leads to them, and how all of it is ended."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque

from parallel_envs.engine.channel import ChannelClosed, Inbox, Outbox
from parallel_envs.engine.completions import undisturbed
from parallel_envs.engine.descriptors import owned
from parallel_envs.engine.host import METERS
from parallel_envs.engine.memory import SharedBlock
from parallel_envs.engine.messages import BELL, MESSAGE, Death
from parallel_envs.engine.pickling import dump_request
from parallel_envs.engine.poller import READ, WRITE, Poller
from parallel_envs.engine.worker_process import WorkerProcess, release

_LEAST_KILL_SECONDS = 1.0  # what the system needs to end a process, however little time the caller gave


class Line:
    """One worker's process, with what is on its way to it and from it."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.outbox = Outbox(process.channel)
        self.inbox = Inbox(process.channel)
        self.bells: deque[bytes] = deque()
        """Those that had no room in the pipe."""
        self.promised: deque[tuple[int, int]] = deque()
        """Status and number of each payload that is on its way."""
        self.last_kept = 0
        """The number of the payload that came last."""
        self.death: Death | None = None
        self.killed = False
        self.num_bytes = 0


class CommonLines:
    """The pipes that all workers of a pool write to: completions, and stacks when they are asked for one."""

    def __init__(self) -> None:
        self.completion_read, self.completion_write = os.pipe()
        try:
            self.stacks_read, self.stacks_write = os.pipe()
        except OSError:
            os.close(self.completion_read)
            os.close(self.completion_write)
            raise
        os.set_blocking(self.completion_read, False)
        os.set_blocking(self.stacks_read, False)
        os.set_blocking(self.stacks_write, False)  # a worker that writes its stack must never wait for a reader
        owned.update(self._fds())

    def _fds(self) -> tuple[int, ...]:
        return self.completion_read, self.completion_write, self.stacks_read, self.stacks_write

    def close(self) -> None:
        owned.difference_update(self._fds())
        for fd in self._fds():
            os.close(fd)


class Lines:
    """The processes and descriptors of a pool, and how to end them. It outlives the pool by as long as that takes."""

    def __init__(self, num_workers: int) -> None:
        self.owner = os.getpid()
        self.stopped = False
        self.lines: list[Line] = []
        self.block = SharedBlock.create(num_workers * METERS * 8)
        with contextlib.ExitStack() as undo:
            undo.callback(self.block.close)
            self.common = CommonLines()
            undo.callback(self.common.close)
            self.poller = Poller()
            undo.pop_all()

    def stop(self, timeout: float) -> None:
        """The ladder: ask, wait, terminate, wait, kill, wait."""
        if self.stopped:
            return
        if self.owner != os.getpid():  # a process forked from the owner's has nothing to end
            for line in self.lines:
                line.process.channel.detach()  # else Python warns that nobody closed it
            return
        deadline = time.monotonic() + timeout
        try:
            self.stopped = True
            for line in self._living():
                _ask_to_stop(line)
            self._await_ends(deadline - 0.4 * timeout)
            self._signal(signal.SIGTERM, deadline - 0.2 * timeout)
        finally:  # a Ctrl-C leaves out the rungs that are left, but for the last
            with undisturbed():
                self._kill(max(deadline, time.monotonic() + _LEAST_KILL_SECONDS))

    def _kill(self, until: float) -> None:
        """End what is left, and let go of everything."""
        self._signal(signal.SIGKILL, until)
        for line in self.lines:
            line.outbox.close()
        release([line.process for line in self.lines if line.death is None], until)
        self.common.close()
        self.block.close()
        self.poller.close()

    def _signal(self, number: int, until: float) -> None:
        for line in self._living():
            line.process.signal(number)
        self._await_ends(until)

    def _living(self) -> list[Line]:
        return [line for line in self.lines if line.death is None and line.process.is_alive()]

    def _await_ends(self, until: float) -> None:
        """Wait until every process has ended, reading what they still write so that none is held up by a full pipe."""
        while living := self._living():
            remaining = until - time.monotonic()
            if remaining <= 0:
                return
            poller = Poller()
            poller.watch(self.common.completion_read, READ)
            for line in living:
                poller.watch(line.process.sentinel, READ)
                poller.watch(line.process.channel.fileno(), READ | (WRITE if line.outbox else 0))
            for fd, _ in poller.wait(remaining):
                self._drain(fd, living)
            poller.close()

    def _drain(self, fd: int, living: list[Line]) -> None:
        if fd == self.common.completion_read:
            os.read(fd, 65536)
        for line in living:
            if line.process.channel.fileno() == fd:
                _discard(line)


def _ask_to_stop(line: Line) -> None:
    try:
        line.outbox.put(dump_request(None)[0])
        os.write(line.process.bell, BELL.pack(MESSAGE, 0, 0))
    except (ChannelClosed, OSError):  # it has ended, or its pipe is full: the next rung of the ladder will do
        return


def _discard(line: Line) -> None:
    try:
        line.outbox.flush()
        line.process.channel.recv(1 << 20)
    except (BlockingIOError, ChannelClosed, OSError):
        return
