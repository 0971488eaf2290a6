"""`metrics.jsonl`: what came of each update, a line of JSON for each or for each few."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from parallel_envs.files import open_to_append, write_whole
from parallel_envs.learners.run_folder import METRICS, BadRun

Agent = Hashable


class MetricLines:
    """The file of a run, open to be added to."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file = open_to_append(folder / METRICS)

    def add(self, counts: Mapping[str, Any], agents: Mapping[Agent, Mapping[str, float]]) -> None:
        """A line: `counts`, and each agent's metrics. What is not finite becomes null."""
        line = {**counts, "agents": {str(agent): _finite(metrics) for agent, metrics in agents.items()}}
        self._file.write(_as_line(line))
        self._file.flush()

    def sync(self) -> None:
        """Have the disk hold all of them."""
        os.fsync(self._file.fileno())

    def drop_after(self, steps: int) -> None:
        """Go on behind the lines of so many steps. Raises BadRun, and changes nothing, if one is none of ours."""
        kept = [line for line in read_metrics(self._folder) if line["steps"] <= steps]
        self._file.close()
        write_whole(self._folder / METRICS, lambda file: file.write("".join(map(_as_line, kept)).encode()))
        self._file = open_to_append(self._folder / METRICS)

    def close(self) -> None:
        """May be called again."""
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
