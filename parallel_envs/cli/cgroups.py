"""What a container or a service manager allows this process: limits of its control groups, versions 1 and 2.

A limit may stand at the process's own group or at any above it; the tightest one counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 60  # version 1 says "no limit" by a number near the largest


@dataclass(frozen=True, slots=True)
class Limits:
    """None: no limit."""

    cores: float | None = None
    memory_bytes: int | None = None
    """Of all processes of the group together."""
    memory_used_bytes: int = 0
    processes: int | None = None
    """Threads count as processes."""
    processes_used: int = 0


def limits(mount: Path = _MOUNT, own: Path = _OWN) -> Limits:
    """The limits that hold for this process. Nothing where the system has no control groups."""
    paths = _paths(own)
    memory = _tightest(_groups(mount, paths, "memory"), ("memory.max", "memory.limit_in_bytes"))
    processes = _tightest(_groups(mount, paths, "pids"), ("pids.max",))
    cores = [share for group in _groups(mount, paths, "cpu") if (share := _cores(group)) is not None]
    return Limits(
        cores=min(cores, default=None),
        memory_bytes=memory[0] if memory else None,
        memory_used_bytes=_used(memory[1], ("memory.current", "memory.usage_in_bytes")) if memory else 0,
        processes=processes[0] if processes else None,
        processes_used=_used(processes[1], ("pids.current",)) if processes else 0,
    )


def _paths(own: Path) -> dict[str, str]:
    """By controller the group's path; that of version 2 under the empty name."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return {}
    fields = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return {controller: path for _, controllers, path in fields for controller in controllers.split(",")}


def _groups(mount: Path, paths: dict[str, str], controller: str) -> Iterator[Path]:
    """The folders of the group and of those above it, in whichever version rules this controller."""
    for root, path in ((mount / controller, paths.get(controller)), (mount, paths.get(""))):
        if path is not None:
            group = root / path.lstrip("/")
            yield from (folder for folder in (group, *group.parents) if folder == root or root in folder.parents)


def _tightest(groups: Iterator[Path], names: tuple[str, ...]) -> tuple[int, Path] | None:
    found = [(limit, group) for group in groups if (limit := _number(group, names)) is not None]
    return min(found, key=lambda one: one[0], default=None)


def _used(group: Path, names: tuple[str, ...]) -> int:
    return _number(group, names) or 0


def _number(group: Path, names: tuple[str, ...]) -> int | None:
    """The number in the first of these files that is there. None: none, or no limit."""
    for name in names:
        words = _words(group / name)
        if words and words[0].isdecimal() and int(words[0]) < _UNLIMITED:
            return int(words[0])
    return None


def _cores(group: Path) -> float | None:
    """How many cores' worth of time the group gets; in version 2 quota and period stand in one file."""
    words = _words(group / "cpu.max") or [
        *_words(group / "cpu.cfs_quota_us"),
        *_words(group / "cpu.cfs_period_us"),
    ]
    if len(words) != 2 or not all(word.isdecimal() for word in words):  # "max", or -1, is no limit
        return None
    return int(words[0]) / int(words[1])


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []
