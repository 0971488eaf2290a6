"""Metrics for TensorBoard, where it is installed."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from parallel_envs.learners.run_folder import BOARD, METRICS

Agent = Hashable

_log = logging.getLogger(__name__)


class Board:
    """A run's. Nothing is imported or written before there is something to show, and nothing if it is not `wanted`."""

    def __init__(self, folder: Path, *, wanted: bool = True) -> None:
        self._folder, self._wanted = folder / BOARD, wanted
        self._writer: Any = None

        self._has_failed = False

    def show(
        self,
        steps: int,
        agents: Mapping[Agent, Mapping[str, float]],
        totals: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        """Write each agent's metrics after so many steps, and what is about the run as a whole (`totals`).

        If that fails, as on a full disk, a warning says so, and nothing is written until `try_again` is called.
        """
        if not self._wanted or self._has_failed:
            return
        try:
            if self._writer is None:
                self._writer = _opened(self._folder, steps)
                self._wanted = self._writer is not None
            if self._writer is not None:
                for agent, metrics in agents.items():
                    for name, value in metrics.items():
                        self._writer.add_scalar(f"{name}/{agent}", value, steps)
                for name, value in totals.items():
                    self._writer.add_scalar(name, value, steps)
        except OSError as error:
            self._has_failed = True
            _log.warning("TensorBoard has a gap from step %d on: %s. %s has all metrics.", steps, str(error), METRICS)
            self.close()

    def try_again(self) -> None:
        """There is room on the disk (again): go on writing, in a new file."""
        self._has_failed = False

    def close(self) -> None:
        """May be called again."""
        writer, self._writer = self._writer, None
        if writer is not None:
            try:
                writer.close()
            except OSError as error:
                if not self._has_failed:
                    _log.warning("The last lines for TensorBoard could not be written: %s", str(error))


def _opened(folder: Path, steps: int) -> Any:
    """What was shown of later steps, before the run went back, is taken out."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        _log.warning("TensorBoard is not installed: metrics go to %s only.", METRICS)
        return None
    return SummaryWriter(str(folder), purge_step=steps)
