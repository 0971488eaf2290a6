"""The user's side of the supervisor: one supervisor per process, started with the first worker.

A supervisor lives until its process ends. A process forked from the user's gets a supervisor of its own.

Every request has a deadline, and no request waits for another: threads that wait at the same time read each other's
answers. A supervisor that answers slowly is kept. Its workers go on, and late answers are dropped. Only when it has not
answered anything for a minute are further workers started by another supervisor.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
import os
import pickle
import select
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from parallel_envs.engine.channel import ChannelClosed, Inbox, Outbox, channel_pair, owned
from parallel_envs.engine.child_setup import above_standard, hold_lifeline, thread_environment
from parallel_envs.engine.interrupts import delay_ctrl_c, run_delayed_ctrl_c
from parallel_envs.engine.supervisor import ForgetWorkers, Preload, Started
from parallel_envs.errors import WorkerStartError
from parallel_envs.threads import CallGuard

_log = logging.getLogger(__name__)

_COMMAND = "import sys; sys.path[:] = {path!r}; from parallel_envs.engine.supervisor import run; run({fd}, {owner})"
_ANSWER_SECONDS = 60.0  # a supervisor that has not answered for so long hangs
_END_SECONDS = 3.0  # for a healthy supervisor to end, and to print the workers' last output
_LEAST_SECONDS = 1.0  # for a killed supervisor to end
_TURN_SECONDS = 0.05  # after so long another thread may read

_guard = CallGuard("supervisor")
"""Its lock is held while a supervisor is looked for. The lock is reentrant, since a finalizer may need it in a thread
that holds it, and new in a process that is forked while another thread holds it."""
_current: SupervisorClient | None = None
_torn: list[SupervisorClient] = []
"""Supervisors that start no more workers, because they hang, or because an answer was cut short and the next answer
would be misread. Their workers go on, and end with them."""


def start_supervisor(preload: Sequence[str] = ()) -> None:
    """Start the supervisor if there is none. It imports the modules in `preload` for all workers. Wait for neither."""
    client = supervisor_client()
    if preload:
        client.post(Preload(tuple(preload), tuple(sys.path)))


def supervisor_pid() -> int | None:
    """Return the process id of this process's supervisor, or None while there is none."""
    client = _current
    return client.process.pid if client is not None and client.serves_this_process() else None


def supervisor_client() -> SupervisorClient:
    """Return the client of the supervisor that starts workers. Start a supervisor if there is none or if it hangs."""
    global _current  # noqa: PLW0603  # one supervisor a process, behind the lock
    with _guard.lock:
        if _current is not None and not _current.can_start_workers():
            if _current.serves_this_process():
                _torn.append(_current)
            _current = None
        if _current is None:
            _current = SupervisorClient()
        return _current


class SupervisorClient:
    """Starts a supervisor and exchanges requests and answers with it. Any thread may use it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        hold_lifeline()
        self.channel, theirs = channel_pair()
        try:
            if theirs.fileno() <= 2:  # `Popen` fills the places of stdin, stdout and stderr in the new process
                with theirs as low:
                    theirs = socket.socket(fileno=above_standard(low.fileno()))
            self.process = subprocess.Popen(
                [sys.executable, "-c", _COMMAND.format(path=list(sys.path), fd=theirs.fileno(), owner=self.owner)],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env={**os.environ, **thread_environment(1)},
                process_group=0,
            )
        except OSError as error:
            self.channel.close()
            raise WorkerStartError(f"The process that starts workers could not be started: {error}.") from error
        finally:
            theirs.close()
        self.channel.setblocking(False)
        owned.add(self.channel.fileno())
        self._inbox, self._outbox = Inbox(self.channel, takes_fds=True), Outbox(self.channel)
        self._lock = threading.RLock()  # never held while something is waited for
        self._numbers = itertools.count(1)
        self._awaited: set[int] = set()
        self._answers: dict[int, tuple[Any, list[int]]] = {}
        self._unanswered: dict[int, float] = {}
        """Times of the requests that the supervisor has not even accepted, by number."""
        self._messages: list[str] = []
        self.is_torn = False  # true if a frame was cut short, so that the rest of the channel would be misread
        self.has_ended = False
        # Made before any pool's finalizer, so at interpreter exit it runs after all of them.
        weakref.finalize(self, _end, self.owner, self.channel, self.process)

    def serves_this_process(self) -> bool:
        """Return whether the supervisor lives, and belongs to this process rather than to one it was forked from."""
        return self.owner == os.getpid() and not self.has_ended and self.process.poll() is None

    def can_start_workers(self) -> bool:
        """Return whether the supervisor can start further workers: it neither has ended nor hangs nor is torn."""
        with self._lock:  # a frame that another thread is sending or receiving does not count as torn
            is_torn = self.is_torn
        return self.serves_this_process() and not is_torn and self.silent_seconds() < _ANSWER_SECONDS

    def silent_seconds(self) -> float:
        """Return for how many seconds the oldest request has had no answer; 0 if there is none."""
        with contextlib.suppress(WorkerStartError):
            self._exchange(0.0)
        return time.monotonic() - min(self._unanswered.values(), default=time.monotonic())

    def ask(
        self, request: Any, fds: Sequence[int], timeout: float | None, *, lets_ctrl_c_in: bool = False
    ) -> tuple[Any, list[int]]:
        """Return the answer to a request, and the descriptors that come with the answer.

        Raise `TimeoutError` if no answer arrives within `timeout` seconds or the supervisor has answered nothing for a
        minute, and `WorkerStartError` if it has ended. A late answer is dropped. With `lets_ctrl_c_in` a Ctrl-C ends
        the wait, even within `delay_ctrl_c`.
        """
        until = None if timeout is None else time.monotonic() + timeout
        number = next(self._numbers)
        try:
            self._awaited.add(number)
            self._post(number, request, fds)
            while number not in self._answers:
                if lets_ctrl_c_in:
                    run_delayed_ctrl_c()
                remaining = _TURN_SECONDS if until is None else until - time.monotonic()
                self._exchange(min(max(remaining, 0.0), _TURN_SECONDS))
                if number in self._answers:
                    break
                name = f"the process that starts workers (pid {self.process.pid})"
                if until is not None and time.monotonic() >= until:
                    state = "has not answered" if number in self._unanswered else "has not done it"
                    raise TimeoutError(f"{name} {state} within {max(timeout or 0.0, 0.0):.3g} seconds.")
                if time.monotonic() - min(self._unanswered.values(), default=time.monotonic()) > _ANSWER_SECONDS:
                    raise TimeoutError(
                        f"{name} has not answered for {_ANSWER_SECONDS:g} seconds: it is stopped, or hangs."
                    )
            return self._answers.pop(number)
        finally:
            self._awaited.discard(number)
            for fd in self._answers.pop(number, (None, []))[1]:  # it arrived just as something else ended the wait
                os.close(fd)

    def post(self, request: Any) -> None:
        """Send a request without waiting for its answer. The rest of a long request is sent by later calls."""
        self._post(next(self._numbers), request, ())

    def _post(self, number: int, request: Any, fds: Sequence[int]) -> None:
        data = pickle.dumps((number, request))
        with self._whole_frames():
            self._unanswered[number] = time.monotonic()
            self._outbox.put(data, fds)

    def _exchange(self, seconds: float) -> None:
        """Wait for at most `seconds` until something can be sent or received, and send and receive it.

        Answers carry the number of their request, because any thread may receive the answer of another; because Ctrl-C
        may end the wait for an answer, which then arrives later; and because the garbage collector may run a finalizer
        that sends a request while another answer is waited for.
        """
        if self.has_ended:
            raise WorkerStartError("The process that starts workers has ended.")
        poll = select.poll()
        with contextlib.suppress(ValueError):  # another thread has just seen the supervisor's end, and closed this
            poll.register(self.channel.fileno(), select.POLLIN | (select.POLLOUT if self._outbox else 0))
        if poll.poll(seconds * 1000):
            with self._whole_frames():
                self._outbox.flush()
                while (data := self._inbox.receive()) is not None:
                    fds, self._inbox.fds = self._inbox.fds, []
                    number, answer = pickle.loads(data)
                    self._unanswered.pop(number, None)
                    if number == 0:
                        self._messages.append(answer)
                    elif number in self._awaited and answer is not None:
                        self._answers[number] = answer, fds
                        continue
                    # No thread waits for it any more. A worker that it starts ends by itself: its pipes are closed.
                    for fd in fds:
                        os.close(fd)
                    if isinstance(answer, Started):
                        self._outbox.put(pickle.dumps((next(self._numbers), ForgetWorkers((answer.pid,)))))
            while self._messages:
                _log.warning("%s", self._messages.pop(0))

    @contextlib.contextmanager
    def _whole_frames(self) -> Iterator[None]:
        """Context in which frames are sent and received. Ctrl-C and the garbage collector's finalizers wait.

        A frame that is cut short by something else (a signal handler that raises) makes the client torn. The client is
        torn as well for a signal handler that runs during a frame and sends a request.
        """
        with self._lock:
            if self.has_ended:
                raise WorkerStartError("The process that starts workers has ended.")
            if self.is_torn:
                raise WorkerStartError("An answer of the process that starts workers was cut short.")
            enabled = gc.isenabled()
            gc.disable()
            try:
                self.is_torn = True
                with delay_ctrl_c():
                    try:
                        yield
                    except ChannelClosed as error:
                        self.abandon()
                        raise WorkerStartError("The process that starts workers has ended.") from error
                    except OSError:  # no room for descriptors: nothing has been sent
                        self.is_torn = False
                        raise
                    self.is_torn = False
            finally:
                if enabled:
                    gc.enable()

    def abandon(self) -> None:
        """Give up a supervisor that has ended or is of no more use. Its workers end with it."""
        self.has_ended = True
        owned.discard(self.channel.fileno())
        self._outbox.close()
        self.channel.close()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait(_END_SECONDS)


def _end(owner: int, channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """Close the channel, which ends the supervisor and the workers that are left. Wait for the supervisor's end."""
    owned.discard(channel.fileno())
    channel.close()
    if owner != os.getpid():
        process.returncode = 0  # a child of the process this one was forked from, which will wait for it
        return
    with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: the supervisor ends by itself
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # the supervisor is stopped, or hangs
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LEAST_SECONDS)
