"""Locks of folders: one process at a time is at a run."""

from __future__ import annotations

import os
from pathlib import Path

from parallel_envs.learners.run_folder import BadRun


class Claim:
    """Keeps all others from a folder until it is given up or the process ends; nobody, where the system has no locks.

    Raises BadRun if another has it.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = None
        try:
            import fcntl
        except ImportError:
            return  # the system has no such locks
        self._descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.give_up()
            raise BadRun(
                f"A process is at the run in {folder} already. End it first, or begin a run of its own."
            ) from None
        except OSError:
            self.give_up()

    def give_up(self) -> None:
        """May be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
