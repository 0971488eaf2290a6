"""Worker processes, seen from the user's process: start one, send to it, and end all processes of a pool."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from parallel_envs.choices import StartMethod
from parallel_envs.engine.channel import (
    READ,
    TOO_MANY_FILES,
    WRITE,
    Inbox,
    Outbox,
    Poller,
    channel_pair,
    close_in_child,
    owned,
    readable,
)
from parallel_envs.engine.child_setup import (
    ChildDescriptors,
    ChildSettings,
    above_standard,
    become_child,
    die_with_writer,
    kill_group,
    leave,
    open_lifeline,
    run_child,
)
from parallel_envs.engine.interrupts import delay_ctrl_c
from parallel_envs.engine.messages import BELL, MESSAGE, Death, dump_request
from parallel_envs.engine.pool import Meters, WorkerPool
from parallel_envs.engine.shared_arrays import SharedBlock
from parallel_envs.engine.supervisor import ExitReport, ForgetWorkers, ReportExit, Started, StartWorker, WatchWorker
from parallel_envs.engine.supervisor_client import SupervisorClient, supervisor_client
from parallel_envs.engine.worker import METERS
from parallel_envs.errors import WorkerStartError
from parallel_envs.threads import cores_here

_EXIT_REPORT_SECONDS = 10.0  # longest wait for the exit code of a worker that has died
_LEAST_SECONDS = 1.0  # a healthy supervisor may need so long on a busy machine, however little time the caller gave
_LEAST_KILL_SECONDS = 1.0  # the system may need so long to end a process, however little time the caller gave
_FORGET_SECONDS = 2.0


class WorkerProcess:
    """A worker process, the user's ends of its pipes, and the requests and answers in flight.

    `bell` wakes the worker, `channel` carries messages, `sentinel` becomes readable when the process ends. Raises
    `WorkerStartError` if the process does not run within `timeout` seconds. With None imports may take any time, but a
    supervisor that has answered nothing for a minute is not waited for.

    Attributes:
        bells: Bells for which the pipe had no room.
        promised: Status and number of each payload that is on its way, and the place of its completion.
        last_place: Place of the last completion whose payload has arrived.
        death: How the process ended, once that has been recorded.
        killed: True if the pool killed the process.
    """

    def __init__(
        self, settings: ChildSettings, method: StartMethod, completion: int, stacks: int, timeout: float | None = None
    ) -> None:
        self.settings = settings
        self.method = method
        self._exit_report: ExitReport | None = None
        self.bells: deque[bytes] = deque()
        self.promised: deque[tuple[int, int, int]] = deque()
        self.last_place = self.num_bytes = 0
        self.death: Death | None = None
        self.killed = False
        with contextlib.ExitStack() as undo, contextlib.ExitStack() as theirs:
            bell_read, self.bell = _pipe(theirs, undo)
            output_read, output_write = _pipe(theirs, theirs)
            self.channel, channel_theirs = channel_pair()
            undo.callback(self.channel.close)
            theirs.callback(channel_theirs.close)
            fds = ChildDescriptors(bell_read, completion, channel_theirs.fileno(), stacks, output_write)
            owned.update((self.bell, self.channel.fileno(), output_read))
            undo.callback(owned.difference_update, (self.bell, self.channel.fileno()))
            theirs.callback(owned.discard, output_read)
            if method == "fork":
                self._fork(fds, output_read, timeout)
            else:
                self._launch(fds, output_read, timeout)
            undo.pop_all()
        os.set_blocking(self.bell, False)
        self.channel.setblocking(False)
        owned.add(self.sentinel)
        self.outbox, self.inbox = Outbox(self.channel), Inbox(self.channel)

    def _launch(self, fds: ChildDescriptors, output_read: int, timeout: float | None) -> None:
        """Have the supervisor start the process."""
        self._supervisor = supervisor_client()
        request = StartWorker(self.settings, fresh_interpreter=self.method == "spawn")
        failed = f"{self.settings.name} could not be started"
        try:
            answer, received = self._supervisor.ask(request, (*fds, output_read), timeout, lets_ctrl_c_in=True)
        except TimeoutError as error:
            raise WorkerStartError(f"{failed}: {error}") from error
        if not isinstance(answer, Started):
            raise WorkerStartError(f"{failed}: {answer}.")
        if not received:  # the system drops descriptors for which there is no room
            self._supervisor.post(ForgetWorkers((answer.pid,)))
            raise WorkerStartError(f"{failed}: {TOO_MANY_FILES} in this process.")
        self.pid, self.sentinel = answer.pid, received[0]

    def _fork(self, fds: ChildDescriptors, output_read: int, timeout: float | None) -> None:
        """Fork the process from this one, and have the supervisor watch it."""
        supervisor_client()  # first: if no supervisor can be started, nothing has been forked
        try:
            lifeline = open_lifeline()
            try:
                self.pid = os.fork()
                if self.pid == 0:
                    self._run_forked(fds, lifeline)
            finally:
                os.close(lifeline)
        except OSError as error:
            raise WorkerStartError(f"{self.settings.name} could not be started: {error}.") from error
        with contextlib.suppress(OSError):  # the child does the same: either may be first
            os.setpgid(self.pid, self.pid)
        try:
            self.sentinel = os.pidfd_open(self.pid)
            try:
                self._supervisor = supervisor_client()
                request = WatchWorker(self.pid, self.settings.name)
                answer, _ = self._supervisor.ask(request, (output_read,), timeout, lets_ctrl_c_in=True)
                if answer is not True:
                    raise WorkerStartError(f"{self.settings.name} could not be watched: {answer}.")
            except BaseException:
                os.close(self.sentinel)
                raise
        except BaseException as error:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()
            if isinstance(error, TimeoutError):
                raise WorkerStartError(f"{self.settings.name} could not be watched: {error}") from error
            if isinstance(error, OSError):
                raise WorkerStartError(f"{self.settings.name} could not be watched: {error}.") from error
            raise

    def _run_forked(self, fds: ChildDescriptors, lifeline: int) -> NoReturn:
        """Turn the forked process into a worker."""
        try:
            lifeline = above_standard(lifeline)
            close_in_child((*fds, lifeline))
            fds = become_child(self.settings, fds)
            die_with_writer(lifeline)
            leave(run_child(self.settings, fds))
        except BaseException:
            traceback.print_exc()
        finally:
            leave(1)

    def is_alive(self) -> bool:
        return self.death is None and self._exit_report is None and not readable(self.sentinel)

    def status(self) -> dict[str, str]:
        """Return the system's report on the process by field, or an empty dict if the process has ended."""
        try:
            report = Path(f"/proc/{self.pid}/status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return {}
        fields = (line.partition(":") for line in report.splitlines())
        return {name: value.strip() for name, _, value in fields}

    def signal(self, number: int) -> None:
        """Send a signal, unless the process has ended."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def exit_report(self, timeout: float | None = None) -> ExitReport:
        """Return how the process, which has ended, ended. Close its descriptors.

        The exit code or the last output stays unknown if the supervisor does not report it within `timeout` seconds.
        The wait lasts at most 10 seconds less the time for which the supervisor has been silent; a healthy supervisor
        is given at least a second.
        """
        if self._exit_report is None:
            longest = _EXIT_REPORT_SECONDS
            patience = longest if timeout is None else min(max(timeout, _LEAST_SECONDS), longest)
            report: object = None
            with contextlib.suppress(WorkerStartError, TimeoutError):
                report, _ = self._supervisor.ask(ReportExit(self.pid), (), patience - self._supervisor.silent_seconds())
            if not isinstance(report, ExitReport):
                report = ExitReport(None)
            exitcode = self._end_group() if report.exitcode is None else report.exitcode
            self._exit_report = ExitReport(exitcode, report.last_output)
            self._close()
        return self._exit_report

    def _end_group(self) -> int | None:
        """Kill the processes it started that the supervisor has not killed. Return the exit code of a forked worker."""
        kill_group(self.pid)
        return self._reap() if self.method == "fork" else None

    def _reap(self) -> int | None:
        """Wait for a child of this process that has ended or been killed. Return its exit code."""
        try:
            return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        except ChildProcessError:  # the user's own code waited for it, or had the kernel drop its status
            return None

    def _close(self) -> None:
        if self.channel.fileno() < 0:
            return  # a signal handler has closed the pool in the middle of this
        owned.difference_update((self.bell, self.channel.fileno(), self.sentinel))
        os.close(self.bell)
        self.channel.close()
        os.close(self.sentinel)


def _pipe(reader: contextlib.ExitStack, writer: contextlib.ExitStack) -> tuple[int, int]:
    """Return a new pipe. Each end is closed together with its stack."""
    read, write = os.pipe()
    reader.callback(os.close, read)
    writer.callback(os.close, write)
    return read, write


# ---- all processes of a pool ----------------------------------------------------------------------------------------


class WorkerProcesses:
    """The worker processes of a pool, their shared pipes and memory. Outlives the pool until all processes have ended.

    All workers write completions to one pipe, and their stacks (on `STACK_SIGNAL`) to another.
    """

    def __init__(self, num_workers: int) -> None:
        self.owner = os.getpid()
        self.stopped = False
        self.workers: list[WorkerProcess] = []
        self.block = SharedBlock.create(num_workers * METERS * 8)
        with contextlib.ExitStack() as undo:
            undo.callback(self.block.close)
            self.completion_read, self.completion_write = _pipe(undo, undo)
            self.stacks_read, self.stacks_write = _pipe(undo, undo)
            for fd in (self.completion_read, self.stacks_read):
                os.set_blocking(fd, False)
            os.set_blocking(self.stacks_write, False)  # a worker that writes its stack must never wait for a reader
            self._fds = (self.completion_read, self.completion_write, self.stacks_read, self.stacks_write)
            owned.update(self._fds)
            undo.callback(owned.difference_update, self._fds)
            self.poller = Poller()
            undo.pop_all()

    def stop(self, timeout: float) -> None:
        """End all workers: send a stop request and wait, send SIGTERM and wait, send SIGKILL and wait."""
        if self.stopped:
            return
        if self.owner != os.getpid():  # a process forked from the owner's has nothing to end
            for worker in self.workers:
                worker.channel.detach()  # otherwise Python warns that it was not closed
            return
        deadline = time.monotonic() + timeout
        try:
            self.stopped = True
            for worker in filter(WorkerProcess.is_alive, self.workers):
                # An error means that it has ended or its pipe is full: then the next step ends it.
                with contextlib.suppress(OSError):
                    worker.outbox.put(dump_request(None)[0])
                    os.write(worker.bell, BELL.pack(MESSAGE, 0, 0))
            self._await_ends(deadline - 0.4 * timeout)
            self._await_ends(deadline - 0.2 * timeout, signal.SIGTERM)
        finally:  # a Ctrl-C skips the steps that are left, except for the last
            with delay_ctrl_c():
                until = max(deadline, time.monotonic() + _LEAST_KILL_SECONDS)
                self._await_ends(until, signal.SIGKILL)
                self._release(until)

    def _await_ends(self, until: float, number: int = 0) -> None:
        """Send all the signal `number`, wait until all have ended, and drop their output: a full pipe holds one up."""
        for worker in self.workers if number else ():
            worker.signal(number)
        while living := list(filter(WorkerProcess.is_alive, self.workers)):
            remaining = until - time.monotonic()
            if remaining <= 0:
                return
            poller = Poller()
            poller.watch(self.completion_read, READ)
            for worker in living:
                poller.watch(worker.sentinel, READ)
                poller.watch(worker.channel.fileno(), READ | (WRITE if worker.outbox else 0))
            for fd, _ in poller.wait(remaining):
                if fd == self.completion_read:
                    os.read(fd, 65536)
                for worker in living:
                    if worker.channel.fileno() == fd:
                        with contextlib.suppress(OSError):  # the channel is closed, or has nothing more
                            worker.outbox.flush()
                            worker.channel.recv(1 << 20)
            poller.close()

    def _release(self, until: float) -> None:
        """Close everything. Have the supervisor print the workers' last output, and wait for that until `until`."""
        for worker in self.workers:
            worker.outbox.close()
        left = [worker for worker in self.workers if worker.death is None and worker._exit_report is None]
        pids: dict[SupervisorClient, list[int]] = {}
        for process in left:
            pids.setdefault(process._supervisor, []).append(process.pid)
        confirmed = set()
        for supervisor, forgotten in pids.items():
            with contextlib.suppress(WorkerStartError, TimeoutError):
                patience = min(until - time.monotonic(), _FORGET_SECONDS) - supervisor.silent_seconds()
                supervisor.ask(ForgetWorkers(tuple(forgotten)), (), patience)
                confirmed.add(supervisor)
        for process in left:
            # A supervisor that confirms has reaped its children: other processes may have their numbers by now.
            if not process.is_alive() and (process.method == "fork" or process._supervisor not in confirmed):
                process._end_group()
            process._exit_report = ExitReport(None)
            process._close()
        owned.difference_update(self._fds)
        for fd in self._fds:
            os.close(fd)
        self.block.close()
        self.poller.close()


# ---- cores for workers -----------------------------------------------------------------------------------------------

# A worker that wakes for some microseconds of work finds its caches on the core where it last ran. With more workers
# than cores the system moves such workers at every wake-up (to the core of the process that wakes them), which makes
# them a third slower. So once the meters show that a pool's work comes in short pieces, and if the workers fill all
# cores evenly, each worker is kept on one core. Longer pieces are left to the system, which balances them better.
#
# Workers on other cores than the caller's are woken first. They begin at once, while a worker on the caller's core
# cannot run before the caller waits anyway.
#
# If several workers share a core, the caller first yields its core instead of going to sleep (`cores_are_shared`). All
# ready workers on that core run, one after another, and the caller finds their answers in one read. A sleeping caller
# would be woken by the first answer, take the core from the workers that have yet to run, and sleep again, once for
# nearly every worker.

SHORT_SECONDS = 500e-6  # workers are kept on cores if their mean piece of work is shorter than this


try:
    current_core: Callable[[], int] = ctypes.PyDLL(None).sched_getcpu  # no system call, no lock: 40 ns
except (AttributeError, OSError, TypeError):
    current_core = lambda: -1  # noqa: E731
"""Return the core that the caller runs on now, or -1 if the system does not tell."""


def wake_orders(cores: Mapping[int, Sequence[int]], num_workers: int) -> dict[int, tuple[int, ...]]:
    """Return the order in which a caller on each core wakes the workers: workers on other cores come first."""
    return {
        core: tuple(sorted(range(num_workers), key=lambda worker: core in cores.get(worker, (core,))))
        for core in {core for kept in cores.values() for core in kept}
    }


def cores_are_shared(cores: Mapping[int, Sequence[int]]) -> bool:
    """Return whether several workers are kept on the same core."""
    kept = [core for kept in cores.values() for core in kept]
    return len(set(kept)) < len(kept)


def plan_cores(meters: Sequence[Meters], cores: Sequence[int]) -> list[int] | None:
    """Return a core for each worker, or None to leave them to the system."""
    requests = sum(meter.requests for meter in meters)
    if not cores or not requests or len(meters) <= len(cores) or len(meters) % len(cores):
        return None
    if sum(meter.bell_seconds for meter in meters) / requests > SHORT_SECONDS:
        return None
    return [cores[worker % len(cores)] for worker in range(len(meters))]


def pin_workers(pool: WorkerPool) -> None:
    """Keep each worker on one core, if the work that the pool has done so far is of a kind that gains by it."""
    chosen = plan_cores([pool.meters(worker) for worker in pool.all_workers], cores_here())
    for worker, core in enumerate(chosen or ()):
        pool.keep_on(worker, (core,))
