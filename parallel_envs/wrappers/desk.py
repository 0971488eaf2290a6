"""Where the observations of a process wrapper lie in shared memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.engine import SharedBlock
from parallel_envs.wrappers.answers import Agent, Ask
from parallel_envs.wrappers.process_host import Place

_ALIGNMENT = 64


class Desk:
    """One block with a place for the array that each agent saw last. It is laid out anew for arrays of other shapes."""

    def __init__(self) -> None:
        self._block: SharedBlock | None = None
        self._places: dict[Agent, Place] = {}
        self._views: dict[Agent, npt.NDArray[Any]] = {}

    def put(self, agent: Agent, observation: Any) -> bool:
        """Put an observation in its place, if it is an array that fits there."""
        if not self._fits(agent, observation):
            return False
        self._views[agent][...] = observation
        return True

    def suits(self, asks: Mapping[Agent, Ask]) -> bool:
        """Whether every array among the observations has a place."""
        return all(self._fits(agent, seen) or not _is_placeable(seen) for agent, (seen, _) in asks.items())

    def lay_out(self, asks: Mapping[Agent, Ask]) -> tuple[SharedBlock, dict[Agent, Place], SharedBlock | None]:
        """Places for the arrays among these, and for those of before: the block, the places, and the block before.

        The one before is to be closed when nobody reads it any more.
        """
        arrays = {agent: (place.dtype, place.shape) for agent, place in self._places.items()}
        arrays |= {agent: (seen.dtype, seen.shape) for agent, (seen, _) in asks.items() if _is_placeable(seen)}
        places, end = {}, 0
        for agent, (dtype, shape) in arrays.items():
            places[agent] = Place(dtype, shape, end)
            end += -(-dtype.itemsize * int(np.prod(shape)) // _ALIGNMENT) * _ALIGNMENT
        before, block = self._block, SharedBlock.create(max(end, 1))
        self._block, self._places = block, places
        self._views = {agent: place.view(block) for agent, place in places.items()}
        return block, places, before

    def clear(self) -> None:
        """Forget all places: those who read there are no longer there."""
        self._places, self._views = {}, {}

    def close(self) -> None:
        self.clear()
        if self._block is not None:
            self._block.close()
            self._block = None

    def _fits(self, agent: Agent, observation: Any) -> bool:
        view = self._views.get(agent)
        return (
            view is not None
            and type(observation) is np.ndarray
            and view.shape == observation.shape
            and view.dtype == observation.dtype
        )


def _is_placeable(observation: Any) -> bool:
    return type(observation) is np.ndarray and not observation.dtype.hasobject and observation.size > 0
