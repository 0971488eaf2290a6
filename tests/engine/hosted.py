"""Objects for workers to host, each of which shows one thing. Workers import this module by its name."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parallel_envs.engine import SharedBlock, worker
from tests.gates import wait_at


class Echo:
    """Gives back what it is told, and remembers it. A bell of 0 leaves nothing to say."""

    def __init__(self) -> None:
        self.heard: list[Any] = []

    def ring(self, argument: int) -> int | None:
        self.heard.append(argument)
        return argument or None

    def echo(self, value: Any) -> Any:
        self.heard.append(value)
        return value

    def sizes(self, *values: bytes) -> list[int]:
        return [len(value) for value in values]

    def arguments(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        return args, kwargs

    def history(self) -> list[Any]:
        return self.heard


class Runner:
    """Runs functions."""

    def run(self, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


class Gated:
    """Waits at a gate before it gives back what it was told."""

    def __init__(self, gate: Path) -> None:
        self.gate = gate

    def ring(self, argument: int) -> int:
        wait_at(self.gate)
        return argument

    def swallow(self, data: bytes) -> int:
        return len(data)


class Closing:
    """Writes a line to a file when it is closed."""

    def __init__(self, file: Path, line: str = "closed") -> None:
        self.file, self.line = file, line

    def close(self) -> None:
        with self.file.open("a") as file:
            print(self.line, file=file)


class TwoArgumentError(Exception):
    """An error that pickle cannot make again."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class HoldingError(Exception):
    """An error that holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class UnprintableError(Exception):
    """An error that cannot tell its message."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


ERRORS: dict[str, Callable[[], BaseException]] = {
    "plain": lambda: ValueError("no such thing"),
    "unpicklable": HoldingError,
    "of two arguments": lambda: TwoArgumentError("one", "two"),
    "unprintable": UnprintableError,
    "exit": lambda: SystemExit(3),
    "interrupt": lambda: KeyboardInterrupt("struck here"),
    "of no known base": lambda: BaseException("bare"),
}
TOLD: dict[str, tuple[str, str]] = {
    "plain": ("ValueError", "no such thing"),
    "unpicklable": ("tests.engine.hosted.HoldingError", "holds a lock"),
    "of two arguments": ("tests.engine.hosted.TwoArgumentError", "one and two"),
    "unprintable": ("tests.engine.hosted.UnprintableError", "<message could not be printed: RuntimeError>"),
    "exit": ("SystemExit", "3"),
    "interrupt": ("KeyboardInterrupt", "struck here"),
    "of no known base": ("BaseException", "bare"),
}
"""What a failure tells of each of them: type and message."""


class Raiser:
    """Raises the error of that name, or of that position."""

    def __init__(self, at_once: str | None = None) -> None:
        if at_once is not None:
            self.fail(at_once)

    def ring(self, argument: int) -> None:
        raise list(ERRORS.values())[argument]()

    def fail(self, name: str) -> None:
        raise ERRORS[name]()


ENDS: dict[str, tuple[Callable[[], object], int]] = {
    "exit": (lambda: os._exit(7), 7),
    "exit of 0": (lambda: os._exit(0), 0),
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), -signal.SIGKILL),
    "SIGSEGV": (lambda: os.kill(os.getpid(), signal.SIGSEGV), -signal.SIGSEGV),
    "SIGTERM": (lambda: os.kill(os.getpid(), signal.SIGTERM), -signal.SIGTERM),
}
"""Ways for a worker to end, each with the exit code that is told of it."""


class Mortal(Echo):
    """Ends its worker in the way of that name."""

    def __init__(self, at_once: str | None = None) -> None:
        super().__init__()
        if at_once is not None:
            self.end(at_once)

    def ring(self, argument: int) -> int | None:
        if argument >= LAST_WORDS:
            self.end(list(ENDS)[argument - LAST_WORDS])
        return super().ring(argument)

    def end(self, way: str) -> None:
        ENDS[way][0]()
        threading.Event().wait()

    def end_deep_inside(self, depth: int, way: str) -> None:
        self.end(way) if depth == 0 else self.end_deep_inside(depth - 1, way)


LAST_WORDS = 1 << 20
"""From here on a `Mortal`'s bells mean the ways to end."""


class Talker:
    """Writes to where a worker writes."""

    def say(self, *lines: str) -> None:
        for line in lines:
            sys.stdout.write(f"{line}\n")

    def complain(self, *lines: str) -> None:
        for line in lines:
            sys.stderr.write(f"{line}\n")

    def write(self, fd: int, data: bytes) -> None:
        os.write(fd, data)

    def last_words(self, *lines: str) -> None:
        self.say(*lines)
        os._exit(3)


class Founder:
    """Starts processes of its own."""

    def start(self) -> int:
        """A program that goes on for ever. Its pid."""
        return subprocess.Popen(["sleep", "1000"]).pid

    def fork(self) -> int:
        """A child that holds all that its worker holds, and goes on for ever. Its pid."""
        pid = os.fork()
        if pid == 0:
            threading.Event().wait()
        return pid

    def much(self, count: int) -> bytes:
        return bytes(count)

    def break_off(self, begun: Path, gate: Path) -> None:
        """From now on a worker's reply ends in the middle: it opens the gate `begun`, waits at the other, and ends."""

        def half_a_frame(channel: socket.socket, data: bytes) -> None:
            channel.sendall(len(data).to_bytes(8, "little") + data[: len(data) // 2])
            begun.write_bytes(b".")
            wait_at(gate)
            os.kill(os.getpid(), signal.SIGKILL)

        vars(worker)["send_frame"] = half_a_frame


def refuse(maker: int) -> None:
    """Stands in a pickle for what cannot be made again."""
    raise ValueError(f"made by {maker}")


def links(kind: str) -> set[str]:
    """What those descriptors of this process lead to that are of this kind, such as "pipe:"."""
    found = (str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return {target for target in found if target.startswith(kind)}


class BlockKeeper:
    """Reads from and writes to shared memory that it was given."""

    def __init__(self, block: SharedBlock) -> None:
        self.array = block.array("f8", (10,))

    def read(self, position: int) -> float:
        return float(self.array[position])

    def write(self, position: int, value: float) -> None:
        self.array[position] = value
