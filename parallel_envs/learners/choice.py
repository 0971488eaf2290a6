"""Which way of running updates `update_mode: auto` has chosen in a run, and since which checkpoint.

The modes come to the same numbers up to rounding only, and which of them is the quickest depends on the machine and the
moment. So a run that is resumed at a checkpoint begins with the mode that it had there.
"""

from __future__ import annotations

import contextlib
import json
from pathlib import Path

from parallel_envs.learners.run_folder import CHOSEN, BadRun, write_json

_MODE, _SINCE = "update_mode", "since_steps"


class Choice:
    """The note of it in a run's folder. `mode` is what was chosen; None: nothing yet."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / CHOSEN
        self.mode: str | None = None

    def go_back(self, steps: int) -> None:
        """The run goes on from the checkpoint at so many steps: what was chosen later was not chosen."""
        mode, since = _read(self._path) if self._path.exists() else (None, 0)
        if since > steps:
            self._path.unlink()
        else:
            self.mode = mode

    def note(self, mode: str | None, steps: int) -> None:
        """Before a checkpoint at so many steps is written. What was noted already stays: it has counted since then."""
        if mode is not None and mode != self.mode:
            write_json(self._path, {_MODE: mode, _SINCE: steps})
            self.mode = mode


def _read(path: Path) -> tuple[str, int]:
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        told = json.loads(path.read_bytes())
        if isinstance(told[_MODE], str) and isinstance(told[_SINCE], int):
            return told[_MODE], told[_SINCE]
    raise BadRun(f'{path} does not say which update mode was chosen, and when. Remove it to have "auto" choose anew.')
