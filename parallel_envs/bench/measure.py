"""Fair comparisons: runners that step in turns, each in a process of its own, and the arithmetic of their figures.

Slices of steps, rounds in rotating order, medians, quartiles and paired ratios. `Driver` starts the process of a runner
itself instead of through `parallel_envs.engine`. The engine is one of the things measured, and a runner should find a
process as its users have it: fresh, with its own library and no other.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, Any, Generic, TypeVar

import cloudpickle

T = TypeVar("T")
Clock = Callable[[], float]
Tell = Callable[[str], None]

WARM_UP_SHARE = 0.1
"""Share of a slice that runs before it and is not counted: caches and clock speeds recover from the others' turns."""


class MeasurementFailed(Exception):
    """Raised when a runner cannot be measured. Its text goes into that runner's row and the run goes on."""


@dataclass(frozen=True, slots=True)
class Slice:
    """Number of environment steps made in `seconds`, and the processor time that the calling process used."""

    steps: int
    seconds: float
    cpu_seconds: float = field(default=0.0, compare=False)

    @property
    def rate(self) -> float:
        return self.steps / self.seconds

    @property
    def cpu_share(self) -> float:
        """Share of the time in which the calling process itself was busy; 1 is one whole core."""
        return self.cpu_seconds / self.seconds


@dataclass(frozen=True, slots=True)
class Quartiles:
    """Median and quartiles of some samples."""

    median: float
    lower_quartile: float
    upper_quartile: float
    num_samples: int


@dataclass(slots=True)
class Series(Generic[T]):
    """Samples of one runner; `error` says why it stopped, if it did."""

    samples: list[T] = field(default_factory=list)
    error: str | None = None


def run_for(step: Callable[[], int], seconds: float, clock: Clock = time.perf_counter) -> Slice:
    """Call `step`, which returns how many environment steps it made, to its end until `seconds` have passed."""
    steps = 0
    cpu_start = time.process_time()
    start = now = clock()
    while now - start < seconds:
        steps += step()
        now = clock()
    return Slice(steps, now - start, time.process_time() - cpu_start)


def interleave(
    samplers: Mapping[str, Callable[[], T]], rounds: int, tell: Tell = lambda text: None
) -> dict[str, Series[T]]:
    """Take one sample of each in every round. A sampler that raises `MeasurementFailed` is left out from then on."""
    series: dict[str, Series[T]] = {name: Series() for name in samplers}
    names = deque(samplers)
    for number in range(1, rounds + 1):
        for name in tuple(names):
            if series[name].error is not None:
                continue
            tell(f"round {number} of {rounds}: {name}")
            try:
                series[name].samples.append(samplers[name]())
            except MeasurementFailed as failure:
                series[name].error = str(failure)
        names.rotate(-1)  # the first of a round is the last of the next
    return series


def spread(samples: Sequence[float]) -> Quartiles:
    """Return median and quartiles, interpolated between ranks, of at least one sample."""
    if len(samples) == 1:
        return Quartiles(samples[0], samples[0], samples[0], 1)
    lower, middle, upper = statistics.quantiles(samples, n=4, method="inclusive")
    return Quartiles(middle, lower, upper, len(samples))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Quartiles | None:
    """Return the spread of ours / theirs, taken round by round so that a slow round slows both sides.

    Rounds that only one side finished are left out. Return None if no round is left.
    """
    pairs = list(zip(ours, theirs, strict=False))
    return spread([mine / other for mine, other in pairs]) if pairs else None


# ---- processes -------------------------------------------------------------------------------------------------------

_OPEN_TIMEOUT = 300.0
_RUN_TIMEOUT = 60.0  # on top of the seconds to run: one vector step may be slow
_CLOSE_TIMEOUT = 30.0
_EXIT_TIMEOUT = 5.0
_CHECK_INTERVAL = 1.0
_TAIL_BYTES = 600


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Length of a measurement: `rounds` rounds with one slice of `seconds` for each runner."""

    seconds: float = 0.5
    rounds: int = 9


def run_in_turns(runners: Mapping[str, Any], pace: Pace, tell: Tell = lambda text: None) -> dict[str, Series[Slice]]:
    """Open each runner in its own process and let them step in turns. A runner that fails keeps its error."""
    with opened(runners, tell) as (drivers, errors):
        samplers = {name: partial(driver.run, pace.seconds) for name, driver in drivers.items()}
        measured = interleave(samplers, pace.rounds, tell)
    return {name: measured.get(name) or Series(error=errors[name]) for name in runners}


@contextmanager
def opened(runners: Mapping[str, Any], tell: Tell) -> Iterator[tuple[dict[str, Driver], dict[str, str]]]:
    """Open every runner in its own process. Yield the drivers that opened and the error texts of the others."""
    with ExitStack() as stack:
        drivers = {name: stack.enter_context(Driver(each)) for name, each in runners.items()}
        errors: dict[str, str] = {}
        for name, driver in drivers.items():
            tell(f"opening {name}")
            try:
                driver.load()
                driver.open()
            except MeasurementFailed as failure:
                errors[name] = str(failure)
        yield {name: driver for name, driver in drivers.items() if name not in errors}, errors


def rates_of(series: Series[Slice]) -> tuple[float, ...]:
    """Return the environment steps per second of each round."""
    return tuple(each.rate for each in series.samples)


class Driver:
    """Runner in a process of its own. A `with` block ends the process.

    Methods raise `MeasurementFailed` with the runner's own text if the runner raises, dies or does not answer.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._output: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by stop()
        near, far = socket.socketpair()
        with far:
            self._process = subprocess.Popen(
                python_command("-m", "parallel_envs.bench.host", str(far.fileno())),
                env=python_environment(),
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
                pass_fds=(far.fileno(),),
                process_group=0,  # so that stop() can kill the process and its children at once
            )
        self._connection = Connection(near.detach())

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def load(self) -> None:
        """Send the runner to its process and let it import its library."""
        self._request("load", _OPEN_TIMEOUT, self._runner)

    def open(self) -> float:
        """Make and reset the environments; return the seconds it took."""
        return self._request("open", _OPEN_TIMEOUT)[1]

    def run(self, seconds: float) -> Slice:
        """Warm up, then step for `seconds`."""
        value, _ = self._request("run", 2 * seconds + _RUN_TIMEOUT, seconds)
        assert isinstance(value, Slice), value
        return value

    def ask(self, method: str) -> Any:
        """Call a method of the runner, which has a minute to return, and return its value."""
        return self._request(method, _RUN_TIMEOUT)[0]

    def close(self) -> float:
        """Close the environments; return the seconds it took. They can be opened again."""
        return self._request("close", _CLOSE_TIMEOUT)[1]

    def stop(self) -> None:
        """Ask the process to close, then kill it and its children. Never raises."""
        with contextlib.suppress(MeasurementFailed):
            self.close()
        self._connection.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_EXIT_TIMEOUT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._output.close()

    def _request(self, method: str, timeout: float, *arguments: Any) -> tuple[Any, float]:
        """Return a method's value and its seconds. Raise `MeasurementFailed` on an error, a death or a deadline."""
        try:
            self._connection.send_bytes(cloudpickle.dumps((method, arguments)))
            if self._wait(timeout):
                value, seconds, error = pickle.loads(self._connection.recv_bytes())
                if error is not None:
                    raise MeasurementFailed(error)
                return value, seconds
        except (EOFError, OSError):
            code = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_EXIT_TIMEOUT)
            raise MeasurementFailed(f"its process ended with exit code {code}. {self._last_output()}") from None
        self._process.kill()
        raise MeasurementFailed(f"no answer to `{method}` within {timeout:g} s. {self._last_output()}")

    def _wait(self, timeout: float) -> bool:
        """Return True once a reply can be read, False after `timeout`. Raise EOFError if the process is dead."""
        deadline = time.monotonic() + timeout  # the process is checked, too: its workers may hold the connection open
        while not self._connection.poll(min(_CHECK_INTERVAL, max(0.0, deadline - time.monotonic()))):
            if time.monotonic() >= deadline:
                return False
            if self._process.poll() is not None and not self._connection.poll():
                raise EOFError
        return True

    def _last_output(self) -> str:
        size = os.fstat(self._output.fileno()).st_size
        tail = os.pread(self._output.fileno(), _TAIL_BYTES, max(0, size - _TAIL_BYTES))
        return f"It wrote last: {tail.decode(errors='replace').strip()}" if tail.strip() else "It wrote nothing."


def python_command(*arguments: str) -> list[str]:
    """Return the command of a fresh interpreter. -P puts no folder in front of the caller's search path."""
    return [sys.executable, "-P", *arguments]


def python_environment() -> dict[str, str]:
    """Return the caller's variables and module search path for a fresh interpreter."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path)}
