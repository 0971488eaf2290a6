"""`bench machine`: what worker processes cost on this machine, and the facts that every JSON file of results holds.

Three figures say whether workers can pay off here:

    cores at once       how many times faster `num_cores` workers compute than one process; below the number of cores
                        where other programs, a container's limit or hyper-threads share them
    worker round trip   time of a step of one empty environment in a worker, minus the same step in the caller
    break-even          step time of an environment from which `num_cores` workers are faster than the plain loop
"""

from __future__ import annotations

import os
import platform
import time
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from parallel_envs.bench.envs import resolve
from parallel_envs.bench.measure import MeasurementFailed, Pace, Quartiles, Tell, run_in_turns, spread
from parallel_envs.bench.runners import InProcess, Ours, Runner, make_workload
from parallel_envs.engine import num_cores

_STAT = Path("/proc/stat")
_BUSY_ENV = "spin:1000"
_EMPTY_ENV = "spin:0"
_DISTRIBUTIONS = (
    *("parallel-envs", "gymnasium", "numpy", "stable-baselines3", "tianshou", "torchrl", "torch"),
    *("mujoco", "ale-py", "pettingzoo", "mpe2", "supersuit", "agilerl", "mettagrid"),
)


@dataclass(frozen=True, kw_only=True)
class MachineRow:
    """Measured figure of this machine, and its meaning in a few words."""

    name: str
    unit: str
    spread: Quartiles
    meaning: str


def measure_machine(pace: Pace, tell: Tell = lambda text: None) -> tuple[MachineRow, ...]:
    """Measure the three figures of the module docstring. Raise `MeasurementFailed` if a runner fails."""
    cores = num_cores()
    several = max(2, cores)
    busy = make_workload(resolve(_BUSY_ENV), several)
    empty, one = make_workload(resolve(_EMPTY_ENV), several), make_workload(resolve(_EMPTY_ENV), 1)
    runners: dict[str, Runner] = {
        "busy loop": InProcess(busy),
        "busy workers": Ours(busy),
        "one here": Ours(one, backend="serial"),
        "one worker": Ours(one),
        "loop": Ours(empty, backend="serial"),
        "workers": Ours(empty),
    }
    measured = run_in_turns(runners, pace, tell)
    for name, series in measured.items():
        if series.error is not None:
            raise MeasurementFailed(f"{name}: {series.error}")
    seconds = {name: [each.seconds / each.steps for each in series.samples] for name, series in measured.items()}

    at_once = [loop / workers for loop, workers in zip(seconds["busy loop"], seconds["busy workers"], strict=True)]
    round_trip = [1e6 * (far - near) for far, near in zip(seconds["one worker"], seconds["one here"], strict=True)]
    # A loop over n envs takes n * (c + near), workers take c + n * far: equal at c = n * (far - near) / (n - 1).
    even = [
        1e6 * several * (far - near) / (several - 1)
        for far, near in zip(seconds["workers"], seconds["loop"], strict=True)
    ]
    added = "time that a worker adds to a step"
    share = f"of {cores} that this process may use"
    wins = f"a step of one environment that takes longer is worth a worker, with {several} of each"
    return (
        MachineRow(name="cores at once", unit="", spread=spread(at_once), meaning=share),
        MachineRow(name="worker round trip", unit="us", spread=spread(round_trip), meaning=added),
        MachineRow(name="break-even", unit="us", spread=spread(even), meaning=wins),
    )


def facts() -> dict[str, object]:
    """Return cores, cores that other programs use, system, Python and library versions. No name, path or address."""
    versions = {}
    for name in _DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {
        "cores": num_cores(),
        "busy_cores_beside": busy_cores(),
        "processor": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions,
    }


def busy_cores(seconds: float = 0.2) -> float | None:
    """Return how many cores other programs keep busy; None where the system does not say. This process sleeps."""
    if not _STAT.exists():
        return None
    before = _STAT.read_text()
    time.sleep(seconds)
    ticks = [[int(word) for word in text.split("\n", 1)[0].split()[1:9]] for text in (before, _STAT.read_text())]
    passed = [end - begin for begin, end in zip(*ticks, strict=True)]
    idle = passed[3] + passed[4]  # idle, and waiting for a disk
    return float(round((sum(passed) - idle) / max(1, sum(passed)) * (os.cpu_count() or 1), 2))
