"""Copies that nothing done to the original can change."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np


def snapshot(value: Any) -> Any:
    """A copy that nothing done to the original can change; the original where it cannot be copied."""
    if type(value) is np.ndarray and value.dtype != object:
        return value.copy()
    if type(value) is dict and not value:
        return {}
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  # deepcopy runs user code; sharing is what plain Gymnasium does
        return value
