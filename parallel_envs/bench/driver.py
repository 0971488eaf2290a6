"""The caller's side of a contestant's process.

It is started here and not by `parallel_envs.engine`, because the engine is one of the things measured, and
because each contestant shall find a process such as its users have: fresh, with its library and no other.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import cloudpickle

from parallel_envs.bench.contestants import Hosted
from parallel_envs.bench.measure import MeasurementFailed, Slice
from parallel_envs.bench.protocol import Ask, Close, Failure, Load, Open, Reply, Request, Run, Told, Took

_OPEN_TIMEOUT = 300.0
_RUN_TIMEOUT = 60.0  # beyond what was asked for: one vector step may be slow
_CLOSE_TIMEOUT = 30.0
_EXIT_TIMEOUT = 5.0
_LOOK_EVERY = 1.0
_TAIL_BYTES = 600


class Driver:
    """One contestant in a process of its own. Use it with `with`: no process is left behind.

    Methods raise `MeasurementFailed`, with the contestant's words, if it raised, died or did not answer.
    """

    def __init__(self, contestant: Hosted) -> None:
        self._contestant = contestant
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by stop()
        near, far = socket.socketpair()
        with far:
            self._process = _start_host(far.fileno(), self._output)
        self._connection = Connection(near.detach())

    def __enter__(self) -> Driver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def load(self) -> None:
        """Hand the contestant over and let it import its library."""
        self._ask(Load(self._contestant), _OPEN_TIMEOUT)

    def open(self) -> float:
        """Make and reset the environments; the seconds that took."""
        return self._took(Open(), _OPEN_TIMEOUT)

    def run(self, seconds: float) -> Slice:
        """Step for so long, warm."""
        reply = self._ask(Run(seconds), 2 * seconds + _RUN_TIMEOUT)
        assert isinstance(reply, Slice), reply
        return reply

    def ask(self, method: str) -> Any:
        """What a method of the contestant's own returns, which is to be done within a minute."""
        reply = self._ask(Ask(method), _RUN_TIMEOUT)
        assert isinstance(reply, Told), reply
        return reply.value

    def close(self) -> float:
        """Close the environments; the seconds that took. They can be opened again."""
        return self._took(Close(), _CLOSE_TIMEOUT)

    def stop(self) -> None:
        """End the process and all that it started: by asking, then by force. Never raises."""
        with contextlib.suppress(MeasurementFailed):
            self._ask(Close(), _CLOSE_TIMEOUT)
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()

    def _took(self, request: Request, timeout: float) -> float:
        reply = self._ask(request, timeout)
        assert isinstance(reply, Took), reply
        return reply.seconds

    def _ask(self, request: Request, timeout: float) -> Reply:
        reply = self._answer(request, timeout)
        if isinstance(reply, Failure):
            raise MeasurementFailed(reply.text)
        return reply

    def _answer(self, request: Request, timeout: float) -> Reply:
        try:
            self._connection.send_bytes(cloudpickle.dumps(request))
            if self._wait(timeout):
                reply: Reply = pickle.loads(self._connection.recv_bytes())
                return reply
        except (EOFError, OSError):
            return Failure(f"its process ended with exit code {self._exit_code()}. {self._last_words()}")
        self._process.kill()
        return Failure(f"no answer to {type(request).__name__} within {timeout:g} s. {self._last_words()}")

    def _wait(self, timeout: float) -> bool:
        """Whether an answer came. A dead host is noticed too: its workers may hold the line open after it."""
        deadline = time.monotonic() + timeout
        while not self._connection.poll(min(_LOOK_EVERY, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
            if self._process.poll() is not None and not self._connection.poll():
                raise EOFError
        return True

    def _exit_code(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self._process.wait(_EXIT_TIMEOUT)
        return None

    def _last_words(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        tail = os.pread(self._output.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return f"It wrote last: {tail.decode(errors='replace').strip()}" if tail.strip() else "It wrote nothing."


def python_command(*arguments: str) -> list[str]:
    """A fresh interpreter of the same kind. With -P no folder comes before the caller's search path."""
    return [sys.executable, "-P", *arguments]


def python_environment() -> dict[str, str]:
    """The caller's variables and module search path, for a fresh interpreter."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}


def _start_host(fd: int, output: IO[bytes]) -> subprocess.Popen[bytes]:
    """In a process group of its own, so that all of it can be ended at once."""
    return subprocess.Popen(
        python_command("-m", "parallel_envs.bench.host", str(fd)),
        env=python_environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        pass_fds=(fd,),
        process_group=0,
    )
