"""What the system says of processes, whoever's they are."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.engine.asking import ends_within
from tests.engine.scripts import environment, written

QUIET_LOOKS = 3
"""A process that is just being born has no environment to look at for a moment: one look may miss it."""


def stops_within(pid: int, seconds: float) -> bool:
    """Whether a process is stopped by then."""
    deadline = time.monotonic() + seconds
    while (state := state_of(pid)) != "T" and time.monotonic() < deadline:
        os.sched_yield()
    return state == "T"


def state_of(pid: int) -> str:
    """The letter of its state; empty if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except OSError:
        return ""


def marked(mark: str) -> set[int]:
    """The living processes that have this in their environment."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes() and state_of(int(folder.name)) != "Z":
                found.add(int(folder.name))
        except OSError:  # it has just ended, or belongs to someone else
            continue
    return found


def left_after(seconds: float, mark: str) -> set[int]:
    """The processes of `marked` that have not ended by then; those too that show only now that they were just born."""
    deadline, quiet_looks = time.monotonic() + seconds, 0
    while quiet_looks < QUIET_LOOKS and time.monotonic() < deadline:
        quiet_looks = 0 if marked(mark) else quiet_looks + 1
        time.sleep(0.02)
    return marked(mark)


def all_end_within(pids: set[int], seconds: float) -> bool:
    """Whether all of them have ended by then."""
    deadline = time.monotonic() + seconds
    return all(ends_within(pid, max(deadline - time.monotonic(), 0.0)) for pid in pids)


@contextmanager
def running(
    folder: Path, script: str, *arguments: str, stderr: int | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A script, and the mark that it and all its processes bear."""
    mark = f"PARALLEL_ENVS_ORPHAN={uuid.uuid4().hex}"
    variables = {**environment(), **dict([mark.split("=")])}
    command = [sys.executable, str(written(folder, script)), *arguments]
    with subprocess.Popen(
        command, text=True, cwd=folder, env=variables, stdout=subprocess.PIPE, stderr=stderr
    ) as process:
        try:
            yield process, mark
        finally:
            process.kill()
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)
