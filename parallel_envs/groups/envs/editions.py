"""Which file of data, and in what state."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from parallel_envs.groups.envs.faults import fault


@dataclass(frozen=True, slots=True)
class Edition:
    """A file as it is now. Equal editions hold the same, so that what was read of one need not be read again."""

    path: str
    modified: int
    size: int


def edition(path: str) -> Edition:
    try:
        stat = Path(path).stat()
    except OSError as error:
        raise fault(path, None, f"cannot be read ({error}). Give the path of a file that is there.") from error
    return Edition(path, stat.st_mtime_ns, stat.st_size)


def shipped(name: str) -> str:
    """The path of a file that comes with the package."""
    return str(Path(__file__).parent / "data" / name)
