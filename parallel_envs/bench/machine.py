"""What a figure was measured on: it stands in every JSON file. No name, no path, no address."""

from __future__ import annotations

import os
import platform
import time
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

Needs = tuple[tuple[str, str], ...]
"""Modules that must be there, each with what to pip install if it is not."""

_STAT = Path("/proc/stat")
_DISTRIBUTIONS = (
    *("parallel-envs", "gymnasium", "numpy", "stable-baselines3", "tianshou", "torchrl", "torch"),
    *("mujoco", "ale-py", "pettingzoo", "mpe2", "supersuit", "agilerl", "mettagrid"),
)


def facts() -> dict[str, object]:
    """Cores and how many of them others use now, system, Python, and the versions of what takes part."""
    return {
        "cores": available_cores(),
        "busy_cores_beside": busy_cores(),
        "processor": platform.machine(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": {name: found for name in _DISTRIBUTIONS if (found := _version(name)) is not None},
    }


def available_cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def first_missing(needs: Needs) -> str | None:
    """What to pip install first; None if everything is here. Imports nothing."""
    return next((pip for module, pip in needs if find_spec(module) is None), None)


def busy_cores(seconds: float = 0.2) -> float | None:
    """How many cores are at work, with this process at rest: what others take from a measurement.

    None where the system does not tell.
    """
    if not _STAT.exists():
        return None
    busy_before, total_before = _ticks()
    time.sleep(seconds)
    busy, total = _ticks()
    passed = max(1, total - total_before)
    return round((busy - busy_before) / passed * (os.cpu_count() or 1), 2)


def _ticks() -> tuple[int, int]:
    """Busy and all ticks of the whole machine since it started: the first line of /proc/stat."""
    user, nice, system, idle, waiting, *rest = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:9])
    busy = user + nice + system + sum(rest)
    return busy, busy + idle + waiting


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
