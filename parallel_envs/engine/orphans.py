"""Processes that a worker's objects have started, and how none of them outlives the worker.

Most are in the worker's process group and end with it. One in a session of its own is found by descent: the keeper and
its workers take in whatever lies below them when its parent ends. So those of a living worker are always below it, and
those of a worker that has ended below the keeper.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path

from parallel_envs.engine.poller import readable

_PR_SET_CHILD_SUBREAPER = 36
_END_SECONDS = 0.5  # for one that was killed to end: longer only where the system itself is stuck


def take_in_orphans() -> None:
    """Become the parent of all processes below this one whose own parent ends. Only Linux knows how."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> set[int]:
    """The processes whose parent this one is; none where the system does not tell."""
    found: set[int] = set()
    for thread in Path("/proc/self/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has just ended
            found.update(map(int, thread.read_text().split()))
    return found


def end_children(spared: Collection[int] = ()) -> None:
    """Kill the children of this process and all below them, but those that are `spared`."""
    tried = set(spared)
    while victims := children() - tried:  # those of the ones that were killed have become children in turn
        for pid in victims:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        for pid in victims:
            _reap(pid)
        tried |= victims


def _reap(pid: int) -> None:
    with contextlib.suppress(OSError):  # someone else has waited for it
        sentinel = os.pidfd_open(pid)
        try:
            if readable(sentinel, _END_SECONDS):
                os.waitpid(pid, os.WNOHANG)
        finally:
            os.close(sentinel)
