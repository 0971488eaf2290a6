"""Environments by name: a Gymnasium id, `spin:MICROSECONDS`, `package.module:factory`, or `./file.py:Class`.

Worker processes of every library import this module, so it imports gymnasium and nothing heavier.
"""

from __future__ import annotations

import functools
import pkgutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from parallel_envs.env_files import FileFactory, is_env_file
from parallel_envs.env_ids import is_zoo_id

EnvFactory = Callable[[], gymnasium.Env[Any, Any]]

_FORMS = (
    "Give a Gymnasium id (CartPole-v1, ALE/Breakout-v5), spin:MICROSECONDS, package.module:factory, or ./file.py:Class."
)


class UnknownEnv(ValueError):
    """Raised when no environment can be made from the name that the user gave."""


@dataclass(frozen=True)
class EnvChoice:
    """A resolved environment. `name` is the text that the user gave; `is_id` is True for an id of Gymnasium."""

    name: str
    factory: EnvFactory
    is_id: bool = False


class SpinEnv(gymnasium.Env[NDArray[np.float32], np.int64]):
    """Environment that burns the given microseconds of processor time in every step; its episode never ends.

    A step counts the thread's own processor time. A worker that waits for a core on a full machine makes no progress.
    """

    def __init__(self, microseconds: float) -> None:
        self.observation_space = gymnasium.spaces.Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self._seconds = microseconds * 1e-6
        self._observation = np.zeros(4, np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[NDArray[np.float32], dict[str, Any]]:
        super().reset(seed=seed)
        return self._observation, {}

    def step(self, action: np.int64) -> tuple[NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        end = time.thread_time() + self._seconds
        while time.thread_time() < end:
            pass
        return self._observation, 0.0, False, False, {}


def resolve(name: str) -> EnvChoice:
    """Return the environment that `name` stands for. Builds no environment."""
    if name.startswith("spin:"):
        try:
            microseconds = float(name.removeprefix("spin:"))
        except ValueError:
            microseconds = -1.0
        if not 0.0 <= microseconds < float("inf"):
            raise UnknownEnv(f'"{name}" does not say for how long to spin. Give microseconds, as in spin:1000.')
        return EnvChoice(name, functools.partial(SpinEnv, microseconds))
    if is_env_file(name):
        try:
            return EnvChoice(name, FileFactory.of(name))
        except ValueError as error:
            raise UnknownEnv(str(error)) from error
    module, colon, attribute = name.partition(":")
    if colon and all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):  # no module:Id-v0
        try:
            factory = pkgutil.resolve_name(name)
        except (ImportError, AttributeError) as error:
            raise UnknownEnv(f'The factory "{name}" cannot be imported: {_text(error)} {_FORMS}') from error
        if not callable(factory):
            raise UnknownEnv(f'"{name}" is a {type(factory).__name__} and cannot be called. {_FORMS}')
        return EnvChoice(name, factory)
    # ale_py registers the ids of ALE in each process that imports it.
    env_id = f"ale_py:{name}" if name.startswith("ALE/") else name
    return EnvChoice(name, functools.partial(gymnasium.make, env_id), is_id=True)


def action_space(choice: EnvChoice) -> gymnasium.Space[Any]:
    """Build one environment, return its action space, and close the environment."""
    try:
        env = choice.factory()
    except Exception as error:
        if is_zoo_id(choice.name):
            raise UnknownEnv(
                f'"{choice.name}" is the id of a PettingZoo environment, and this command measures Gymnasium '
                f"environments. In a checkout of parallel_envs, run: python -m benchmarks zoo --env {choice.name}"
            ) from error
        raise UnknownEnv(f'Environment "{choice.name}" cannot be made: {_text(error)} {_FORMS}') from error
    if not isinstance(env, gymnasium.Env):
        raise UnknownEnv(f'"{choice.name}" made a {type(env).__name__}, not a gymnasium.Env. {_FORMS}')
    try:
        return env.action_space
    finally:
        env.close()


def _text(error: BaseException) -> str:
    text = str(error).strip().rstrip(".")
    end = "" if text.endswith("?") else "."
    return f"{type(error).__name__}: {text}{end}" if text else f"{type(error).__name__}."
