"""Process that hosts one runner: `python -m parallel_envs.bench.host FD`, started by `turns.Driver`.

The module imports little: start methods that begin with a fresh interpreter import the main module again, and a runner
should find what its users' programs load, and nothing else.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from parallel_envs.bench.messages import Call, Close, Failure, Load, Open, Reply, Request, Returned, Run, Took

if TYPE_CHECKING:
    from parallel_envs.bench.runners import Hosted


class Host:
    """The runner of this process, and the answers to requests about it."""

    def __init__(self) -> None:
        self._runner: Hosted | None = None

    def answer(self, request: Request) -> Reply:
        """Carry out `request`. An exception of the runner becomes a `Failure`."""
        try:
            if isinstance(request, Load):
                self._runner = request.runner
            assert self._runner is not None, "the first request is Load"
            match request:
                case Load():
                    return _timed(self._runner.load)
                case Open():
                    return _timed(self._runner.open)
                case Run(seconds):
                    return self._runner.run(seconds)
                case Call(method):
                    return Returned(getattr(self._runner, method)())
                case Close():
                    return _timed(self._runner.close)
        except Exception as error:  # noqa: BLE001  # any error of a library becomes the text of its row
            return Failure(f"{type(error).__name__}: {error}")


def _timed(action: Callable[[], None]) -> Took:
    start = time.perf_counter()
    action()
    return Took(time.perf_counter() - start)


def serve(connection: Connection) -> None:
    """Answer requests until the other side closes the connection or dies; then close the runner."""
    host = Host()
    try:
        while True:
            connection.send_bytes(pickle.dumps(host.answer(pickle.loads(connection.recv_bytes()))))
    except (EOFError, ConnectionError):
        host.answer(Close())


def main(fd: int) -> None:
    """Serve the process at the other end of the socket `fd`."""
    os.set_inheritable(fd, False)  # the runner's own workers must not hold the socket open
    serve(Connection(fd))


if __name__ == "__main__":
    main(int(sys.argv[1]))
