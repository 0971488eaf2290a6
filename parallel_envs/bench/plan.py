"""What a command of the bench was asked for."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """The arguments of a measurement, which go into the file of its results, too."""

    @property
    def settings(self) -> dict[str, object]:
        """All of it in plain values."""
        return dataclasses.asdict(self)
