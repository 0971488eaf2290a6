"""The process that one contestant lives in: `python -m parallel_envs.bench.host FD`, started by `driver`.

It imports little, because start methods that begin with a fresh interpreter import the main module again, and because
a contestant shall find what its users' programs load, and no more.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from parallel_envs.bench.protocol import Ask, Close, Failure, Load, Open, Reply, Request, Run, Told, Took

if TYPE_CHECKING:
    from parallel_envs.bench.contestants import Hosted


class Host:
    """Answers requests about the one contestant it was given."""

    def __init__(self) -> None:
        self._contestant: Hosted | None = None

    def answer(self, request: Request) -> Reply:
        """The reply to `request`; whatever the contestant raises becomes a `Failure`."""
        try:
            return self._carry_out(request)
        except Exception as error:  # noqa: BLE001  # whatever a library raises is its row's text
            return Failure(f"{type(error).__name__}: {error}")

    def _carry_out(self, request: Request) -> Reply:
        if isinstance(request, Load):
            self._contestant = request.contestant
        assert self._contestant is not None, "the first request is Load"
        match request:
            case Load():
                return _timed(self._contestant.load)
            case Open():
                return _timed(self._contestant.open)
            case Run(seconds):
                return self._contestant.run(seconds)
            case Ask(method):
                return Told(getattr(self._contestant, method)())
            case Close():
                return _timed(self._contestant.close)


def _timed(action: Callable[[], None]) -> Took:
    start = time.perf_counter()
    action()
    return Took(time.perf_counter() - start)


def serve(connection: Connection) -> None:
    """Answer until the driver hangs up, which it also does by dying."""
    host = Host()
    try:
        while True:
            connection.send_bytes(pickle.dumps(host.answer(pickle.loads(connection.recv_bytes()))))
    except (EOFError, ConnectionError):
        host.answer(Close())


def main(fd: int) -> None:
    """Serve the driver at the other end of this socket."""
    os.set_inheritable(fd, False)  # the contestant's workers have no business with it
    serve(Connection(fd))


if __name__ == "__main__":
    main(int(sys.argv[1]))
