"""Gymnasium environments as environments of a group: `env_type: gymnasium`, or a factory that returns one.

Actions of discrete spaces have names: those in `actions`, or the environment's own `action_lookup`, or their numbers.
Actions of other spaces are written as JSON: `[0.5, -1.0]`; actions of a `Text` space are plain text. A text that cannot
be read, or is not in the space, is dropped like an unknown name.

An environment's own `metrics()` and `uses_global_random` are used too, also beneath wrappers. Gymnasium has no notion
of success: there is a `success` only if the infos have one or `success_reward` is given.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from parallel_envs.extras import explained
from parallel_envs.groups.interface import Outcome, actions_by_name, read_outcome


@dataclass(frozen=True, kw_only=True)
class GymnasiumConfig:
    """Id and arguments of the environment, and the names of its actions."""

    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    """Arguments for `gymnasium.make`."""
    actions: dict[int, str] | None = None
    """Names of a discrete space's actions."""
    success_reward: float | None = None
    """An episode has succeeded if the environment terminates or truncates it (not `max_actions_per_traj`) with at least
    this sum of rewards. None: `success` comes from the infos."""


def make(config: GymnasiumConfig) -> GymnasiumEnv:
    """Make the environment of a config."""
    with explained(f"The environment {config.id!r}"):
        env = gymnasium.make(config.id, **config.kwargs)
    return GymnasiumEnv(env, config.actions, config.success_reward)


def adapted(env: Any) -> Any:
    """Return a Gymnasium environment with the methods of `GroupEnv`.

    Anything else is returned as it is, and so is a Gymnasium environment whose `reset` takes the mode.
    """
    if not isinstance(env, gymnasium.Env):
        return env
    try:
        if "mode" in inspect.signature(env.reset).parameters:
            return env
    except (ValueError, TypeError):  # a compiled function may have no signature
        pass
    return GymnasiumEnv(env)


class GymnasiumEnv:
    """A Gymnasium environment with the methods of `GroupEnv`."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        actions: Mapping[int, str] | None = None,
        success_reward: float | None = None,
    ) -> None:
        self._env, self._class_name = env, type(env.unwrapped).__name__
        self._space: gymnasium.Space[Any] | None = getattr(env, "action_space", None)
        numbers: dict[Any, str] = {}  # the names of a discrete space's actions, unless others are given
        if isinstance(self._space, spaces.Discrete):
            first = int(self._space.start)
            numbers = {number: str(number) for number in range(first, first + int(self._space.n))}
        for action in actions or ():
            if action not in numbers:
                raise ValueError(
                    f"actions={actions!r} names {action!r}, which {self._space} does not have. Leave it out."
                )
        actions_by_name(actions)  # raises if two actions have one name
        self._names, self._renamed = actions or numbers or None, bool(actions)
        self._success_reward, self._return = success_reward, 0.0
        self._state: Any = None
        self.action_lookup: Mapping[Any, str] | None = self._names
        self.uses_global_random = bool(_own(env, "uses_global_random"))

    def reset(self, seed: int, mode: str) -> Any:
        returned: Any = self._env.reset(seed=seed)
        self._return = 0.0
        has_info = isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[1], Mapping)
        self._state = returned[0] if has_info else returned  # older environments return the state alone
        own = None if self._renamed else _own(self._env, "action_lookup")
        self.action_lookup = self._names if own is None else own
        return self._state

    def has_meaning(self, action: str) -> bool:
        """Return whether a text can be read as an action, if actions have no names."""
        return read_action(action, self._space) is not None

    def step(self, action: Any) -> Outcome:
        if self.action_lookup is None:
            action = read_action(action, self._space)
            if action is None:
                return self._state, 0.0, False, False, {"action_is_valid": False, "action_is_effective": False}
        self._state, reward, terminated, truncated, info = read_outcome(self._env.step(action), self._class_name)
        self._return += reward
        full_info = {"action_is_valid": True, "action_is_effective": True, **info}
        if self._success_reward is not None:
            full_info["success"] = (terminated or truncated) and self._return >= self._success_reward
        return self._state, reward, terminated, truncated, full_info

    def metrics(self) -> Mapping[str, float]:
        metrics = _own(self._env, "metrics")
        return metrics() if callable(metrics) else {}

    def render(self, mode: str = "text") -> Any:
        """Return what the environment's `render_mode` shows, whichever mode is given; without one, its state."""
        if self._env.render_mode is not None:
            return self._env.render()
        if mode == "text":
            return self._state
        raise ValueError(f"It was made without a render_mode. Say `kwargs: {{render_mode: {mode}}}` in `env_config`.")

    def close(self) -> None:
        self._env.close()


def _own(env: gymnasium.Env[Any, Any], name: str) -> Any:
    """Return an attribute of the environment or of one beneath its wrappers, or None."""
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None


# ---- actions as text ------------------------------------------------------------------------------------------------


def read_action(text: str, space: gymnasium.Space[Any] | None) -> Any:
    """Return the action that a text stands for, in the types of the space; None if it is not in the space."""
    if space is None or (isinstance(space, spaces.Text) and space.contains(text)):
        return text
    try:
        action = _converted(json.loads(text), space)
        return action if space.contains(action) else None
    except (ValueError, TypeError, OverflowError, RecursionError):  # a language model says anything, "[[[[..." too
        return None


def _converted(value: Any, space: gymnasium.Space[Any]) -> Any:
    """Convert a value from JSON to the types of the space. Raise ValueError or TypeError if that cannot be done."""
    match space:
        case spaces.Dict():
            if not isinstance(value, dict) or value.keys() != space.keys():
                raise ValueError("It has other keys.")
            return {name: _converted(value[name], own) for name, own in space.items()}
        case spaces.Tuple():
            return tuple([_converted(one, own) for one, own in zip(value, space, strict=True)])
        case spaces.Sequence() if not space.stack:
            return tuple([_converted(one, space.feature_space) for one in value])
        case spaces.Discrete():
            return _numbers(value, space.dtype)[()]
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return _numbers(value, space.dtype)
    return value


def _numbers(value: Any, dtype: Any) -> NDArray[Any]:
    """Return an array of finite numbers. Fractions are rounded to floats, but never truncated to whole numbers."""
    given = np.asarray(value)
    if given.dtype.kind not in "biuf":
        raise ValueError("These are not numbers.")
    with np.errstate(all="ignore"):  # overflow is detected below
        array = given.astype(dtype)
    kept = np.isfinite(array).all() if array.dtype.kind == "f" else np.array_equal(array, given)
    if not kept:
        raise ValueError("These numbers are not in the space.")
    return array
