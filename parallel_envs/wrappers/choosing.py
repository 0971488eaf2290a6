"""From what networks say to actions, for one policy and for many at once: the same numbers either way.

Outputs are (policies, rows, numbers). Each policy draws from its own generator, for the rows that want an action and in
their order, so it does not matter who is computed with whom.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Box, Discrete

from parallel_envs.wrappers.rows import Mask

Array = npt.NDArray[Any]


class Chooser(Protocol):
    """What is to be known of a policy that has spoken."""

    action_space: Any
    deterministic: bool
    generator: np.random.Generator

    @property
    def log_std(self) -> Array: ...


def choose(outputs: Array, mask: Array | None, wanted: Sequence[Mask | None], policies: Sequence[Chooser]) -> list[Any]:
    """What each policy does: one action where nothing says which rows want one, else actions for all rows.

    Rows that want none get zeros; where no row does, it is None.
    """
    rows = _Wanted(wanted, outputs.shape[1])
    if isinstance(policies[0].action_space, Discrete):
        actions = _discrete(outputs, mask, rows, policies)
    else:
        actions = _continuous(outputs, rows, policies)
    return rows.handed_out(actions)


class _Wanted:
    """Which rows of each policy want an action."""

    def __init__(self, wanted: Sequence[Mask | None], num_rows: int) -> None:
        self._given = wanted
        self._is_single = set(map(type, wanted)) == {type(None)}
        self._masks = (
            [] if self._is_single else [np.ones(1, bool) if own is None else np.asarray(own) for own in wanted]
        )
        self._is_full: list[bool] = [self._is_single] * len(wanted)
        if {len(own) for own in self._masks} == {num_rows}:
            full: Any = np.stack(self._masks).all(1)
            self._is_full = [own and given is not None for own, given in zip(full.tolist(), wanted, strict=True)]

    def drawn(self, shape: tuple[int, ...], policies: Sequence[Chooser], *, normal: bool) -> Array:
        """What the policies draw: an array of `shape`, zeros where no action is wanted."""
        if self._is_single and not normal:
            return np.array([policy.generator.random() for policy in policies]).reshape(shape)
        noise = np.zeros(shape)
        for place, policy in enumerate(policies):
            draw: Any = policy.generator.standard_normal if normal else policy.generator.random
            if self._is_full[place]:
                draw(out=noise[place])
            else:
                rows = np.flatnonzero(self._masks[place])
                noise[place, rows] = draw((len(rows), *shape[2:]))
        return noise

    def handed_out(self, actions: Array) -> list[Any]:
        """Each policy's own part of the actions."""
        if self._is_single:
            return actions[:, 0].tolist() if actions.ndim == 2 else list(actions[:, 0])
        places = enumerate(self._is_full)
        return [actions[place] if full else self._some(place, actions[place]) for place, full in places]

    def _some(self, place: int, actions: Array) -> Any:
        mask = self._masks[place]
        if self._given[place] is None:
            return actions[0].item() if actions.ndim == 1 else actions[0]
        if not mask.any():
            return None
        own = actions[: len(mask)]
        own[~mask.astype(bool)] = 0
        return own


def _discrete(outputs: Array, mask: Array | None, rows: _Wanted, policies: Sequence[Chooser]) -> Array:
    """Actions (policies, rows) by softmax, or the best ones."""
    first = policies[0]
    space: Discrete = first.action_space
    if outputs.shape[-1] != space.n:
        raise ValueError(f"The network gives {outputs.shape[-1]} logits for the actions of {space}.")
    logits = outputs.astype(np.float64)
    if mask is not None:
        legal = mask.reshape(logits.shape).astype(bool)
        legal |= ~legal.any(-1, keepdims=True)  # rows of agents who are not there have masks of zeros
        logits[~legal] = -np.inf
    if first.deterministic:
        best: Array = logits.argmax(-1) + space.start
        return best
    logits -= logits.max(-1, keepdims=True)
    sums = np.cumsum(np.exp(logits, out=logits), axis=-1, out=logits)
    noise = rows.drawn(outputs.shape[:2], policies, normal=False)
    drawn: Array = (sums <= noise[..., None] * sums[..., -1:]).argmin(-1) + space.start  # the first sum above it
    return drawn


def _continuous(outputs: Array, rows: _Wanted, policies: Sequence[Chooser]) -> Array:
    """Actions (policies, rows, *shape) around a mean, or the mean itself."""
    space: Box = policies[0].action_space
    if outputs.shape[-1] != np.prod(space.shape):
        raise ValueError(f"The network gives {outputs.shape[-1]} numbers for the actions of {space}.")
    if not policies[0].deterministic:
        widths = np.stack([np.broadcast_to(np.exp(policy.log_std), outputs.shape[2:]) for policy in policies])
        outputs = outputs + widths[:, None] * rows.drawn(outputs.shape, policies, normal=True)
    actions = outputs.reshape(*outputs.shape[:2], *space.shape)
    return np.clip(actions, space.low, space.high).astype(space.dtype)
