"""Any Gymnasium environment as one of a group: `env_type: gymnasium`, or a factory that returns one.

Actions of discrete spaces have names: those that `actions` gives, or else their numbers. Actions of other spaces are
written as JSON: `[0.5, -1.0]`. What cannot be read, or is not in the space, is an action without effect:
`action_is_valid` is False, and the environment is not stepped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np


@dataclass(frozen=True, kw_only=True)
class GymnasiumConfig:
    """Which environment, made how, and what its actions are called."""

    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    """For `gymnasium.make`."""
    actions: dict[int, str] | None = None
    """The names of a discrete space's actions."""


def make(config: GymnasiumConfig) -> GymnasiumEnv:
    """The environment that a configuration names."""
    return GymnasiumEnv(gymnasium.make(config.id, **config.kwargs), config.actions)


class GymnasiumEnv:
    """A Gymnasium environment with the two methods of a group's."""

    def __init__(self, env: gymnasium.Env[Any, Any], actions: Mapping[int, str] | None = None) -> None:
        self._env = env
        self._state: Any = None
        numbers = _numbers(env.action_space)
        for action in actions or ():
            if action not in (numbers or ()):
                raise ValueError(
                    f"actions={actions!r} names {action!r}, which {env.action_space} does not have. Leave it out."
                )
        self.action_lookup = actions or numbers

    def reset(self, seed: int, mode: str) -> Any:
        self._state, _ = self._env.reset(seed=seed)
        return self._state

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.action_lookup is None:
            action = _read(action, self._env.action_space)
            if action is None:
                return self._state, 0.0, False, False, {"action_is_valid": False, "action_is_effective": False}
        self._state, reward, terminated, truncated, info = self._env.step(action)
        return self._state, float(reward), bool(terminated), bool(truncated), info

    def render(self, mode: str = "text") -> Any:
        """What its `render_mode` says, whatever is asked for; without one, its state."""
        if self._env.render_mode is not None:
            return self._env.render()
        if mode == "text":
            return self._state
        raise ValueError(f"It was made without a render_mode. Say `kwargs: {{render_mode: {mode}}}` in `env_config`.")

    def close(self) -> None:
        self._env.close()


def _numbers(space: gymnasium.Space[Any]) -> dict[Any, str] | None:
    if not isinstance(space, gymnasium.spaces.Discrete):
        return None
    return {int(space.start) + number: str(int(space.start) + number) for number in range(int(space.n))}


def _read(text: Any, space: gymnasium.Space[Any]) -> Any:
    """An action that was written as JSON, or None where it is none of the space's."""
    try:
        action = json.loads(text)
        action = np.asarray(action, space.dtype) if isinstance(action, list) and space.shape is not None else action
    except (ValueError, TypeError, OverflowError):
        return None
    return action if space.contains(action) else None
