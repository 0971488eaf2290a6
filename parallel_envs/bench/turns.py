"""Contestants side by side: each in its own process, all open at once, stepping one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from parallel_envs.bench.contestants import Hosted, Workload
from parallel_envs.bench.driver import Driver
from parallel_envs.bench.envs import EnvChoice, action_space
from parallel_envs.bench.measure import MeasurementFailed, Series, Slice, Tell, interleave


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How long to measure: `rounds` rounds, in each a slice of `seconds` for every contestant."""

    seconds: float = 0.5
    rounds: int = 9


def make_workload(env: EnvChoice, num_envs: int) -> Workload:
    """Raises `envs.UnknownEnv` if one such environment cannot be made."""
    return Workload(factory=env.factory, action_space=action_space(env), num_envs=num_envs)


def run_in_turns(
    contestants: Mapping[str, Hosted], pace: Pace, tell: Tell = lambda text: None
) -> dict[str, Series[Slice]]:
    """Open all of them, each in its own process, and let them step in turns."""
    with opened(contestants, tell) as (drivers, errors):
        runners = {name: partial(driver.run, pace.seconds) for name, driver in drivers.items()}
        measured = interleave(runners, pace.rounds, tell)
    return {name: measured.get(name) or Series(error=errors[name]) for name in contestants}


@contextmanager
def opened(contestants: Mapping[str, Hosted], tell: Tell) -> Iterator[tuple[dict[str, Driver], dict[str, str]]]:
    """All of them at once, each open in its own process; and the error texts of those that could not be opened."""
    with ExitStack() as stack:
        drivers = {name: stack.enter_context(Driver(each)) for name, each in contestants.items()}
        errors = _open_all(drivers, tell)
        yield {name: driver for name, driver in drivers.items() if name not in errors}, errors


def _open_all(drivers: Mapping[str, Driver], tell: Tell) -> dict[str, str]:
    """The error texts of those that could not be opened."""
    errors: dict[str, str] = {}
    for name, driver in drivers.items():
        tell(f"opening {name}")
        try:
            driver.load()
            driver.open()
        except MeasurementFailed as failure:
            errors[name] = str(failure)
    return errors


def rates_of(series: Series[Slice]) -> tuple[float, ...]:
    """Environment steps per second, round by round."""
    return tuple(each.rate for each in series.samples)
