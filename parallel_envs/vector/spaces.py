"""Spaces: the leaves of a nested space, values put together from leaves, and the spaces of a batch of envs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Graph, MultiBinary, MultiDiscrete, OneOf, Space, Text, Tuple
from gymnasium.spaces import Sequence as SequenceSpace
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from parallel_envs.spelling import hint

_FIXED = (Box, Discrete, MultiDiscrete, MultiBinary)
_KNOWN = (*_FIXED, Dict, Tuple, Graph, OneOf, SequenceSpace, Text)

SpacePair = tuple[Space[Any], Space[Any]]
"""The space of one env, and the space of the batch."""


# ---- leaves ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Leaf:
    """A part of a space that has no parts itself. `path` leads from the root of the space to the leaf.

    `dtype` is None if values have no fixed shape: such values cannot lie in an array and travel by pipe. A leaf with a
    fixed shape travels by pipe too if it is `piped`; the shape of its values is checked all the same.
    """

    path: tuple[str | int, ...]
    dtype: np.dtype[Any] | None
    shape: tuple[int, ...] = ()
    piped: bool = False

    @property
    def fixed(self) -> bool:
        """Return whether values of the leaf lie in an array."""
        return self.dtype is not None and not self.piped

    @property
    def size(self) -> int:
        return int(np.prod(self.shape))

    @property
    def name(self) -> str:
        """Return the path as it is written in code, such as `['camera'][0]`."""
        return "".join(f"[{step!r}]" for step in self.path)

    def of(self, value: Any) -> Any:
        """Return the part of a value of the whole space that belongs to this leaf."""
        for step in self.path:
            value = value[step]
        return value


def leaves(space: Space[Any], path: tuple[str | int, ...] = ()) -> tuple[Leaf, ...]:
    """Return the leaves of `space`, in the order in which the function made by `assembler` takes them."""
    if isinstance(space, Dict):
        parts = space.spaces.items()
        return tuple(leaf for key, part in parts for leaf in leaves(part, (*path, key)))
    if isinstance(space, Tuple):
        return tuple(leaf for key, part in enumerate(space.spaces) for leaf in leaves(part, (*path, key)))
    if isinstance(space, _FIXED) and space.shape is not None:
        return (Leaf(path, np.dtype(space.dtype), tuple(space.shape)),)
    return (Leaf(path, None),)


def only_leaf(parts: Sequence[Leaf]) -> Leaf | None:
    """Return the leaf that is the whole value, if the value is a single array or number, else None."""
    return parts[0] if len(parts) == 1 and parts[0].fixed and not parts[0].path else None


def unknown_parts(space: Space[Any]) -> Iterator[Space[Any]]:
    """Yield the parts of `space` whose class Gymnasium does not know."""
    if isinstance(space, Dict):
        for part in space.spaces.values():
            yield from unknown_parts(part)
    elif isinstance(space, Tuple):
        for part in space.spaces:
            yield from unknown_parts(part)
    elif not isinstance(space, _KNOWN):
        yield space


def assembler(space: Space[Any]) -> Callable[[Sequence[Any]], Any]:
    """Return a function that makes a value of `space` from one value for each leaf."""
    if not isinstance(space, Dict | Tuple):
        return lambda values: values[0]
    build = _builder(space)
    return lambda values: build(iter(values))


def _builder(space: Space[Any]) -> Callable[[Iterator[Any]], Any]:
    """Return a function that takes as many values as `space` has leaves. The space itself is read only once, here."""
    if isinstance(space, Dict):
        named = [(key, _builder(part)) for key, part in space.spaces.items()]
        return lambda values: {key: build(values) for key, build in named}
    if isinstance(space, Tuple):
        builds = [_builder(part) for part in space.spaces]
        return lambda values: tuple([build(values) for build in builds])
    return next


# ---- batches ---------------------------------------------------------------------------------------------------------


def batched_observation_space(
    spaces: Sequence[Space[Any]], mode: str | Space[Any] | tuple[Space[Any], Space[Any]]
) -> SpacePair:
    """Return the observation spaces of a batch of envs that have these spaces. Raise if they do not fit `mode`."""
    single, batch = _chosen(spaces, mode)
    for env, space in enumerate(spaces):
        if mode == "same" and space != single:
            raise RuntimeError(
                f"Env {env} has the observation space {space}, env 0 has {single}: the sub-environments observation "
                "spaces are not equivalent. With observation_mode='same' they must be equal. If this is intentional, "
                "use `observation_mode='different'` instead. With that, only their bounds may differ."
            )
        if mode == "same" or (type(space) is type(single) and space == single):
            continue
        try:
            is_alike = bool(is_space_dtype_shape_equiv(space, single))
        except Exception:  # noqa: BLE001  # spaces that Gymnasium cannot compare
            is_alike = False
        if not is_alike:
            raise RuntimeError(
                f"Env {env} has the observation space {space}, which has another shape or dtype than {single}. Such "
                "environments cannot be batched: make their spaces alike."
            )
    return single, batch


def batched_action_space(spaces: Sequence[Space[Any]]) -> SpacePair:
    """Return the action spaces of a batch of envs that have these spaces. Raise if the spaces differ."""
    single = spaces[0]
    for env, space in enumerate(spaces):
        if space != single:
            raise RuntimeError(
                f"Env {env} has the action space {space}, env 0 has {single}. To batch actions, the action spaces of "
                "all environments must be equal."
            )
    return single, batch_space(single, len(spaces))


def _chosen(spaces: Sequence[Space[Any]], mode: Any) -> SpacePair:
    """Return the pair of spaces that `observation_mode` asks for."""
    if isinstance(mode, str) and mode == "same":
        return spaces[0], batch_space(spaces[0], len(spaces))
    if isinstance(mode, str) and mode == "different":
        try:
            return spaces[0], batch_differing_spaces(list(spaces))
        except (TypeError, ValueError) as error:
            raise RuntimeError(
                f"The observation spaces {list(dict.fromkeys(map(str, spaces)))} cannot be batched: {error} "
                "With observation_mode='different' only the bounds of spaces may differ."
            ) from error
    if isinstance(mode, Space):
        return mode, batch_space(mode, len(spaces))
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            raise TypeError(f"observation_mode={mode!r} is a pair of which not both are spaces.")
        return mode[1], mode[0]
    raise ValueError(
        f"observation_mode={mode!r} is unknown. Choose 'same', 'different', a space for one environment, or a pair of "
        f"the batched space and the space for one.{hint(mode, ('same', 'different'))} (Invalid `observation_mode`, "
        "expected: 'same' or 'different' or tuple of single and batch observation space, actual got "
        f"{mode})"
    )
