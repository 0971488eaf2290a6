"""Settings that every benchmark plan shares, and the libraries that a benchmark needs."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from importlib.util import find_spec

Needs = tuple[tuple[str, str], ...]
"""Modules that a benchmark needs, each with the name to `pip install`."""


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """Arguments of a measurement. They are also written into the file of its results."""

    @property
    def settings(self) -> dict[str, object]:
        """The arguments as plain values."""
        return dataclasses.asdict(self)


def first_missing(needs: Needs) -> str | None:
    """Return what to pip install first, or None if every module is installed. No module is imported."""
    return next((pip for module, pip in needs if find_spec(module) is None), None)
