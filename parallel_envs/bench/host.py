"""Process that hosts one runner: `python -m parallel_envs.bench.host FD`, started by `turns.Driver`.

A request is a pair `(method, arguments)`; the first one is `("load", [runner])`. A reply is a triple `(value, seconds,
error)`: what the method returned, the time that it took, and the text of its exception, or None.

The module imports little: start methods that begin with a fresh interpreter import the main module again, and a runner
should find what its users' programs load, and nothing else.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import time
from multiprocessing.connection import Connection
from typing import Any


def serve(connection: Connection) -> None:
    """Answer requests until the other side closes the connection or dies; then close the runner."""
    runner: Any = None
    try:
        while True:
            method, arguments = pickle.loads(connection.recv_bytes())
            start = time.perf_counter()
            try:
                if method == "load":
                    runner, *arguments = arguments
                value, error = getattr(runner, method)(*arguments), None
            except Exception as failure:  # noqa: BLE001  # any error of a library becomes the text of its row
                value, error = None, f"{type(failure).__name__}: {failure}"
            connection.send_bytes(pickle.dumps((value, time.perf_counter() - start, error)))
    except (EOFError, ConnectionError):
        with contextlib.suppress(Exception):
            runner.close()


if __name__ == "__main__":
    os.set_inheritable(int(sys.argv[1]), False)  # the runner's own workers must not hold the socket open
    serve(Connection(int(sys.argv[1])))
