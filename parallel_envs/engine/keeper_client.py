"""The user's side of the keeper: one keeper per process, started when the first worker is.

A keeper lives until its process ends. A process forked from the user's gets a keeper of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import itertools
import os
import pickle
import socket
import subprocess
import sys
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from parallel_envs.engine.channel import channel_pair, receive_frame, send_frame
from parallel_envs.engine.child import ChildEnds, ChildSettings, thread_environment
from parallel_envs.engine.completions import undisturbed
from parallel_envs.engine.descriptors import owned
from parallel_envs.engine.keeper import Adopt, Autopsy, Launch, Obituary, Preload
from parallel_envs.engine.poller import readable
from parallel_envs.errors import WorkerStartError
from parallel_envs.threads import CallGuard

_COMMAND = "import sys; sys.path[:] = {path!r}; from parallel_envs.engine.keeper import run; run({fd}, {owner})"
_ANSWER_SECONDS = 60.0

_guard = CallGuard("keeper")
"""Its lock is held while the keeper is asked; a finalizer may need it while the same thread holds it. A process forked
while another thread holds it has a fresh one."""
_current: _Keeper | None = None
_torn: list[_Keeper] = []
"""Keepers that nothing can be asked any more. Their workers go on, and end with them."""


def launch(settings: ChildSettings, ends: ChildEnds, output: int, *, fresh_interpreter: bool) -> tuple[int, int]:
    """Start a worker. Returns its pid and a descriptor that becomes readable when it ends."""
    answer, fds = _ask(Launch(settings, fresh_interpreter), (*ends.fds, output))
    if not isinstance(answer, int):
        raise WorkerStartError(f"{settings.name} could not be started: {answer}.")
    if not fds:  # the system drops descriptors for which there is no room
        raise WorkerStartError(f"{settings.name} could not be started: too many files are open here (`ulimit -n`).")
    return answer, fds[0]


def adopt(pid: int, name: str, output: int) -> None:
    """Have a worker that this process forked looked after."""
    _ask(Adopt(pid, name), (output,))


def autopsy(pid: int) -> Obituary:
    """How a worker ended. Asked once for each worker; where nobody can tell, an obituary that says so."""
    try:
        answer, _ = _ask(Autopsy(pid), (), start=False)
    except WorkerStartError:
        return Obituary(None)
    return answer if isinstance(answer, Obituary) else Obituary(None)


def start_keeper(preload: Sequence[str] = ()) -> None:
    """Start the keeper if there is none, so that the first worker need not wait for it.

    It begins to import the modules in `preload`, which stay loaded in all workers that are forked from it. Nobody waits
    for that here.
    """
    with _guard.lock:
        keeper = _keeper(start=True)
        if preload:
            keeper.tell(Preload(tuple(preload), tuple(sys.path)))


def keeper_pid() -> int | None:
    """The process id of this process's keeper, or None while there is none."""
    keeper = _current
    return keeper.process.pid if keeper is not None and keeper.serves_this_process() else None


class _Keeper:
    def __init__(self) -> None:
        self.owner = os.getpid()
        self.channel, theirs = channel_pair()
        try:
            theirs = _out_of_the_way(theirs)
            self.process = _start_process(theirs)
        except OSError as error:
            self.channel.close()
            raise WorkerStartError(f"The process that starts workers could not be started: {error}.") from error
        finally:
            theirs.close()
        self.channel.settimeout(_ANSWER_SECONDS)
        owned.add(self.channel.fileno())
        self._numbers = itertools.count(1)
        self._awaited: set[int] = set()
        self._answers: dict[int, tuple[Any, list[int]]] = {}
        self.is_torn = False
        """A frame was cut short, and whatever follows on the channel would be misread."""
        # Made before any pool's finalizer, so at interpreter exit it runs after all of them.
        weakref.finalize(self, _end, self.owner, self.channel, self.process)

    def serves_this_process(self) -> bool:
        """Not if it has ended or cannot be understood, nor if it belongs to the process this one was forked from."""
        return self.owner == os.getpid() and not self.is_torn and self.process.poll() is None

    def ask(self, request: Any, fds: Sequence[int]) -> tuple[Any, list[int]]:
        """The answer to a request, and the descriptors that come with it.

        Answers carry the number of their request, for two reasons: Ctrl-C may end the wait for one, which then comes
        later; and the garbage collector may run a finalizer that asks something in the midst of another question.
        """
        number = next(self._numbers)
        self._awaited.add(number)
        try:
            with _no_collection():
                with self._whole_frame():
                    send_frame(self.channel, pickle.dumps((number, request)), fds)
                while number not in self._answers:
                    if not readable(self.channel.fileno(), _ANSWER_SECONDS):
                        raise TimeoutError(f"no answer within {_ANSWER_SECONDS} seconds")
                    with self._whole_frame():
                        self._receive()
            return self._answers.pop(number)
        finally:
            self._awaited.discard(number)

    def tell(self, request: Any) -> None:
        """Make a request and wait for nothing: what is answered is dropped when something else is waited for."""
        with _no_collection(), self._whole_frame():
            send_frame(self.channel, pickle.dumps((next(self._numbers), request)), ())

    @contextlib.contextmanager
    def _whole_frame(self) -> Iterator[None]:
        """Ctrl-C waits for the end of a frame. One that is cut short by something else is known to be."""
        self.is_torn = True
        with undisturbed():
            yield
            self.is_torn = False

    def _receive(self) -> None:
        data, fds = receive_frame(self.channel)
        number, answer = pickle.loads(data)
        if number in self._awaited:
            self._answers[number] = answer, fds
        else:  # nobody waits for it any more; a worker that it tells of ends by itself, since its lines are closed
            for fd in fds:
                os.close(fd)

    def abandon(self) -> None:
        """Give up a keeper that does not answer. Its workers end with it."""
        owned.discard(self.channel.fileno())
        self.channel.close()
        with contextlib.suppress(OSError):
            self.process.kill()
            self.process.wait()


@contextlib.contextmanager
def _no_collection() -> Iterator[None]:
    """Keep the garbage collector, and so the finalizers of pools, out of the midst of a frame."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _end(owner: int, channel: socket.socket, process: subprocess.Popen[bytes]) -> None:
    """The keeper ends when its channel does, and takes with it what is left of its workers."""
    owned.discard(channel.fileno())
    channel.close()
    if owner != os.getpid():
        process.returncode = 0  # it belongs to the process this one was forked from, which will wait for it
        return
    with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):  # a second Ctrl-C: it ends without us
        process.wait(timeout=2.0)


def _out_of_the_way(channel: socket.socket) -> socket.socket:
    """The same channel, not where stdin, stdout and stderr belong: `Popen` fills these places in the new process."""
    if channel.fileno() > 2:
        return channel
    with channel:
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


def _ask(request: Any, fds: Sequence[int], *, start: bool = True) -> tuple[Any, list[int]]:
    global _current  # noqa: PLW0603  # one keeper a process, behind the lock
    with _guard.lock:
        keeper = _keeper(start=start)
        try:
            return keeper.ask(request, fds)
        except (OSError, EOFError) as error:
            keeper.abandon()
            _current = None
            raise WorkerStartError(f"The process that starts workers has ended or hangs ({error!r}).") from error


def _keeper(*, start: bool) -> _Keeper:
    global _current  # noqa: PLW0603  # one keeper a process, behind the lock
    if _current is not None and not _current.serves_this_process():
        if _current.is_torn:
            _torn.append(_current)
        _current = None
    if _current is None:
        if not start:
            raise WorkerStartError("No process that starts workers is running.")
        _current = _Keeper()
    return _current
