"""`python -m benchmarks startup`: time to make and reset the environments, and to close them.

The time depends on whether a supervisor (or fork server) already runs and has finished its imports. A warm line has one
from an earlier use in the same program; a cold line begins in a fresh program, as the first use of a library does.
Imports in the user's own program are never counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

from benchmarks.peers import GymnasiumAsync
from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.measure import Driver, MeasurementFailed, Quartiles, Series, Tell, interleave, spread
from parallel_envs.bench.runners import Ours, Runner, Workload, make_workload


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds of one opening and closing."""

    open_seconds: float
    close_seconds: float


@dataclass(frozen=True)
class Line:
    """Library and start method of one line of the table."""

    name: str
    contestant: Callable[[Workload], Runner]
    cold: bool = False


OURS_WARM = "parallel_envs, forkserver, warm"
GYMNASIUM_FORK = "gymnasium, fork"

LINES: tuple[Line, ...] = (
    Line(OURS_WARM, partial(Ours, context="forkserver")),
    Line("parallel_envs, forkserver, cold", partial(Ours, context="forkserver"), cold=True),
    Line("parallel_envs, fork", partial(Ours, context="fork")),
    Line("parallel_envs, spawn", partial(Ours, context="spawn")),
    Line(GYMNASIUM_FORK, partial(GymnasiumAsync, context="fork")),
    Line("gymnasium, forkserver, warm", partial(GymnasiumAsync, context="forkserver")),
)


@dataclass(frozen=True, kw_only=True)
class StartRow:
    """Medians of one line. `to_gymnasium` is its opening time divided by that of Gymnasium with fork."""

    name: str
    open_seconds: Quartiles | None = None
    close_seconds: Quartiles | None = None
    to_gymnasium: float | None = None
    error: str | None = None


def measure_startup(
    env: EnvChoice,
    num_envs: int,
    rounds: int,
    lines: Sequence[Line] = LINES,
    tell: Tell = lambda text: None,
) -> tuple[StartRow, ...]:
    """Measure all lines in turns, with one worker per environment. Return a row for each line."""
    workload = make_workload(env, num_envs)
    with ExitStack() as stack:
        samplers = {line.name: _sampler(line, line.contestant(workload), stack) for line in lines}
        series = interleave(samplers, rounds, tell)
    return _rows(series)


def _sampler(line: Line, contestant: Runner, stack: ExitStack) -> Callable[[], Start]:
    if line.cold:
        return partial(_cold_start, contestant)
    return _WarmStart(stack.enter_context(Driver(contestant)))


def _cold_start(contestant: Runner) -> Start:
    with Driver(contestant) as driver:
        driver.load()
        return _start(driver)


class _WarmStart:
    """Sampler that starts again and again in one program. The first start is not counted."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._warm = False

    def __call__(self) -> Start:
        if not self._warm:
            self._driver.load()
            _start(self._driver)
            self._warm = True
        return _start(self._driver)


def _start(driver: Driver) -> Start:
    return Start(open_seconds=driver.open(), close_seconds=driver.close())


def _rows(series: Mapping[str, Series[Start]]) -> tuple[StartRow, ...]:
    opened = {name: [each.open_seconds for each in one.samples] for name, one in series.items()}
    closed = {name: [each.close_seconds for each in one.samples] for name, one in series.items()}
    base = opened.get(GYMNASIUM_FORK)
    return tuple(
        StartRow(
            name=name,
            open_seconds=spread(opened[name]) if opened[name] else None,
            close_seconds=spread(closed[name]) if closed[name] else None,
            to_gymnasium=spread(opened[name]).median / spread(base).median if opened[name] and base else None,
            error=one.error,
        )
        for name, one in series.items()
    )


def ours_to_gymnasium(rows: Sequence[StartRow]) -> float:
    """Return the opening time of parallel_envs with a warm supervisor, as a multiple of Gymnasium's with fork."""
    row = next(row for row in rows if row.name == OURS_WARM)
    if row.to_gymnasium is None:
        raise MeasurementFailed(row.error or f"{GYMNASIUM_FORK} gave no figure")
    return row.to_gymnasium
