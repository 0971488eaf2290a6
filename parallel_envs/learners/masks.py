"""Which actions are allowed: where that is looked for, and what is no mask.

Masks are looked for in one place: in a Dict observation, as `"action_mask"` beside `"observation"`. Each is 1 (or True)
for an action that is allowed and 0 for one that is not. Infos are not stored, so masks in infos (those of Gymnasium's
Taxi, and of some of PettingZoo's classic games) are not seen; a wrapper has them seen:

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
    """Raise TypeError if actions are masked that cannot be, or by what is no mask of their width."""
    if not isinstance(observation_space, Dict) or "action_mask" not in observation_space.spaces:
        return
    match action_space:
        case Discrete():
            wanted = int(action_space.n)
        case MultiDiscrete():
            wanted = int(action_space.nvec.sum())
        case _:
            raise TypeError(f"{action_space} cannot be masked. Leave 'action_mask' out of its observations.")
    mask = observation_space["action_mask"]
    if mask.shape != (wanted,) or not _holds_flags(mask):
        raise TypeError(
            f"{mask} is no mask for {action_space}. Give MultiBinary({wanted}), or a Box of its shape from 0 to 1: 1 "
            "for what is allowed."
        )


def _holds_flags(space: Space[Any]) -> bool:
    """Whether a space's values are from 0 to 1."""
    match space:
        case MultiBinary():
            return True
        case MultiDiscrete():
            return bool((space.start == 0).all() and (space.nvec == 2).all())
        case Box():
            return bool((space.low >= 0).all() and (space.high <= 1).all())
    return False


def check_flags(mask: Any) -> None:
    """Raise ValueError for a mask that holds anything but 0 and 1: it would be read as something else."""
    array = np.asarray(mask)
    if array.dtype != np.bool_ and (odd := array[array.astype(bool) != array]).size:
        raise ValueError(
            f"its action_mask holds {odd.flat[0]}. Give 1 for what is allowed and 0 for what is not: of a mask that is "
            "added to logits, `mask == 0`."
        )
