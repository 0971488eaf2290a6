"""Actions from -1 to 1 on their way to an env that has bounds of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box

Array = npt.NDArray[Any]


class Rescaling:
    """Spreads -1 to 1 over the bounds of `target`. What lies outside of -1 to 1 is clipped."""

    def __init__(self, target: Box) -> None:
        if not np.issubdtype(target.dtype, np.floating):
            raise ValueError(f"rescale_actions=True, but actions are whole numbers: {target}. Leave it out.")
        if not target.is_bounded():
            raise ValueError(
                f"rescale_actions=True, but {target} has no bounds to rescale to. Leave it out, or bound the actions "
                "first, for example with gymnasium.wrappers.TransformAction."
            )
        self.space = Box(-1.0, 1.0, target.shape, target.dtype.type)
        self._target = target
        low, high = target.low.astype(np.float64), target.high.astype(np.float64)
        self._middle, self._reach = low / 2 + high / 2, high / 2 - low / 2

    def __call__(self, action: Any) -> Array:
        """The env's action for this one."""
        given = np.asarray(action, np.float64)
        if given.shape != self.space.shape:
            raise ValueError(f"The action {action!r} has shape {given.shape}. Give one of shape {self.space.shape}.")
        exact = np.asarray(self._middle + given * self._reach).astype(self.space.dtype)
        return np.asarray(np.clip(exact, self._target.low, self._target.high))
