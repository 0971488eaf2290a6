"""`metrics.jsonl`: what came of each update, a line of JSON for each or for each few."""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from parallel_envs.files import open_to_append, write_whole
from parallel_envs.learners.run_folder import METRICS, BadRun

Agent = Hashable

_log = logging.getLogger(__name__)


class MetricLines:
    """The file of a run, open to be added to.

    A line that cannot be written, as on a full disk, waits for the next call: `add` warns, and `sync` raises. The file
    holds whole lines at any time.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._waiting = b""
        self._has_warned = False
        self._open()

    def _open(self) -> None:
        self._file = open_to_append(self._folder / METRICS)
        self._end = self._file.seek(0, os.SEEK_END)  # where the last whole line ends

    def add(self, counts: Mapping[str, Any], agents: Mapping[Agent, Mapping[str, float]]) -> None:
        """A line: `counts`, and each agent's metrics. What is not finite becomes null."""
        line = {**counts, "agents": {str(agent): _finite(metrics) for agent, metrics in agents.items()}}
        self._waiting += _as_line(line).encode()
        try:
            self._write()
        except OSError as error:
            if not self._has_warned:
                self._has_warned = True
                _log.warning("Lines of %s wait in memory until they can be written: %s", METRICS, str(error))

    def sync(self) -> None:
        """Have the disk hold all of them. Raises OSError if it cannot; the lines then go on waiting."""
        self._write()
        os.fsync(self._file.fileno())

    def _write(self) -> None:
        """Append the lines that wait, all or none."""
        try:
            left = memoryview(self._waiting)
            while left:
                left = left[self._file.write(left) :]
        except OSError:
            with contextlib.suppress(OSError):
                self._file.truncate(self._end)  # what comes later must not follow half a line
            raise
        self._end += len(self._waiting)
        self._waiting, self._has_warned = b"", False

    def drop_after(self, steps: int) -> None:
        """Go on behind the lines of so many steps. Raises BadRun, and changes nothing, if one is none of ours."""
        kept = [line for line in read_metrics(self._folder) if line["steps"] <= steps]
        self._file.close()
        write_whole(self._folder / METRICS, lambda file: file.write("".join(map(_as_line, kept)).encode()))
        self._open()

    def close(self) -> None:
        """Write what waits, if that is possible by now, and close the file. May be called again."""
        if not self._file.closed:
            with contextlib.suppress(OSError):
                self._write()
        self._file.close()


def read_metrics(folder: str | Path) -> list[dict[str, Any]]:
    """The lines of `metrics.jsonl`. A line that was cut off by the end of the process is left out.

    Raises BadRun, with the line's number, for one that is no line of metrics.
    """
    path = Path(folder) / METRICS
    *whole, _ = path.read_bytes().split(b"\n") if path.exists() else [b""]
    return [_read(line, number, path) for number, line in enumerate(whole, 1)]


def _read(line: bytes, number: int, path: Path) -> dict[str, Any]:
    try:
        told = json.loads(line.decode())
        if isinstance(told, dict) and isinstance(told["steps"], int):
            return told
    except (ValueError, KeyError, RecursionError):
        pass
    text = line.decode(errors="backslashreplace").strip()[:80]
    raise BadRun(f"Line {number} of {path} is no line of metrics: {text!r}. Remove it, and resume again.")


def _as_line(told: Mapping[str, Any]) -> str:
    return json.dumps(told) + "\n"


def _finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    return {name: float(value) if math.isfinite(value) else None for name, value in metrics.items()}
