"""The user's side of the keeper: one keeper per process, started when the first worker is.

A keeper lives until its process ends. A process forked from the user's gets a keeper of its own.

Every request has a deadline, and none of them waits for another: threads that ask at the same time read each other's
answers. A keeper that answers slowly is not given up. Its workers go on, late answers are dropped, and only when it has
not answered anything for a minute are further workers started by another keeper.
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
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from parallel_envs.engine.channel import ChannelClosed, Inbox, Outbox, channel_pair
from parallel_envs.engine.child import ChildEnds, ChildSettings, thread_environment
from parallel_envs.engine.completions import let_waiting_ctrl_c_in, undisturbed
from parallel_envs.engine.descriptors import TOO_MANY_FILES, hold_lifeline, owned
from parallel_envs.engine.keeper import Accepted, Adopt, Autopsy, Launch, News, Obituary, Preload, Release, Started
from parallel_envs.errors import WorkerStartError
from parallel_envs.threads import CallGuard

_log = logging.getLogger(__name__)

_COMMAND = "import sys; sys.path[:] = {path!r}; from parallel_envs.engine.keeper import run; run({fd}, {owner})"
_ANSWER_SECONDS = 60.0  # a keeper that has not answered for so long hangs
_OBITUARY_SECONDS = 10.0  # longer is not waited for the exit code of a worker that has died
_LEAST_SECONDS = 1.0  # what a keeper that is well may need on a busy machine, however little time the caller gave
_RELEASE_SECONDS = 2.0
_END_SECONDS = 3.0  # what a healthy keeper may need to end, with what workers wrote last
_TURN_SECONDS = 0.05  # after so long another thread may read

_guard = CallGuard("keeper")
"""Its lock is held while a keeper is looked for; a finalizer may need it while the same thread holds it. A process that
is forked while another thread holds it has a fresh one."""
_current: Keeper | None = None
_torn: list[Keeper] = []
"""Keepers that are asked for no more workers: they hang, or an answer was cut short and what follows would be misread.
Their workers go on, and end with them.
"""


def launch(
    settings: ChildSettings,
    ends: ChildEnds,
    output: int,
    *,
    fresh_interpreter: bool,
    timeout: float | None,
) -> tuple[int, int, Keeper]:
    """Start a worker. Return its pid, a descriptor that becomes readable when it ends, and the keeper that started it.

    Raises `WorkerStartError`, also if the worker does not run within `timeout` seconds. None: the modules that it needs
    may take as long as they take to be imported, but a keeper that says nothing for a minute is not waited for.
    """
    keeper = _keeper()
    try:
        answer, fds = keeper.ask(Launch(settings, fresh_interpreter), (*ends.fds, output), timeout, lets_ctrl_c_in=True)
    except TimeoutError as error:
        raise WorkerStartError(f"{settings.name} could not be started: {error}") from error
    if not isinstance(answer, Started):
        raise WorkerStartError(f"{settings.name} could not be started: {answer}.")
    if not fds:  # the system drops descriptors for which there is no room
        keeper.post(Release((answer.pid,)))
        raise WorkerStartError(f"{settings.name} could not be started: {TOO_MANY_FILES} in this process.")
    return answer.pid, fds[0], keeper


def adopt(pid: int, name: str, output: int, *, timeout: float | None) -> Keeper:
    """Have a worker that this process forked looked after. Return the keeper that does so.

    Raises `WorkerStartError`, also if that takes longer than `timeout` seconds.
    """
    keeper = _keeper()
    try:
        answer, _ = keeper.ask(Adopt(pid, name), (output,), timeout, lets_ctrl_c_in=True)
    except TimeoutError as error:
        raise WorkerStartError(f"{name} could not be watched: {error}") from error
    if answer is not True:
        raise WorkerStartError(f"{name} could not be watched: {answer}.")
    return keeper


def autopsy(keeper: Keeper, pid: int, timeout: float | None) -> Obituary:
    """Return how a worker ended. Asked once for each worker.

    The obituary is empty if the keeper cannot tell within `timeout` seconds. However long the caller can wait, it waits
    no longer than 10 seconds for a keeper that is silent, and however short, a healthy keeper is given a second.
    """
    patience = _OBITUARY_SECONDS if timeout is None else min(max(timeout, _LEAST_SECONDS), _OBITUARY_SECONDS)
    try:
        answer, _ = keeper.ask(Autopsy(pid), (), patience - keeper.silent_seconds())
    except (WorkerStartError, TimeoutError):
        return Obituary(None)
    return answer if isinstance(answer, Obituary) else Obituary(None)


def release(pids: Mapping[Keeper, Sequence[int]], until: float) -> set[Keeper]:
    """Tell keepers that nobody will ask how these workers ended, and wait until they have printed the last output.

    The wait ends at the time `until` (of `time.monotonic`), or earlier for a keeper that is silent. Returns the keepers
    that have confirmed it.
    """
    confirmed = set()
    for keeper, released in pids.items():
        with contextlib.suppress(WorkerStartError, TimeoutError):
            patience = min(until - time.monotonic(), _RELEASE_SECONDS) - keeper.silent_seconds()
            keeper.ask(Release(tuple(released)), (), patience)
            confirmed.add(keeper)
    return confirmed


def start_keeper(preload: Sequence[str] = ()) -> None:
    """Start the keeper if there is none, so that the first worker need not wait for it.

    The modules in `preload` begin to be imported; they are loaded in all workers that are forked once that is done.
    Nobody waits for that here.
    """
    keeper = _keeper()
    if preload:
        keeper.post(Preload(tuple(preload), tuple(sys.path)))


def keeper_pid() -> int | None:
    """Return the process id of this process's keeper, or None while there is none."""
    keeper = _current
    return keeper.process.pid if keeper is not None and keeper.serves_this_process() else None


def _keeper() -> Keeper:
    """Return the keeper that starts this process's workers. Another is started if there is none, or if it hangs."""
    global _current  # noqa: PLW0603  # one keeper a process, behind the lock
    with _guard.lock:
        if _current is not None and not _current.can_be_asked():
            if _current.serves_this_process():
                _torn.append(_current)
            _current = None
        if _current is None:
            _current = Keeper()
        return _current


class Keeper:
    """A keeper, seen from the process that it starts workers for. Any thread may ask it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        hold_lifeline()
        self.channel, theirs = channel_pair()
        try:
            theirs = _out_of_the_way(theirs)
            self.process = _start_process(theirs)
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
        """When the requests were made of which the keeper has not said that it has them, by number."""
        self._news: list[str] = []
        self.is_torn = False
        """A frame was cut short, and whatever follows on the channel would be misread."""
        self.has_ended = False
        # Made before any pool's finalizer, so at interpreter exit it runs after all of them.
        weakref.finalize(self, _end, self.owner, self.channel, self.process)

    def serves_this_process(self) -> bool:
        """Return whether it lives, and does not belong to the process that this one was forked from."""
        return self.owner == os.getpid() and not self.has_ended and self.process.poll() is None

    def can_be_asked(self) -> bool:
        """Return whether further workers may be started by it: not if it has ended or hangs or cannot be understood."""
        with self._lock:  # another thread in the midst of a frame is no reason
            is_torn = self.is_torn
        return self.serves_this_process() and not is_torn and self.silent_seconds() < _ANSWER_SECONDS

    def silent_seconds(self) -> float:
        """Return for how long the oldest request has been without any answer; 0 if there is none."""
        with contextlib.suppress(WorkerStartError):
            self._exchange(0.0)
        return time.monotonic() - min(self._unanswered.values(), default=time.monotonic())

    def ask(
        self, request: Any, fds: Sequence[int], timeout: float | None, *, lets_ctrl_c_in: bool = False
    ) -> tuple[Any, list[int]]:
        """Return the answer to a request, and the descriptors that come with it.

        Raises `TimeoutError` if there is none within `timeout` seconds, or the keeper has not answered anybody for a
        minute, and `WorkerStartError` if it has ended. A late answer is dropped. With `lets_ctrl_c_in` a Ctrl-C ends
        the wait, even within `undisturbed`.
        """
        until = None if timeout is None else time.monotonic() + timeout
        number = next(self._numbers)
        try:
            self._awaited.add(number)
            self._post(number, request, fds)
            while number not in self._answers:
                if lets_ctrl_c_in:
                    let_waiting_ctrl_c_in()
                remaining = _TURN_SECONDS if until is None else until - time.monotonic()
                self._exchange(min(max(remaining, 0.0), _TURN_SECONDS))
                if number not in self._answers:
                    self._check_patience(number, timeout, until)
            return self._answers.pop(number)
        finally:
            self._awaited.discard(number)
            for fd in self._answers.pop(number, (None, []))[1]:  # it came just as something else ended the wait
                os.close(fd)

    def _check_patience(self, number: int, timeout: float | None, until: float | None) -> None:
        whose = f"the process that starts workers (pid {self.process.pid})"
        if until is not None and time.monotonic() >= until:
            state = "has not answered" if number in self._unanswered else "has not done it"
            raise TimeoutError(f"{whose} {state} within {max(timeout or 0.0, 0.0):.3g} seconds.")
        if time.monotonic() - min(self._unanswered.values(), default=time.monotonic()) > _ANSWER_SECONDS:
            raise TimeoutError(f"{whose} has not answered for {_ANSWER_SECONDS:g} seconds: it is stopped, or hangs.")

    def post(self, request: Any) -> None:
        """Send a request whose answer nobody waits for.

        What the kernel does not take at once is sent when something is asked or waited for the next time.
        """
        self._post(next(self._numbers), request, ())

    def _post(self, number: int, request: Any, fds: Sequence[int]) -> None:
        data = pickle.dumps((number, request))
        with self._frames():
            self._unanswered[number] = time.monotonic()
            self._outbox.put(data, fds)

    def _exchange(self, seconds: float) -> None:
        """Wait for so long that something can be sent or received, and do so.

        Answers carry the number of their request, since any thread may receive them for any other; Ctrl-C may end the
        wait for one, which then comes later; and the garbage collector may run a finalizer that asks something while
        another answer is waited for.
        """
        if self.has_ended:
            raise WorkerStartError("The process that starts workers has ended.")
        poll = select.poll()
        with contextlib.suppress(ValueError):  # another thread has just seen the keeper's end, and closed the channel
            poll.register(self.channel.fileno(), select.POLLIN | (select.POLLOUT if self._outbox else 0))
        if poll.poll(seconds * 1000):
            with self._frames():
                self._outbox.flush()
                while (data := self._inbox.receive()) is not None:
                    fds, self._inbox.fds = self._inbox.fds, []
                    number, answer = pickle.loads(data)
                    self._take_in(number, answer, fds)
            while self._news:
                _log.warning("%s", self._news.pop(0))

    def _take_in(self, number: int, answer: Any, fds: list[int]) -> None:
        self._unanswered.pop(number, None)
        if isinstance(answer, News):
            self._news.append(answer.text)
        elif isinstance(answer, Accepted):
            return
        elif number in self._awaited:
            self._answers[number] = answer, fds
        else:  # nobody waits for it any more; a worker that it tells of ends by itself, since its lines are closed
            for fd in fds:
                os.close(fd)
            if isinstance(answer, Started):
                number = next(self._numbers)
                self._outbox.put(pickle.dumps((number, Release((answer.pid,)))))

    @contextlib.contextmanager
    def _frames(self) -> Iterator[None]:
        """Within this, frames are sent and received. Ctrl-C and the garbage collector's finalizers wait.

        A frame that is cut short by something else (a signal handler that raises) makes the keeper torn. So does, until
        the frame is done, a signal handler that runs in the midst of it and asks something.
        """
        with self._lock:
            if self.has_ended:
                raise WorkerStartError("The process that starts workers has ended.")
            if self.is_torn:
                raise WorkerStartError("What the process that starts workers has said was cut short.")
            enabled = gc.isenabled()
            gc.disable()
            try:
                self.is_torn = True
                with undisturbed():
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
        """Give up a keeper that has ended or is of no more use. Its workers end with it."""
        self.has_ended = True
        owned.discard(self.channel.fileno())
        self._outbox.close()
        self.channel.close()
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait(_END_SECONDS)


def _end(owner: int, channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """The keeper ends when its channel does, and takes with it what is left of its workers."""
    owned.discard(channel.fileno())
    channel.close()
    if owner != os.getpid():
        process.returncode = 0  # it belongs to the process this one was forked from, which will wait for it
        return
    with contextlib.suppress(KeyboardInterrupt):  # a second Ctrl-C: it ends without us
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:  # it is stopped, or hangs
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LEAST_SECONDS)


def _out_of_the_way(channel: socket.socket) -> socket.socket:
    """The same channel, not where stdin, stdout and stderr belong: `Popen` fills these places in the new process."""
    if channel.fileno() > 2:
        return channel
    with channel:
        import fcntl  # only systems that have worker processes have it

        return socket.socket(fileno=fcntl.fcntl(channel.fileno(), fcntl.F_DUPFD_CLOEXEC, 3))


def _start_process(channel: socket.socket) -> subprocess.Popen[bytes]:
    command = _COMMAND.format(path=list(sys.path), fd=channel.fileno(), owner=os.getpid())
    return subprocess.Popen(
        [sys.executable, "-c", command],
        stdin=subprocess.DEVNULL,
        pass_fds=[channel.fileno()],
        env={**os.environ, **thread_environment(1)},
        process_group=0,
    )
