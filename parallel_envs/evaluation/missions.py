"""Missions: environments to evaluate on, from names, wildcards, YAML files and callables.

    CartPole-v1                            a Gymnasium id, a PettingZoo id or module, or package.module:factory
    ./my_env.py:MyEnv                      a class in a file; results call it my_env.py:MyEnv, wherever the file is
    mpe2.simple_spread_v3?N=5              with keyword arguments; values are read as YAML
    mpe2.simple_*                          every environment with a matching name
    missions.yaml   missions.yaml:easy     every mission of a file; one set of it, or its missions with matching names

A file of missions:

    missions:
      spread:
        env: mpe2.simple_spread_v3
        kwargs: {max_cycles: 50}
        variants:                          # spread:three and spread:five
          three: {N: 3}
          five: {N: 5}
      cart: {env: CartPole-v1, device: auto}     # where networks are computed: see `evaluate`
    sets:
      easy: [cart, "spread:*"]

A callable that returns a MettaGrid configuration is a mission, too: parallel-envs eval -m
"mettagrid.builder.envs:make_arena?num_agents=4" -p random. It needs the extra `mettagrid`.
"""

from __future__ import annotations

import fnmatch
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import gymnasium

from parallel_envs.checks import advice, explain, hint, suggests_keywords
from parallel_envs.choices import Turns
from parallel_envs.env_files import absolute, file_of, is_env_file
from parallel_envs.env_ids import PACKAGES, known_zoo_ids, modules_of, zoo_module
from parallel_envs.evaluation.records import BadEvaluation, check_names_differ, check_whole, check_word, plain
from parallel_envs.extras import advice_for, is_installed
from parallel_envs.multiagent.aec import TURNS, FastConversion, as_parallel, faster_conversion
from parallel_envs.multiagent.by_name import FactoryByName, GymnasiumFactory, OneAgent, ZooFactory, env_factory
from parallel_envs.settings import settings_in, value_of
from parallel_envs.trust import check_env

NUM_AGENTS = (
    *("num_agents", "n_agents", "N", "num_cogs", "n_cogs", "cogs", "num_players", "n_players"),
    *("n_pursuers", "n_walkers", "n_pistons"),  # PettingZoo's pursuit and waterworld, multiwalker, pistonball
)
"""Keywords by which environments take the number of their agents."""

Check = Callable[[str, Mapping[str, Any]], object]
"""A function that gets an environment and its keyword arguments, and may raise."""

_MISSION_FILE = re.compile(r"(?P<path>.+\.ya?ml)(:(?P<which>[^:].*))?")
_FACTORY = re.compile(r"[\w.]+:\w+")


@suggests_keywords
@dataclass(frozen=True, kw_only=True)
class Mission:
    """An environment to evaluate on.

    Args:
        name: The name in results. The seeds of episodes follow from it.
        env: A PettingZoo module (`mpe2.simple_spread_v3`) or id (`sisl/pursuit-v5`), a Gymnasium id (`CartPole-v1`, one
            agent called `agent_0`), `package.module:factory`, `./file.py:Class`, or a callable that makes an
            environment of either kind or a MettaGrid configuration.
        kwargs: Keyword arguments for making the environment.
        turns: How an AEC environment is played: all agents at once ("simultaneous"), or one after another
            ("sequential").
        device: Where the networks of policies are computed in this mission. None: as `evaluate` says.
    """

    name: str
    env: str | Callable[..., Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    turns: Turns = "simultaneous"
    device: str | None = None

    def __post_init__(self) -> None:
        check_word(f"turns={self.turns!r} of the mission {self.name!r}", self.turns, TURNS)
        if not isinstance(self.kwargs, Mapping):
            raise BadEvaluation(f"kwargs={self.kwargs!r} of the mission {self.name!r} is not a dict of arguments.")
        if isinstance(self.env, str):
            # Workers and readers of results files may have another working folder.
            object.__setattr__(self, "env", absolute(self.env))

    def make(self) -> Any:
        """Return a new environment. A Gymnasium environment is wrapped as a PettingZoo environment with one agent."""
        env = self.env(**self.kwargs) if callable(self.env) else self.factory()()
        if is_mettagrid_config(env):
            return MettaGridEnv(env)
        if isinstance(env, gymnasium.vector.VectorEnv):
            raise TypeError(f"The mission {self.name!r} makes {env}, a vector of environments. Make one environment.")
        return OneAgent(env) if isinstance(env, gymnasium.Env) else env

    def factory(self) -> Callable[..., Any]:
        """Return the function that makes the environment: the mission's own, or that of its name."""
        return self.env if callable(self.env) else env_factory(self.env, self.kwargs, self.turns)

    def described(self) -> dict[str, Any]:
        """Return the environment, its keyword arguments and `turns` as values that JSON can hold."""
        env = self.env if isinstance(self.env, str) else getattr(self.env, "__qualname__", type(self.env).__name__)
        described = {"env": env, "kwargs": plain(self.kwargs), "turns": self.turns}
        return described if self.device is None else {**described, "device": self.device}


class EnvMaker:
    """Makes the environments of a mission, a new one for each episode, with PettingZoo's parallel interface."""

    def __init__(self, mission: Mission) -> None:
        self.mission = mission
        self._is_quick: bool | None = None  # whether a quicker conversion is right; checked once, because it takes long

    def make(self) -> Any:
        """Return a new environment. Raise TypeError if the mission makes something else, after closing it."""
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


# ---- missions from what the user gives ------------------------------------------------------------------------------


@suggests_keywords
def missions_of(given: Any, num_agents: int | None = None) -> list[Mission]:
    """Return the missions in the given order. Raises BadEvaluation.

    Args:
        given: A name (see the top of this file), a callable that makes an environment, or a `Mission`; a sequence of
            these; or a dict of them by the names that results shall have.
        num_agents: The number of agents that each mission shall have: see `with_num_agents`.
    """
    if num_agents is not None:
        check_whole("num_agents", num_agents, least=1)
    if isinstance(given, Mapping):
        found = []
        for name, one in given.items():
            own = _missions(one)
            found += [replace(mission, name=f"{name}:{mission.name}" if len(own) > 1 else str(name)) for mission in own]
    else:
        several = isinstance(given, Sequence) and not isinstance(given, str)
        found = [mission for one in (given if several else [given]) for mission in _missions(one)]
    if num_agents is not None:
        found = [with_num_agents(mission, int(num_agents)) for mission in found]
    check_names_differ("mission", [mission.name for mission in found])
    return found


def _missions(given: Any) -> list[Mission]:
    if isinstance(given, Mission):
        return [given]
    if isinstance(given, str):
        return named_missions(given)
    if callable(given):
        inner = getattr(given, "func", given)
        return [Mission(name=str(getattr(inner, "__name__", type(inner).__name__)), env=given)]
    raise BadEvaluation(f"{given!r} is not a mission. Give a name, a callable that makes an environment, or a Mission.")


def named_missions(text: str, check: Check = lambda env, kwargs: None) -> list[Mission]:
    """Return the missions that a text names. `check` is called with each environment before anything is imported."""
    if match := _MISSION_FILE.fullmatch(text):
        return _missions_in_file(Path(match["path"]), match["which"], check)
    name, kwargs = _split(text)
    if ("*" in name or "[" in name) and not is_env_file(name):
        if (package := name.rpartition(".")[0]) and not set("*[/") & set(package):
            check(f"{package}.any", {})  # looking for matching names imports the package
        found = [Mission(name=f"{one}{text[len(name) :]}", env=one, kwargs=kwargs) for one in _matching_names(name)]
        for mission in found:
            check(str(mission.env), kwargs)
        return found
    check(name, kwargs)
    _check_known(name)
    if is_env_file(name):  # seeds follow from the mission's name, so it has no folder in it
        text = f"{file_of(name).name}:{name.rpartition(':')[2]}{text[len(name) :]}"
    return [Mission(name=text, env=name, kwargs=kwargs)]


def check_trusted(text: str, file: str, trust: Sequence[str]) -> None:
    """Raise UntrustedName if `file` names a mission that may run code which the user does not trust: see `trust.py`.

    Nothing is imported before it has been checked, so call this before `missions_of`.
    """
    named_missions(text, lambda env, kwargs: check_env(env, kwargs, file, trust))


def _split(text: str) -> tuple[str, dict[str, Any]]:
    """Return the name in front of the question mark, and the keyword arguments behind it."""
    name, _, given = text.partition("?")
    parts = [part.partition("=") for part in given.split("&")] if given else []
    if not name.strip() or any(not key or not equals for key, equals, _ in parts):
        raise BadEvaluation(f"The mission {text!r} does not have the form name?key=value&key=value.")
    return name, {key: value_of(value, f"A value in the mission {text!r}", BadEvaluation) for key, _, value in parts}


def _check_known(name: str) -> None:
    """Raise BadEvaluation with similar names for an unknown environment. No environment is made."""
    package = re.split(r"[.:/]", name)[0]
    text, install = f"The mission {name!r} is unknown", advice_for(package)
    try:
        env_factory(name)
    except ValueError as error:
        known = str(error).replace("The environment", "The mission", 1)
        raise BadEvaluation(f"{text}.{install}" if install else known) from None
    if _FACTORY.fullmatch(name) and not is_installed(package):
        raise BadEvaluation(f"{text}: there is no module {package!r}.{install}")


def _matching_names(pattern: str) -> list[str]:
    """Return the installed environments that can be given by name alone and match a wildcard."""
    package = pattern.rpartition(".")[0]  # that contains all modules which match
    packages = [*PACKAGES, *([] if not package or set("*[/") & set(package) else [package])]
    modules = [module for package in packages for module in modules_of(package)]
    known = dict.fromkeys([*sorted(gymnasium.registry), *sorted(known_zoo_ids()), *modules])
    found = fnmatch.filter(known, pattern)
    if "/" not in pattern:  # an environment with a module and an id would be played twice
        found = [name for name in found if "/" not in name or zoo_module(name) is None]
    if not found:
        raise BadEvaluation(f"No mission matches {pattern!r}.{hint(pattern.replace('*', ''), known)}")
    return found


# ---- the number of agents -------------------------------------------------------------------------------------------


def with_num_agents(mission: Mission, number: int) -> Mission:
    """Return the mission with this number of agents, given by the keyword of `NUM_AGENTS` that its environment has.

    The keyword is looked up in the signature of the function or class that makes the environment. A mission that is
    named after its environment is renamed as if the number had been given in its name (`name?N=4`), so both have the
    same episodes.

    Raises BadEvaluation for a mission that takes no number of agents, or that was given another number already.
    """
    make = mission.factory()
    if isinstance(make, GymnasiumFactory):
        if number == 1:
            return mission
        raise BadEvaluation(f"The mission {mission.name!r} has one agent, and {number} are requested.")
    for keyword in NUM_AGENTS:
        if keyword in mission.kwargs:
            if mission.kwargs[keyword] == number:
                return mission
            raise BadEvaluation(f"The mission {mission.name!r} has {keyword}={mission.kwargs[keyword]!r}, not {number}")
    try:
        by_name = [make.maker()] if isinstance(make, FactoryByName) else [make]
        makers = make.makers() if isinstance(make, ZooFactory) else by_name
        parameters = [one for maker in makers for one in inspect.signature(maker).parameters.values()]
    except Exception as error:  # user code
        text = f"The mission {mission.name!r} cannot be made: {type(error).__name__}: {error}"
        raise BadEvaluation(text) from error
    kinds = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY
    named = {one.name for one in parameters if one.kind in kinds}
    found = next((keyword for keyword in NUM_AGENTS if keyword in named), None)
    if found is None:
        raise BadEvaluation(
            f"The mission {mission.name!r} takes no number of agents by any of the keywords {', '.join(NUM_AGENTS)}. "
            f"Its own keywords: {', '.join(sorted(named)) or 'none'}. If one of these sets the agents, give it in the "
            "mission: name?keyword=value."
        )
    name = mission.name
    if isinstance(mission.env, str) and name.partition("?")[0] == mission.env:
        name = f"{name}{'&' if '?' in name else '?'}{found}={number}"
    return replace(mission, name=name, kwargs={**mission.kwargs, found: number})


# ---- files of missions ----------------------------------------------------------------------------------------------


def _missions_in_file(path: Path, which: str | None, check: Check) -> list[Mission]:
    """Return the missions of a file: all, the missions of the set `which`, or those with names that match `which`."""
    content, missions = _file_content(path), {}
    for name, block in content["missions"].items():
        env = absolute(block["env"], beside=path.parent)
        variants = {f"{name}:{variant}": kwargs for variant, kwargs in block.get("variants", {}).items()}
        for full_name, own in (variants or {name: {}}).items():
            kwargs = {**block.get("kwargs", {}), **own}
            check(env, kwargs)
            try:
                _check_known(env)
                own_settings: Any = {one: block[one] for one in ("turns", "device") if one in block}
                missions[full_name] = Mission(name=full_name, env=env, kwargs=kwargs, **own_settings)
            except BadEvaluation as error:
                raise BadEvaluation(f"In {path}, mission {full_name!r}: {error}") from None
    sets = content.get("sets", {})

    def chosen(pattern: str, inside: tuple[str, ...]) -> list[str]:
        """Return the names that a set, a name or a wildcard stands for. `inside`: the sets that led here."""
        if pattern in inside:
            raise BadEvaluation(f"In {path} the set {pattern!r} contains itself, by way of {' and '.join(inside)}.")
        if pattern in sets:
            return [name for one in sets[pattern] for name in chosen(one, (*inside, pattern))]
        found = fnmatch.filter(missions, pattern) or fnmatch.filter(missions, f"{pattern}:*")
        if not found:
            text = f"{path} has neither a mission nor a set {pattern!r}."
            raise BadEvaluation(f"{text} {advice(pattern, [*sets, *missions])}")
        return found

    return list(missions.values()) if which is None else [missions[name] for name in dict.fromkeys(chosen(which, ()))]


def _file_content(path: Path) -> dict[str, Any]:
    from pydantic import BaseModel, ValidationError  # late: workers do not need them

    class MissionBlock(BaseModel, extra="forbid", strict=True):
        """A mission in a file."""

        env: str
        kwargs: dict[str, Any] = {}
        turns: str = "simultaneous"
        device: str | None = None
        variants: dict[str, dict[str, Any]] = {}

    class File(BaseModel, extra="forbid", strict=True):
        """A file of missions."""

        missions: dict[str, MissionBlock]
        sets: dict[str, list[str]] = {}

    def right(place: str) -> str:
        return advice(place.rpartition(".")[2], MissionBlock.model_fields if "." in place else File.model_fields)

    def written(name: str, word: str) -> str:
        return f"{name}: {{env: {word}}}" if re.fullmatch(r"missions\.[^.]+", name) else ""

    try:
        return File.model_validate(settings_in(path, BadEvaluation)).model_dump(exclude_unset=True)
    except ValidationError as error:
        mistakes = [explain(one, right, written=written) for one in error.errors()]
        raise BadEvaluation("\n  ".join([f"In {path}:", *mistakes])) from None


# ---- MettaGrid ------------------------------------------------------------------------------------------------------


def is_mettagrid_config(made: Any) -> bool:
    """Return whether an object is a MettaGrid configuration, without importing mettagrid."""
    kinds = type(made).__mro__
    return any((kind.__module__.split(".")[0], kind.__name__) == ("mettagrid", "MettaGridConfig") for kind in kinds)


class MettaGridEnv:
    """MettaGrid's own PettingZoo environment, made anew at each reset. Agents are numbers, actions are discrete.

    MettaGrid's simulator counts the maps that it has made and adds their number to the map's seed, and MettaGrid's
    environment makes one map when it is constructed and another one when it is reset. A map without a seed is random.
    Here the map follows from the seed of the reset alone, so an episode is the one that MettaGrid's
    `run_episode_local` plays with this seed.
    """

    metadata: Mapping[str, Any] = {"name": "mettagrid"}
    render_mode = None

    def __init__(self, config: Any) -> None:
        from mettagrid.policy.policy_env_interface import PolicyEnvInterface

        self.config = config
        about = PolicyEnvInterface.from_mg_cfg(config)
        self._spaces = about.observation_space, about.action_space
        self.possible_agents = list(range(about.num_agents))
        self._env: Any = None

    @property
    def agents(self) -> list[int]:
        return [] if self._env is None else list(self._env.agents)

    def observation_space(self, agent: int) -> Any:
        return self._spaces[0]

    def action_space(self, agent: int) -> Any:
        return self._spaces[1]

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        from mettagrid.envs.pettingzoo_env import MettaGridPettingZooEnv
        from mettagrid.runner.rollout import resolve_env_for_seed
        from mettagrid.simulator import Simulator

        class SimulatorOfOneMap(Simulator):  # type: ignore[misc]  # mettagrid need not be installed
            """Gives all maps the seed of their configuration, however many maps it has made."""

            def next_map_seed(self, base_seed: int) -> int:
                return base_seed

        self.close()
        number = 0 if seed is None else seed
        self._env = MettaGridPettingZooEnv(SimulatorOfOneMap(), resolve_env_for_seed(self.config, number))
        return self._env.reset(seed=number)

    def step(self, actions: Mapping[int, Any]) -> Any:
        return self._env.step(actions)

    def close(self) -> None:
        env, self._env = self._env, None
        if env is not None:
            env.close()
