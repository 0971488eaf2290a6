"""One environment in its place, be that a worker or the caller: made when first needed, asked through jobs."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parallel_envs.groups.guarded import Guarded, seeded
from parallel_envs.groups.interface import Outcome
from parallel_envs.groups.jobs import Job, Measure, Play, Played, Render, Reset, Restore

_PLAIN = frozenset({str, float, int, bool, type(None)})
"""What nobody can write into."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """How the environments of a tag are made and used.

    `threads`: how many of them may be stepped at once within a worker.
    """

    tag: str
    factory: Callable[[Any], Any]
    config: Any
    threads: int = 1


class Player:
    """An environment and where it stands.

    With `copies`, what it answers is the asker's: for askers of the same process, who would otherwise see the
    environment write into it.
    """

    def __init__(self, recipe: Recipe, *, copies: bool = False) -> None:
        self._recipe, self._copies = recipe, copies
        self._env: Any = None
        self._state: Any = None
        self._names: dict[str, Any] | None = None

    @property
    def made(self) -> bool:
        return self._env is not None

    def make(self) -> None:
        """Make the environment. What its constructor draws at random is the same everywhere."""
        with seeded(0):
            self._env = _suited(self._recipe.factory(self._recipe.config))

    def do(self, job: Job) -> Any:
        """Do a job of an environment that has been made."""
        match job:
            case Play():
                return self._play(job)
            case Reset(seed, mode):
                return self._told(self._reset(seed, mode))
            case Restore(seed, mode, turns):
                return self._told(self._restore(seed, mode, turns))
            case Render(mode):
                return self._told(self._render(mode))
            case Measure():
                return self._metrics()

    def drop(self) -> None:
        """Be without an environment: the next job has another one made."""
        env, self._env = self._env, None
        if callable(close := getattr(env, "close", None)):
            close()

    def _reset(self, seed: int, mode: str) -> Any:
        self._state = self._env.reset(seed, mode)
        self._names = _names_of(getattr(self._env, "action_lookup", None))
        return self._state

    def _play(self, job: Play) -> Played:
        wanted = self._meant(job.actions)
        executed: list[Any] = []
        reward, terminated, truncated, info = 0.0, False, False, dict[str, Any]()
        step, tag = self._env.step, self._recipe.tag
        for action in wanted[: job.allowance]:
            told = step(action)
            if type(told) is not tuple or len(told) != 5 or type(told[4]) is not dict or type(told[1]) is not float:
                told = _outcome(told, tag)
            self._state, one, terminated, truncated, facts = told
            reward += one
            info.update(facts)
            executed.append(action)
            if terminated or truncated:
                break
        over = terminated or truncated or len(executed) >= job.allowance
        return Played(
            self._told(self._state),
            reward,
            bool(terminated),
            bool(truncated),
            info if _PLAIN.issuperset(map(type, info.values())) else self._told(info),
            tuple(executed),
            0 < len(wanted) == len(job.actions),
            self._metrics() if over else {},
        )

    def _told(self, value: Any) -> Any:
        return copy.deepcopy(value) if self._copies and type(value) not in _PLAIN else value

    def _meant(self, actions: Sequence[str]) -> Sequence[Any]:
        """The actions that have a meaning here, as values."""
        names = self._names
        if names is None:
            return actions
        return [names[name] for action in actions if (name := action.strip().lower()) in names]

    def _restore(self, seed: int, mode: str, turns: Sequence[Sequence[Any]]) -> Any:
        self._reset(seed, mode)
        for turn in turns:
            for action in turn:
                self._state = _outcome(self._env.step(action), self._recipe.tag)[0]
        return self._state

    def _render(self, mode: str) -> Any:
        if callable(render := getattr(self._env, "render", None)):
            return render(mode=mode)
        if mode == "text":
            return self._state
        raise AttributeError(
            f"{_kind_of(self._env)} has no render(mode), so it cannot be shown as {mode!r}. Give it one, or render as "
            "'text'."
        )

    def _metrics(self) -> dict[str, float]:
        tell = getattr(self._env, "metrics", None)
        return {str(name): float(value) for name, value in tell().items()} if callable(tell) else {}


def drop_quietly(player: Player) -> None:
    """Drop an environment that broke: what it says about it is of no interest."""
    with contextlib.suppress(Exception):
        player.drop()


def _suited(env: Any) -> Any:
    """An environment with the methods of a group's."""
    if "gymnasium" in sys.modules:
        import gymnasium

        from parallel_envs.groups.gymnasium_env import GymnasiumEnv

        env = GymnasiumEnv(env) if isinstance(env, gymnasium.Env) else env
    for name in ("reset", "step"):
        if not callable(getattr(env, name, None)):
            raise TypeError(f"{_kind_of(env)} has no {name}(). An environment has reset(seed, mode) and step(action).")
    return Guarded(env) if getattr(env, "uses_global_random", False) else env


def _names_of(lookup: Mapping[Any, str] | None) -> dict[str, Any] | None:
    return None if lookup is None else {name.strip().lower(): value for value, name in lookup.items()}


def _outcome(told: Any, tag: str) -> Outcome:
    """What `step` returned, as Gymnasium's five."""
    if isinstance(told, tuple | list) and len(told) in (4, 5) and isinstance(told[-1], Mapping):
        state, reward, terminated, *truncated, info = told
        return state, _number(reward), terminated, truncated[0] if truncated else False, info
    what = f"{len(told)} values" if isinstance(told, tuple | list) else f"a {type(told).__name__}"
    raise TypeError(
        f"step() of {tag!r} returned {what}. Return (state, reward, terminated, truncated, info), info being a dict."
    )


def _number(reward: Any) -> float:
    return float(reward) if isinstance(reward, float | int) else float(np.asarray(reward, float).reshape(()))


def _kind_of(env: Any) -> str:
    kind = type(env)
    return f"{kind.__module__}.{kind.__qualname__}"
