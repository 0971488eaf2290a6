"""Metrics for TensorBoard, where it is installed."""

from __future__ import annotations

import logging
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from parallel_envs.learners.run_folder import BOARD, METRICS

Agent = Hashable

_log = logging.getLogger(__name__)


class Board:
    """A run's. Nothing is imported or written before there is something to show, and nothing if it is not `wanted`."""

    def __init__(self, folder: Path, *, wanted: bool = True) -> None:
        self._folder, self._wanted = folder / BOARD, wanted
        self._writer: Any = None

    def show(self, steps: int, agents: Mapping[Agent, Mapping[str, float]]) -> None:
        """Each agent's metrics, after so many steps."""
        if self._wanted and self._writer is None:
            self._writer = _opened(self._folder, steps)
            self._wanted = self._writer is not None
        if self._writer is not None:
            for agent, metrics in agents.items():
                for name, value in metrics.items():
                    self._writer.add_scalar(f"{name}/{agent}", value, steps)

    def close(self) -> None:
        """May be called again."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()


def _opened(folder: Path, steps: int) -> Any:
    """What was shown of later steps, before the run went back, is taken out."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        _log.warning("TensorBoard is not installed: metrics go to %s only.", METRICS)
        return None
    return SummaryWriter(str(folder), purge_step=steps)
