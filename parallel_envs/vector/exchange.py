"""The worker's hand on the shared arrays: actions out of them, observations and rewards into them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.vector.buffers import Buffers, cells
from parallel_envs.vector.layout import Leaf, assembler, only_leaf


class ActionReader:
    """Actions as the caller gave them, one env at a time.

    Where an action is a single leaf of a fixed shape, `views` holds the same memory once for each of `ACTION_DTYPES`,
    and `shaped` says that an item of it is an array, which an env must get a copy of to keep. Otherwise `views` is None
    and `compose` must be called. `parts` holds, by env, the leaves that have no fixed shape.
    """

    def __init__(self, buffers: Buffers, action_space: Space[Any]) -> None:
        self.parts: Mapping[int, Sequence[Any]] = {}
        self._leaves = buffers.plan.action
        self._dtypes = cells(buffers.action_dtypes)
        self._actions = buffers.actions
        self._assemble = assembler(action_space)
        only = only_leaf(self._leaves)
        self.shaped = only is not None and only.shape != ()
        self.views = None if only is None else buffers.actions[0]

    def compose(self, env: int) -> Any:
        """An action that has several leaves, or one without a fixed shape."""
        loose = iter(self.parts.get(env, ()))
        return self._assemble(
            [self._leaf(position, env) if leaf.fixed else next(loose) for position, leaf in enumerate(self._leaves)]
        )

    def _leaf(self, position: int, env: int) -> Any:
        value = self._actions[position][self._dtypes[env, position]][env]
        return value.copy() if self._leaves[position].shape else value


class ObservationWriter:
    """Puts the leaves of an observation into their arrays.

    Where an observation is a single leaf of a fixed shape, `arrays` (one a set) and `shape` say where one goes and what
    it must look like; otherwise no shape is right, and `write` must be called.
    """

    def __init__(self, buffers: Buffers) -> None:
        parts = buffers.plan.observation
        self._sets = [list(zip(parts, arrays, strict=True)) for arrays in buffers.observations]
        only = only_leaf(parts)
        self.shape = None if only is None else only.shape
        self.arrays: list[Any] = [None if only is None else arrays[0] for arrays in buffers.observations]

    def write(self, which_set: int, env: int, observation: Any) -> list[Any] | None:
        """Write what has a place; return the rest, leaf by leaf, or None where there is none."""
        loose: list[Any] = []
        for leaf, array in self._sets[which_set]:
            value = leaf.of(observation)
            if array is None:
                loose.append(value if leaf.dtype is None else _fitting(value, leaf).astype(leaf.dtype, copy=False))
            elif type(value) is np.ndarray and value.shape == leaf.shape:
                array[env] = value
            else:
                array[env] = _fitting(value, leaf)
        return loose or None


def _fitting(value: Any, leaf: Leaf) -> npt.NDArray[Any]:
    """The value as an array of the leaf's shape: a value of another shape is an error, never broadcast."""
    array = np.asarray(value)
    if array.shape != leaf.shape:
        raise ValueError(
            f"The environment returned an observation{leaf.name} of shape {array.shape}, but its observation space "
            f"says {leaf.shape}. Correct the environment or its observation_space."
        )
    return array


_OF_SEVERAL = (
    " Environments of several agents are for MultiAgentEnvManager; those of Gymnasium that keep agents in tuples can "
    "be given to it by parallel_envs.tuple_agents."
)


def as_float(reward: Any, of_one: bool = False) -> float:
    """A reward as a float; arrays of one item are accepted. `of_one`: an environment said to have one agent gave it."""
    try:
        return float(reward) if not isinstance(reward, np.ndarray) else float(reward.reshape(()))
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"The environment returned the reward {reward!r} of type {type(reward).__name__}. "
            f"A reward is a single number.{_OF_SEVERAL if of_one and isinstance(reward, list | tuple) else ''}"
        ) from error
