"""Any Gymnasium environment as one of a group: `env_type: gymnasium`, or a factory that returns one.

Actions of discrete spaces have names: those that `actions` gives, or the environment's own `action_lookup`, or else
their numbers. Actions of other spaces are written as JSON: `[0.5, -1.0]`; those of a `Text` space are plain text. What
cannot be read, or is not in the space, has no meaning: it is dropped, as a name that nobody knows is.

An environment's own `metrics()` and `uses_global_random` are heeded too, also beneath wrappers. Of success Gymnasium
says nothing: unless the infos tell it, or `success_reward` does, there is no such figure.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gymnasium

from parallel_envs.extras import explained
from parallel_envs.groups.action_texts import read_action
from parallel_envs.groups.interface import Outcome
from parallel_envs.groups.meanings import meanings_of
from parallel_envs.groups.outcomes import read_outcome


@dataclass(frozen=True, kw_only=True)
class GymnasiumConfig:
    """Which environment, made how, and what its actions are called."""

    id: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    """For `gymnasium.make`."""
    actions: dict[int, str] | None = None
    """The names of a discrete space's actions."""
    success_reward: float | None = None
    """An episode has succeeded if it comes to an end of its own (terminated or truncated by the environment, not by
    `max_actions_per_traj`) with at least this sum of rewards. None: success is what the infos tell."""


def make(config: GymnasiumConfig) -> GymnasiumEnv:
    """The environment that a configuration names."""
    try:
        with explained(f"The environment {config.id!r}"):
            env = gymnasium.make(config.id, **config.kwargs)
    except gymnasium.error.UnregisteredEnv as error:
        if ":" not in config.id:
            error.add_note(f"If importing a package registers it, name that too: id: package:{config.id}.")
        raise
    return GymnasiumEnv(env, config.actions, config.success_reward)


def adapted(env: Any) -> Any:
    """A Gymnasium environment with a group's methods. All else as it is, and so one whose `reset` takes the mode."""
    return GymnasiumEnv(env) if isinstance(env, gymnasium.Env) and not _takes_mode(env) else env


class GymnasiumEnv:
    """A Gymnasium environment with the methods of a group's."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        actions: Mapping[int, str] | None = None,
        success_reward: float | None = None,
    ) -> None:
        self._env, self._kind = env, type(env.unwrapped).__name__
        self._space: gymnasium.Space[Any] | None = getattr(env, "action_space", None)
        self._names, self._renamed = _named(self._space, actions), bool(actions)
        self._success_reward, self._paid = success_reward, 0.0
        self._state: Any = None
        self.action_lookup: Mapping[Any, str] | None = self._names
        self.uses_global_random = bool(_own(env, "uses_global_random"))

    def reset(self, seed: int, mode: str) -> Any:
        told, self._paid = self._env.reset(seed=seed), 0.0
        self._state = told[0] if _has_info(told) else told
        own = None if self._renamed else _own(self._env, "action_lookup")
        self.action_lookup = self._names if own is None else own
        return self._state

    def has_meaning(self, action: str) -> bool:
        """Whether it can be read, where actions have no names."""
        return read_action(action, self._space) is not None

    def step(self, action: Any) -> Outcome:
        if self.action_lookup is None:
            action = read_action(action, self._space)
            if action is None:
                return self._state, 0.0, False, False, {"action_is_valid": False, "action_is_effective": False}
        self._state, reward, terminated, truncated, info = read_outcome(self._env.step(action), self._kind)
        self._paid += reward
        told = {"action_is_valid": True, "action_is_effective": True, **info}
        if self._success_reward is not None:
            told["success"] = (terminated or truncated) and self._paid >= self._success_reward
        return self._state, reward, terminated, truncated, told

    def metrics(self) -> Mapping[str, float]:
        tell = _own(self._env, "metrics")
        return tell() if callable(tell) else {}

    def render(self, mode: str = "text") -> Any:
        """What its `render_mode` says, whatever is asked for; without one, its state."""
        if self._env.render_mode is not None:
            return self._env.render()
        if mode == "text":
            return self._state
        raise ValueError(f"It was made without a render_mode. Say `kwargs: {{render_mode: {mode}}}` in `env_config`.")

    def close(self) -> None:
        self._env.close()


def _own(env: gymnasium.Env[Any, Any], name: str) -> Any:
    """What the environment has of this name, itself or beneath its wrappers; None where there is nothing."""
    return env.get_wrapper_attr(name) if env.has_wrapper_attr(name) else None


def _takes_mode(env: gymnasium.Env[Any, Any]) -> bool:
    try:
        return "mode" in inspect.signature(env.reset).parameters
    except (ValueError, TypeError):  # of what is compiled nothing may be known
        return False


def _has_info(told: Any) -> bool:
    """Whether a reset returned an info beside the state; an older one returns the state alone."""
    return isinstance(told, tuple) and len(told) == 2 and isinstance(told[1], Mapping)


def _named(space: gymnasium.Space[Any] | None, actions: Mapping[int, str] | None) -> Mapping[Any, str] | None:
    """The names that are given, checked, or else the numbers of a discrete space."""
    numbers = _numbers(space)
    for action in actions or ():
        if action not in (numbers or ()):
            raise ValueError(f"actions={actions!r} names {action!r}, which {space} does not have. Leave it out.")
    meanings_of(actions)  # no two of one name
    return actions or numbers


def _numbers(space: gymnasium.Space[Any] | None) -> dict[Any, str] | None:
    if not isinstance(space, gymnasium.spaces.Discrete):
        return None
    return {int(space.start) + number: str(int(space.start) + number) for number in range(int(space.n))}
