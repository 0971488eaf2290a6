"""What is to be played: an environment by its name or a callable, what it is made with, and what results call it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import gymnasium

from parallel_envs.choices import Turns
from parallel_envs.evaluation.grids import Grid, is_config
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.multiagent.by_name import OneAgent, env_factory
from parallel_envs.multiagent.conversion import QuickerConversion, quicker
from parallel_envs.multiagent.loading import TURNS, playable
from parallel_envs.spelling import hint, is_one_of, suggests_keywords


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class Mission:
    """A mission.

    Args:
        name: What results call it. Its seeds follow from it.
        env: A PettingZoo module (`mpe2.simple_spread_v3`), a Gymnasium id (`CartPole-v1`, one agent called `agent_0`),
            `package.module:factory`, or a callable that makes either kind or a configuration of MettaGrid's.
        kwargs: What the environment is made with.
        turns: How an AEC environment is played: all agents at once ("simultaneous"), or one after another
            ("sequential").
    """

    name: str
    env: str | Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    turns: Turns = "simultaneous"

    def __post_init__(self) -> None:
        if not is_one_of(self.turns, TURNS):
            raise BadEvaluation(
                f"turns={self.turns!r} of the mission {self.name!r} is unknown. Choose one of {', '.join(TURNS)}."
                f"{hint(self.turns, TURNS)}"
            )
        if not isinstance(self.kwargs, Mapping):
            raise BadEvaluation(
                f"kwargs={self.kwargs!r} of the mission {self.name!r} is not a dict of keyword arguments."
            )

    def make(self) -> Any:
        """The environment as it is given, a Gymnasium one with its one agent as PettingZoo has it."""
        make = partial(self.env, **self.kwargs) if callable(self.env) else self._by_name()
        env = make()
        if is_config(env):
            return Grid(env)
        if isinstance(env, gymnasium.vector.VectorEnv):
            raise TypeError(f"The mission {self.name!r} makes {env}, a vector of environments. Make one environment.")
        return OneAgent(env) if isinstance(env, gymnasium.Env) else env

    def _by_name(self) -> Callable[[], Any]:
        return env_factory(str(self.env), self.kwargs, self.turns)

    def described(self) -> dict[str, Any]:
        """What it is, as JSON can say it."""
        env = self.env if isinstance(self.env, str) else getattr(self.env, "__qualname__", type(self.env).__name__)
        return {"env": env, "kwargs": {key: _plain(value) for key, value in self.kwargs.items()}, "turns": self.turns}


def _plain(value: Any) -> Any:
    """A value of a YAML file is plain already; anything else is told as Python shows it."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return value if isinstance(value, str | int | float | bool | None) else repr(value)


class EnvMaker:
    """Makes the environments of a mission, a new one for each episode, with PettingZoo's parallel interface."""

    def __init__(self, mission: Mission) -> None:
        self.mission = mission
        self._is_quick: bool | None = None  # whether a quicker conversion is right; found out once, since it takes long

    def make(self) -> Any:
        """A new environment. It is closed again if it turns out to be none."""
        env = self.mission.make()
        if isinstance(env, OneAgent):
            return env
        try:
            return playable(env, self.mission.turns, self._quicken)
        except BaseException:
            if callable(close := getattr(env, "close", None)):
                close()
            raise

    def _quicken(self, env: Any) -> Any:
        if self._is_quick is None:
            made = quicker(env)
            self._is_quick = isinstance(made, QuickerConversion)
            return made
        return QuickerConversion(env) if self._is_quick else env
