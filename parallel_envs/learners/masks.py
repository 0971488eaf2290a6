"""Checks of action masks.

A mask is an entry `"action_mask"` beside `"observation"` in a Dict observation: 1 (or True) for an action that is
allowed, 0 for one that is not. Infos are not stored, so masks in infos (of Gymnasium's Taxi, and of some of
PettingZoo's classic games) are ignored. A wrapper moves such a mask into the observation:

    class Masked(gymnasium.Wrapper):
        def __init__(self, env):
            super().__init__(env)
            mask = MultiBinary(int(env.action_space.n))
            self.observation_space = Dict({"observation": env.observation_space, "action_mask": mask})

        def reset(self, **how):
            seen, info = self.env.reset(**how)
            return {"observation": seen, "action_mask": info["action_mask"]}, info

        def step(self, action):
            seen, *rest, info = self.env.step(action)
            return {"observation": seen, "action_mask": info["action_mask"]}, *rest, info
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space


def check_mask(observation_space: Space[Any], action_space: Space[Any]) -> None:
    """Raise TypeError if the action space cannot be masked, or the mask's space does not fit it."""
    if not isinstance(observation_space, Dict) or "action_mask" not in observation_space.spaces:
        return
    match action_space:
        case Discrete():
            size = int(action_space.n)
        case MultiDiscrete():
            size = int(action_space.nvec.sum())
        case _:
            raise TypeError(f"{action_space} cannot be masked. Leave 'action_mask' out of its observations.")
    mask = observation_space["action_mask"]
    match mask:
        case MultiBinary():
            holds_flags = True
        case MultiDiscrete():
            holds_flags = bool((mask.start == 0).all() and (mask.nvec == 2).all())
        case Box():
            holds_flags = bool((mask.low >= 0).all() and (mask.high <= 1).all())
        case _:
            holds_flags = False
    if mask.shape != (size,) or not holds_flags:
        raise TypeError(
            f"{mask} is not a mask for {action_space}. Give MultiBinary({size}), or a Box of its shape from 0 to 1: 1 "
            "for what is allowed."
        )


def check_flags(mask: Any) -> None:
    """Raise ValueError for a mask with any value except 0 and 1, such as one that is added to logits."""
    array = np.asarray(mask)
    if array.dtype != np.bool_ and (odd := array[array.astype(bool) != array]).size:
        raise ValueError(
            f"its action_mask holds {odd.flat[0]}. Give 1 for what is allowed and 0 for what is not: of a mask that is "
            "added to logits, `mask == 0`."
        )
