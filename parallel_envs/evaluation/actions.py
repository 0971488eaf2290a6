"""What is an action of a space, and what is the one that does nothing."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space, Tuple

from parallel_envs.policies.ready import zero

Agent = Any


def objection(space: Space[Any], action: Any) -> str | None:
    """Why this cannot be an action of the space, or None.

    Numbers for a Box may be of any type, and beyond its bounds, as policies that draw from a normal distribution give
    them: to clip them, or not to, is up to the environment. The same holds for a Box within a Dict or a Tuple.
    """
    if isinstance(space, Box):
        return _objection_to_numbers(space, action)
    if isinstance(space, Dict) and isinstance(action, Mapping) and action.keys() == space.spaces.keys():
        return _first_objection((space[name], action[name]) for name in space.spaces)
    if isinstance(space, Tuple) and isinstance(action, tuple | list) and len(action) == len(space.spaces):
        return _first_objection(zip(space.spaces, action, strict=True))
    try:
        fits = bool(space.contains(action))
    except Exception:  # noqa: BLE001  # some spaces raise at what they cannot make anything of
        fits = False
    return None if fits else f"{action!r}, which is no action of {space}"


def _first_objection(parts: Iterable[tuple[Space[Any], Any]]) -> str | None:
    return next((told for space, action in parts if (told := objection(space, action)) is not None), None)


def _objection_to_numbers(space: Box, action: Any) -> str | None:
    try:
        numbers = np.asarray(action)
        fits = numbers.shape == space.shape and numbers.dtype.kind in "biuf"
    except Exception:  # noqa: BLE001  # as above
        fits = False
    if not fits:
        return f"{action!r}, which is no action of {space}"
    return None if np.isfinite(numbers).all() else f"{action!r}, which is not finite"


class Noops:
    """What agents do that are late: as near to nothing as their action spaces have it."""

    def __init__(self, env: Any, seed: int) -> None:
        self._env, self._seed = env, seed

    def of(self, agent: Agent, observation: Any) -> Any:
        """The zero of the agent's space; or the first action that its mask allows, if that forbids it."""
        space = self._env.action_space(agent)
        try:
            nothing = zero(space)
        except TypeError:  # text and the like have no zero
            space = copy.deepcopy(space)
            space.seed(self._seed)
            return space.sample()
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        if mask is None or not isinstance(space, Discrete) or mask[nothing - space.start] or not np.any(mask):
            return nothing
        return int(space.start) + int(np.flatnonzero(mask)[0])
