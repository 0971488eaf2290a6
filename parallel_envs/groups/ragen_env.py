"""Environments written for RAGEN, used unchanged: register the class under a name, with its config's class.

    register("my_sokoban", SokobanEnv, SokobanEnvConfig)

Such an environment has `config.action_lookup` (None: actions are text) and no `action_lookup` of its own. It behaves
as in RAGEN:

- `reset(seed=..., mode=...)` is called with keywords, without the mode if it does not take one.
- `step(action)` returns `(state, reward, done, info)`.
- The state is what `render()` returns afterwards. An array is a picture, a list of arrays several pictures.
- It may draw from the global generators: these are kept apart for it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np

from parallel_envs.groups.interface import Outcome, read_outcome

__all__ = ["RagenEnv", "is_ragen_env"]

_NUM_SEEDS = 2**32
"""RAGEN's environments seed NumPy's old generator, which takes smaller seeds only."""


def is_ragen_env(env: Any) -> bool:
    """Return whether an environment is written for RAGEN, as the module's docstring says."""
    if hasattr(env, "action_lookup") or not callable(getattr(env, "render", None)):
        return False
    return hasattr(getattr(env, "config", None), "action_lookup") or any(
        kind.__module__ == "ragen.env.base" for kind in type(env).__mro__
    )


class RagenEnv:
    """An environment written for RAGEN, with the methods of `GroupEnv`."""

    uses_global_random = True

    def __init__(self, env: Any) -> None:
        self._env = env
        try:
            parameters = inspect.signature(env.reset).parameters
            self._takes_mode = "mode" in parameters or any(one.kind is one.VAR_KEYWORD for one in parameters.values())
        except (ValueError, TypeError):  # a compiled function may have no signature
            self._takes_mode = True

    @property
    def action_lookup(self) -> Mapping[Any, str] | None:
        """The lookup of the episode: RAGEN's bandit makes it in `reset`."""
        lookup: Mapping[Any, str] | None = getattr(self._env.config, "action_lookup", None)
        return lookup

    def reset(self, seed: int, mode: str) -> Any:
        mode_if_wanted = {"mode": mode} if self._takes_mode else {}
        returned = self._env.reset(seed=seed % _NUM_SEEDS, **mode_if_wanted)
        return self._state(returned[0] if isinstance(returned, tuple) else returned)

    def step(self, action: Any) -> Outcome:
        returned = self._env.step(action)
        state, reward, terminated, truncated, info = read_outcome(returned, type(self._env).__name__)
        return self._state(state), reward, terminated, truncated, info

    def render(self, mode: str = "text") -> Any:
        """Return the picture or text, in the mode of the config; as `rgb_array` if `render` takes a mode."""
        if mode != "text" and "mode" in inspect.signature(self._env.render).parameters:
            return self._env.render(mode=mode)
        return self._env.render()

    def close(self) -> None:
        if callable(close := getattr(self._env, "close", None)):
            close()

    def _state(self, returned: Any) -> Any:
        """Return what `render()` shows, or the returned state if `render()` returns None."""
        shown = self._env.render()
        if isinstance(shown, np.ndarray):
            return {"text": "", "images": [shown]}
        if isinstance(shown, list) and shown and all(isinstance(one, np.ndarray) for one in shown):
            return {"text": "", "images": shown}
        return returned if shown is None else shown
