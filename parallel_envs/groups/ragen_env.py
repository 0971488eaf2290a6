"""Environments written for RAGEN as a group's, as they are: register the class under a name, with its config's class.

    register("my_sokoban", SokobanEnv, SokobanEnvConfig)

Such an environment keeps `config.action_lookup` (None: actions are text) and has no `action_lookup` of its own. What it
does then means what it means in RAGEN:

- `reset(seed=..., mode=...)` is called by name, without the mode where it takes none.
- `step(action)` returns `(state, reward, done, info)`.
- The state is what `render()` shows after it. An array is a picture, a list of arrays several.
- It may draw from the global generators: these are kept apart for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_envs.groups.interface import Outcome
from parallel_envs.groups.outcomes import read_outcome

__all__ = ["RagenEnv", "is_ragen_env"]

_SEEDS = 2**32
"""RAGEN's environments seed NumPy's old generator, which takes no more."""


def is_ragen_env(env: Any) -> bool:
    """Return whether an environment is written for RAGEN, as the module's docstring says."""
    if hasattr(env, "action_lookup") or not callable(getattr(env, "render", None)):
        return False
    return hasattr(getattr(env, "config", None), "action_lookup") or any(
        kind.__module__ == "ragen.env.base" for kind in type(env).__mro__
    )


class RagenEnv:
    """An environment written for RAGEN, with the methods of a group's."""

    uses_global_random = True

    def __init__(self, env: Any) -> None:
        self._env = env
        self._takes_mode = _takes_mode(env.reset)

    @property
    def action_lookup(self) -> Mapping[Any, str] | None:
        """The episode's own: RAGEN's bandit makes it in `reset`."""
        lookup: Mapping[Any, str] | None = getattr(self._env.config, "action_lookup", None)
        return lookup

    def reset(self, seed: int, mode: str) -> Any:
        mode_if_wanted = {"mode": mode} if self._takes_mode else {}
        told = self._env.reset(seed=seed % _SEEDS, **mode_if_wanted)
        return self._state(told[0] if isinstance(told, tuple) else told)

    def step(self, action: Any) -> Outcome:
        told = self._env.step(action)
        state, reward, terminated, truncated, info = read_outcome(told, type(self._env).__name__)
        return self._state(state), reward, terminated, truncated, info

    def render(self, mode: str = "text") -> Any:
        """What it shows, in the mode of its config or, where its `render` takes one, as an `rgb_array`."""
        if mode != "text" and "mode" in inspect.signature(self._env.render).parameters:
            return self._env.render(mode=mode)
        return self._env.render()

    def close(self) -> None:
        if callable(close := getattr(self._env, "close", None)):
            close()

    def _state(self, told: Any) -> Any:
        """What `render()` shows; what was returned, where it shows nothing."""
        shown = self._env.render()
        if isinstance(shown, np.ndarray):
            return {"text": "", "images": [shown]}
        if isinstance(shown, list) and shown and all(isinstance(one, np.ndarray) for one in shown):
            return {"text": "", "images": shown}
        return told if shown is None else shown


def _takes_mode(reset: Any) -> bool:
    try:
        known = inspect.signature(reset).parameters
    except (ValueError, TypeError):  # of what is compiled nothing may be known
        return True
    return "mode" in known or any(one.kind is one.VAR_KEYWORD for one in known.values())
