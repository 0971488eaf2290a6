"""What is to be played: an environment by its name or a callable, what it is made with, and what results call it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import gymnasium

from parallel_envs.choices import Turns
from parallel_envs.env_files import absolute
from parallel_envs.evaluation.generators import seeded_globally
from parallel_envs.evaluation.grids import Grid, is_config
from parallel_envs.evaluation.mistakes import BadEvaluation
from parallel_envs.multiagent.aec import TURNS, FastConversion, as_parallel, faster_conversion
from parallel_envs.multiagent.by_name import FactoryByName, GymnasiumFactory, OneAgent, ZooFactory, env_factory
from parallel_envs.spelling import hint, is_one_of, suggests_keywords

NUM_AGENTS = (
    *("num_agents", "n_agents", "N", "num_cogs", "n_cogs", "cogs", "num_players", "n_players"),
    *("n_pursuers", "n_walkers", "n_pistons"),  # PettingZoo's pursuit and waterworld, multiwalker, pistonball
)
"""The keywords by which environments take the number of their agents."""


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class Mission:
    """A mission.

    Args:
        name: What results call it. Its seeds follow from it.
        env: A PettingZoo module (`mpe2.simple_spread_v3`) or id (`sisl/pursuit-v5`), a Gymnasium id (`CartPole-v1`, one
            agent called `agent_0`), `package.module:factory`, `./file.py:Class`, or a callable that makes either kind
            or a configuration of MettaGrid's.
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
        if isinstance(self.env, str):
            object.__setattr__(self, "env", absolute(self.env))  # workers and results files know no working folder

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
            return as_parallel(env, self.mission.turns, self._quicken)
        except BaseException:
            if callable(close := getattr(env, "close", None)):
                close()
            raise

    def _quicken(self, env: Any) -> Any:
        if self._is_quick is None:
            made = faster_conversion(env)
            self._is_quick = isinstance(made, FastConversion)
            return made
        return FastConversion(env) if self._is_quick else env


def with_num_agents(mission: Mission, number: int) -> Mission:
    """Return the mission with this number of agents, given by the keyword of `NUM_AGENTS` that its environment has.

    The keyword is looked up in the signature of what makes the environment; nothing is made. If the signature does not
    tell (`**kwargs` alone) or has several of these keywords, environments are made here, one by each keyword, until one
    has this number of agents. A mission that is named after its environment is called as if the number had been given
    in its name (`name?N=4`), so it has the same episodes.

    Raises BadEvaluation for a mission that takes no number of agents, or that was given another number already.
    """
    if isinstance(mission.env, str) and isinstance(mission._by_name(), GymnasiumFactory):
        if number == 1:
            return mission
        raise BadEvaluation(
            f"The mission {mission.name!r} is a Gymnasium environment, which has one agent, and {number} are asked for."
        )
    for keyword in NUM_AGENTS:
        if keyword in mission.kwargs:
            if mission.kwargs[keyword] == number:
                return mission
            raise BadEvaluation(
                f"The mission {mission.name!r} says {keyword}={mission.kwargs[keyword]!r}, and {number} agents are "
                "asked for. Give one of the two."
            )
    named, takes_any = _keywords(mission)
    known = [keyword for keyword in NUM_AGENTS if keyword in named]
    if len(known) != 1:
        tried = known or (list(NUM_AGENTS) if takes_any else [])
        known = [keyword for keyword in tried if _num_agents_of(_given(mission, keyword, number)) == number][:1]
    if not known:
        others = ", ".join(sorted(named)) or "none"
        raise BadEvaluation(
            f"The mission {mission.name!r} takes no number of agents by any of the keywords {', '.join(NUM_AGENTS)}. "
            f"Its own keywords: {others}. If some of these make agents, give them in the mission: name?keyword=value."
        )
    return _given(mission, known[0], number)


def _given(mission: Mission, keyword: str, number: int) -> Mission:
    """Return the mission with one more keyword argument."""
    name = mission.name
    if isinstance(mission.env, str) and name.partition("?")[0] == mission.env:
        name = f"{name}{'&' if '?' in name else '?'}{keyword}={number}"
    return replace(mission, name=name, kwargs={**mission.kwargs, keyword: number})


def _keywords(mission: Mission) -> tuple[set[str], bool]:
    """Return the keyword arguments that a mission's environment is made with, and whether it may take others."""
    make = mission.env if callable(mission.env) else mission._by_name()
    makers: list[Any] = [make]
    try:
        if isinstance(make, FactoryByName):
            makers = [make.maker()]
        elif isinstance(make, ZooFactory):
            makers = make.makers()
    except Exception as error:  # user code
        text = f"The mission {mission.name!r} cannot be made: {type(error).__name__}: {error}"
        raise BadEvaluation(text) from error
    try:
        signatures = [inspect.signature(one).parameters.values() for one in makers]
    except (TypeError, ValueError):  # something built in
        return set(), True
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    named = {one.name for parameters in signatures for one in parameters if one.kind in kinds}
    last = signatures[-1] if signatures else ()
    return named, any(one.kind is inspect.Parameter.VAR_KEYWORD for one in last)


def _num_agents_of(mission: Mission) -> int | None:
    """Return how many agents a mission has, found out by making it. None: it cannot be made."""
    with seeded_globally(0):
        try:
            env = EnvMaker(mission).make()
        except Exception:  # noqa: BLE001  # user code; most often a keyword that it does not know
            return None
        try:
            agents = getattr(env, "possible_agents", None)
            if agents is None:
                env.reset(seed=0)
                agents = env.agents
            return len(agents)
        except Exception:  # noqa: BLE001  # as above
            return None
        finally:
            env.close()
