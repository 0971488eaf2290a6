"""From the spaces of the single environments to those of the batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gymnasium.spaces import Space
from gymnasium.spaces.utils import is_space_dtype_shape_equiv
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from parallel_envs.spelling import hint

Spaces = tuple[Space[Any], Space[Any]]
"""That of one environment, and that of all."""


def batched_observation_space(
    spaces: Sequence[Space[Any]], mode: str | Space[Any] | tuple[Space[Any], Space[Any]]
) -> Spaces:
    """The observation spaces of a batch of environments with these spaces."""
    single, batch = _chosen(spaces, mode)
    for env, space in enumerate(spaces):
        if mode == "same" and space != single:
            raise RuntimeError(
                f"Env {env} has the observation space {space}, env 0 has {single}: the sub-environments observation "
                "spaces are not equivalent. With observation_mode='same' they must be equal. If this is intentional, "
                "use `observation_mode='different'` instead. With that, only their bounds may differ."
            )
        if mode != "same" and not _alike(space, single):
            raise RuntimeError(
                f"Env {env} has the observation space {space}, which has another shape or dtype than {single}. Such "
                "environments cannot be batched: make their spaces alike."
            )
    return single, batch


def batched_action_space(spaces: Sequence[Space[Any]]) -> Spaces:
    """The action spaces of a batch of environments with these spaces."""
    single = spaces[0]
    for env, space in enumerate(spaces):
        if space != single:
            raise RuntimeError(
                f"Env {env} has the action space {space}, env 0 has {single}. To batch actions, the action spaces of "
                "all environments must be equal."
            )
    return single, batch_space(single, len(spaces))


def _chosen(spaces: Sequence[Space[Any]], mode: Any) -> Spaces:
    if isinstance(mode, str) and mode == "same":
        return spaces[0], batch_space(spaces[0], len(spaces))
    if isinstance(mode, str) and mode == "different":
        return spaces[0], _batch_differing(spaces)
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


def _batch_differing(spaces: Sequence[Space[Any]]) -> Space[Any]:
    try:
        return batch_differing_spaces(list(spaces))
    except (TypeError, ValueError) as error:
        raise RuntimeError(
            f"The observation spaces {list(dict.fromkeys(map(str, spaces)))} cannot be batched: {error} "
            "With observation_mode='different' only the bounds of spaces may differ."
        ) from error


def _alike(space: Space[Any], other: Space[Any]) -> bool:
    if type(space) is type(other) and space == other:
        return True
    try:
        return bool(is_space_dtype_shape_equiv(space, other))
    except Exception:  # noqa: BLE001  # spaces that Gymnasium cannot compare
        return False
