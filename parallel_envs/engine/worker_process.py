"""One worker process, seen from the user's side: how it is started, how it is asked to end, how it ended."""

from __future__ import annotations

import contextlib
import os
import signal
import traceback
from pathlib import Path
from typing import Literal

from parallel_envs.engine import keeper_client
from parallel_envs.engine.channel import channel_pair
from parallel_envs.engine.child import ChildEnds, ChildSettings, become_child, leave, run_child
from parallel_envs.engine.descriptors import close_in_child, owned
from parallel_envs.engine.keeper import Obituary
from parallel_envs.engine.poller import readable
from parallel_envs.errors import WorkerStartError

StartMethod = Literal["forkserver", "spawn", "fork"]
START_METHODS: tuple[StartMethod, ...] = ("forkserver", "spawn", "fork")


class WorkerProcess:
    """A process and the user's ends of its lines: `bell` to wake it, `channel` to talk, `sentinel` to see it end."""

    def __init__(self, settings: ChildSettings, method: StartMethod, completion: int, stacks: int) -> None:
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
            self.pid, self.sentinel = self._start(ends, output_read)
            undo.pop_all()
        os.set_blocking(self.bell, False)
        self.channel.setblocking(False)
        owned.add(self.sentinel)

    def _start(self, ends: ChildEnds, output_read: int) -> tuple[int, int]:
        if self.method == "fork":
            return _fork(self.settings, ends, output_read)
        return keeper_client.launch(self.settings, ends, output_read, fresh_interpreter=self.method == "spawn")

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

    def obituary(self) -> Obituary:
        """How it ended. Only for a process that has; the descriptors are given up here."""
        if self._obituary is None:
            exitcode = _reap(self.pid) if self.method == "fork" else None
            told = keeper_client.autopsy(self.pid)
            if (
                told.exitcode is None and self.method != "fork"
            ):  # the keeper is gone, and cannot end what this one started
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)
            self._obituary = Obituary(told.exitcode if exitcode is None else exitcode, told.last_output)
            self._close()
        return self._obituary

    def give_up(self) -> None:
        """Let go of it, whether it has ended or not."""
        if self.is_alive():
            self._obituary = Obituary(None)
            self._close()
        else:
            self.obituary()

    def _close(self) -> None:
        if self.channel.fileno() < 0:
            return  # a signal handler has closed the pool in the midst of this
        owned.difference_update((self.bell, self.channel.fileno(), self.sentinel))
        os.close(self.bell)
        self.channel.close()
        os.close(self.sentinel)


def _fork(settings: ChildSettings, ends: ChildEnds, output_read: int) -> tuple[int, int]:
    keeper_client.start_keeper()
    try:
        pid = os.fork()
    except OSError as error:
        raise WorkerStartError(f"{settings.name} could not be started: {error}.") from error
    if pid == 0:
        try:
            close_in_child(ends.fds)
            leave(run_child(settings, become_child(settings, ends)))
        except BaseException:
            traceback.print_exc()
        finally:
            leave(1)
    with contextlib.suppress(OSError):  # the child does the same; whoever comes first
        os.setpgid(pid, pid)
    try:
        sentinel = os.pidfd_open(pid)
        try:
            keeper_client.adopt(pid, settings.name, output_read)
        except BaseException:
            os.close(sentinel)
            raise
    except BaseException as error:
        os.kill(pid, signal.SIGKILL)
        _reap(pid)
        if isinstance(error, OSError):
            raise WorkerStartError(f"{settings.name} could not be watched: {error}.") from error
        raise
    return pid, sentinel


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """A pipe whose ends are closed with these stacks."""
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


def _reap(pid: int) -> int | None:
    """The exit code of a child of this process; whatever the child had started ends with it."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # the user's own code waited for it, or told the kernel not to keep its status
        return None
