"""What of a trajectory was not lived, or not seen, and what is made of it.

An agent that dies, pauses or joins leaves rows of filler between those that it lived. A step that it took and whose
outcome it never saw (it was away from then on, and nobody said that its episode had ended) is not valid, as nothing can
be learnt from it, but truncated: a memory has gone through it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.rollouts.trajectories import Trajectory

Array = npt.NDArray[Any]
Flags = npt.NDArray[np.bool_]


def without_last_words(features: Array, lived: Trajectory) -> Array:
    """Features (steps + 1, rows, ...) in which those that count nothing are 0 where they are not finite.

    Such as come after a termination count nothing: no value is taken of them. But 0 times NaN is NaN.
    """
    unused = np.concatenate([~lived.valid, lived.terminated[-1:]])
    unused[1:] &= ~lived.valid | lived.terminated
    odd = ~np.isfinite(features[unused]).all(-1)
    if not odd.any():
        return features
    features = features.copy()
    features[tuple(place[odd] for place in np.nonzero(unused))] = 0
    return features


def held(features: Array, lived: Trajectory) -> Flags | None:
    """Where (steps + 1, rows) a memory stays as it was before: nobody acted there, or saw what is not finite.

    None where that makes no difference, since an episode begins behind each such place.
    """
    stays = (~lived.valid & ~lived.truncated) | ~np.isfinite(features[:-1]).all(-1)
    goes_on = np.concatenate([lived.valid[1:] | lived.truncated[1:], np.ones_like(lived.valid[:1])])
    if not (stays & goes_on & ~lived.begins[1:]).any():
        return None
    return np.concatenate([stays, np.zeros_like(stays[:1])])
