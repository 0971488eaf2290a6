"""One worker process, seen from the user's side: how it is started, how it is asked to end, how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from parallel_envs.choices import StartMethod, words
from parallel_envs.engine import keeper_client
from parallel_envs.engine.channel import channel_pair
from parallel_envs.engine.child import ChildEnds, ChildSettings, become_child, die_with_writer, leave, run_child
from parallel_envs.engine.descriptors import close_in_child, open_lifeline, owned
from parallel_envs.engine.keeper import Obituary
from parallel_envs.engine.poller import readable
from parallel_envs.errors import WorkerStartError

START_METHODS: tuple[StartMethod, ...] = words(StartMethod)


class WorkerProcess:
    """A process and the user's ends of its lines: `bell` to wake it, `channel` to talk, `sentinel` to see it end.

    Raises `WorkerStartError` if it does not run within `timeout` seconds (None: it takes as long as it takes).
    """

    def __init__(
        self, settings: ChildSettings, method: StartMethod, completion: int, stacks: int, timeout: float | None = None
    ) -> None:
        self.settings = settings
        self.method = method
        self._obituary: Obituary | None = None
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            bell_read, self.bell = _pipe(theirs, undo)
            output_read, output_write = _pipe(theirs, theirs)
            self.channel, channel_theirs = channel_pair()
            undo.callback(self.channel.close)
            theirs.callback(channel_theirs.close)
            ends = ChildEnds(bell_read, completion, channel_theirs.fileno(), stacks, output_write)
            owned.update((self.bell, self.channel.fileno(), output_read))
            undo.callback(owned.difference_update, (self.bell, self.channel.fileno()))
            theirs.callback(owned.discard, output_read)
            self.pid, self.sentinel, self._keeper = self._start(ends, output_read, timeout)
            undo.pop_all()
        os.set_blocking(self.bell, False)
        self.channel.setblocking(False)
        owned.add(self.sentinel)

    def _start(self, ends: ChildEnds, output_read: int, timeout: float | None) -> tuple[int, int, keeper_client.Keeper]:
        if self.method == "fork":
            return _fork(self.settings, ends, output_read, timeout)
        fresh = self.method == "spawn"
        return keeper_client.launch(self.settings, ends, output_read, fresh_interpreter=fresh, timeout=timeout)

    def is_alive(self) -> bool:
        return self._obituary is None and not readable(self.sentinel)

    def state(self) -> str:
        """What the system says the process is doing, such as `stopped`."""
        return self._status("State") or "ended"

    def is_pending(self, number: int) -> bool:
        """Return whether the process has been sent this signal and has not handled it yet."""
        return bool(int(self._status("ShdPnd") or "0", 16) >> (number - 1) & 1)

    def _status(self, name: str) -> str | None:
        """Return a field of the system's report on the process, or None if there is none: the process has ended."""
        try:
            report = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return None
        fields = dict(line.partition(":")[::2] for line in report.splitlines())
        return fields.get(name, "").strip() or None

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def obituary(self, timeout: float | None = None) -> Obituary:
        """Return how it ended. Only for a process that has; the descriptors are given up here.

        The keeper is waited for as `keeper_client.autopsy` says. An exit code or a last output that it does not tell in
        that time stays unknown.
        """
        if self._obituary is None:
            told = keeper_client.autopsy(self._keeper, self.pid, timeout)
            exitcode = self._end_group() if told.exitcode is None else told.exitcode
            self._obituary = Obituary(exitcode, told.last_output)
            self._close()
        return self._obituary

    def _end_group(self) -> int | None:
        """End what it started and the keeper has not ended. Return the exit code if it is a child of this process."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return _reap(self.pid) if self.method == "fork" else None

    def _close(self) -> None:
        if self.channel.fileno() < 0:
            return  # a signal handler has closed the pool in the midst of this
        owned.difference_update((self.bell, self.channel.fileno(), self.sentinel))
        os.close(self.bell)
        self.channel.close()
        os.close(self.sentinel)


def release(processes: Sequence[WorkerProcess], until: float) -> None:
    """Let go of processes, whether they have ended or not. Nobody asks how.

    What they wrote last is printed by then, unless the keeper does not get to it before `until` (of `time.monotonic`).
    """
    pids: dict[keeper_client.Keeper, list[int]] = {}
    left = [process for process in processes if process._obituary is None]
    for process in left:
        pids.setdefault(process._keeper, []).append(process.pid)
    confirmed = keeper_client.release(pids, until)
    for process in left:
        # A keeper that confirms has reaped its own children: their numbers may belong to others by now.
        if not process.is_alive() and (process.method == "fork" or process._keeper not in confirmed):
            process._end_group()
        process._obituary = Obituary(None)
        process._close()


def _fork(
    settings: ChildSettings, ends: ChildEnds, output_read: int, timeout: float | None
) -> tuple[int, int, keeper_client.Keeper]:
    keeper_client.start_keeper()
    try:
        lifeline = open_lifeline()
        try:
            pid = os.fork()
            if pid == 0:
                _begin(settings, ends, lifeline)
        finally:
            os.close(lifeline)
    except OSError as error:
        raise WorkerStartError(f"{settings.name} could not be started: {error}.") from error
    with contextlib.suppress(OSError):  # the child does the same; whoever comes first
        os.setpgid(pid, pid)
    try:
        sentinel = os.pidfd_open(pid)
        try:
            keeper = keeper_client.adopt(pid, settings.name, output_read, timeout=timeout)
        except BaseException:
            os.close(sentinel)
            raise
    except BaseException as error:
        os.kill(pid, signal.SIGKILL)
        _reap(pid)
        if isinstance(error, OSError):
            raise WorkerStartError(f"{settings.name} could not be watched: {error}.") from error
        raise
    return pid, sentinel, keeper


def _begin(settings: ChildSettings, ends: ChildEnds, lifeline: int) -> NoReturn:
    """In the forked process: become a worker."""
    try:
        if lifeline <= 2:  # its place is needed for stdin, stdout or stderr: the same open file under another number
            import fcntl  # only systems that have worker processes have it

            lifeline = fcntl.fcntl(lifeline, fcntl.F_DUPFD_CLOEXEC, 3)
        close_in_child((*ends.fds, lifeline))
        ends = become_child(settings, ends)
        die_with_writer(lifeline)
        leave(run_child(settings, ends))
    except BaseException:
        traceback.print_exc()
    finally:
        leave(1)


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with these stacks."""
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _reap(pid: int) -> int | None:
    """Wait for a child of this process that has ended or been killed. Return its exit code."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the user's own code waited for it, or told the kernel not to keep its status
        return None
