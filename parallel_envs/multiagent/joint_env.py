"""The worker's side: a PettingZoo env whose agents together look like one Gymnasium env.

`JointFactory` makes one. `JointEnv` is for envs with `possible_agents`: the values of each agent lie at fixed places
of arrays in shared memory. `OpenJointEnv` is for envs without: their results are sent by pipe. `joint_factories` reads
the arguments of `MultiAgentEnvManager`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Space

from parallel_envs.checks import check_count, hint, is_one_of
from parallel_envs.env_files import is_env_file
from parallel_envs.multiagent.aec import TURNS, TurnEnv, as_parallel
from parallel_envs.multiagent.agent_layout import (
    AGENTS,
    ALIVE,
    COMMON,
    FLAGS,
    GROUPS,
    PRESENT,
    REWARDS,
    TERMINATED,
    TRUNCATED,
    Agent,
    AgentLayout,
    Anything,
    JointObservations,
    group_key,
    joint_actions,
    shortened,
)
from parallel_envs.multiagent.by_name import ZooFactory
from parallel_envs.vector.arguments import factories
from parallel_envs.vector.shared_arrays import Leaf, as_float, assembler, leaves, only_leaf

Info = dict[str, Any]
ByAgent = Mapping[Agent, Any]
Results = tuple[dict[Agent, Any], dict[Agent, Any], dict[Agent, Any], dict[Agent, Any], dict[Agent, Any]]

_RESULTS = ("observations", "rewards", "terminations", "truncations", "infos")
_WRAPPED = ("env", "aec_env")
"""Attributes in which wrappers and conversions hold the env they wrap."""

_NUMBERS = frozenset((float, int, bool, np.float64, np.float32))
"""Rewards of these types are written without conversion. NumPy would accept None as a number, too."""


class BaseJointEnv(gymnasium.Env[Any, Any]):
    """Base of both joint envs: passes attributes on to the PettingZoo env and checks the results of that env."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.metadata = dict(getattr(env, "metadata", None) or {})
        self.render_mode = getattr(env, "render_mode", None)
        self._takes_turns = bool(getattr(env, "takes_turns", False))
        self._num_steps = 0
        self._seen_agents: set[Agent] = set()
        """Agents that have been alive in this episode."""
        self._waits = False
        """True after a lost episode without autoreset: the env is not stepped until its next reset."""

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def wait_after_loss(self) -> None:
        """Show no agents and take no steps until the next reset. Called when an episode was lost."""
        self._waits = True

    def get_wrapper_attr(self, name: str) -> Any:
        if self._waits and name == "agents":
            return []
        return getattr(_holder(self.env, name), name)

    def has_wrapper_attr(self, name: str) -> bool:
        return hasattr(_holder(self.env, name), name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        if not force and not self.has_wrapper_attr(name):
            return False
        setattr(_holder(self.env, name), name, value)
        return True

    def render(self) -> Any:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def _reset_env(self, seed: int | None, options: Info | None) -> tuple[dict[Agent, Any], dict[Agent, Any]]:
        self._num_steps, self._waits = 0, False
        given = {"seed": seed, "options": options}
        results = self.env.reset(**{key: value for key, value in given.items() if value is not None})
        self._check_types(results, ("observations", "infos"))
        observations, infos = results
        if not self._takes_turns:
            self._check_observed(self.env.agents, observations)
        self._seen_agents = set(self.env.agents)
        return observations, infos

    def _step_env(self, actions: ByAgent) -> tuple[Results, bool, bool, bool]:
        """Step the env and check its results. The flags tell if all agents acted, were observed, and go on; and if the
        joint episode was terminated or truncated, which it is once no agent is left.
        """
        self._num_steps += 1
        results: Results = self.env.step(actions)
        self._check_types(results, _RESULTS)
        observations, _, terminations, truncations, _ = results
        same = observations.keys() == actions.keys() == terminations.keys() == truncations.keys()
        usual = same and not any(terminations.values()) and not any(truncations.values())
        if not usual or len(self.env.agents) != len(actions):
            after = set(self.env.agents)
            if not self._takes_turns:
                self._check_observed(after, observations)
                dead = self._seen_agents.difference(after, actions)
                for what, values in (("an observation", observations), ("a termination", terminations)):
                    if wrong := dead.intersection(values):
                        raise self._error(
                            f"returned {what} for {wrong.pop()!r}, which was not alive before it and is not after it. "
                            "Return values for living agents only."
                        )
            if kept := [agent for agent in after if terminations.get(agent) or truncations.get(agent)]:
                raise self._error(f"ended {kept[0]!r} and kept it in its agents. Take agents that end out of `agents`.")
            self._seen_agents |= after
        truncated = not self.env.agents and any(truncations.values())
        return results, usual, not self.env.agents and not truncated, truncated

    def _check_types(self, results: Any, names: tuple[str, ...]) -> None:
        """Raise TypeError unless the env returned one dict for each of these names."""
        is_one = not isinstance(results, tuple | list)
        if is_one or len(results) != len(names):
            given = f"one {type(results).__name__}: {shortened(results)}" if is_one else f"{len(results)} values"
            expected = f"A parallel environment returns {len(names)} dicts by agent here: {', '.join(names)}."
            raise self._error(f"returned {given}. {expected}", TypeError)
        for name, value in zip(names, results, strict=True):
            if not isinstance(value, dict | Mapping):
                raise self._error(f"returned {shortened(value)} as its {name}. Return a dict by agent.", TypeError)

    def _checked_info(self, info: Any, agent: Agent) -> Info:
        """Return the info of an agent as a dict. Raise TypeError if it is none."""
        if not isinstance(info, dict | Mapping):
            raise self._error(f"returned {shortened(info)} as the info of {agent!r}. Return a dict.", TypeError)
        return info if isinstance(info, dict) else dict(info)

    def _check_observed(self, agents: Iterable[Agent], observations: Container[Agent]) -> None:
        for agent in agents:
            if agent not in observations:
                text = f"returned no observation for {agent!r}, which is among its agents."
                raise self._error(f"{text} Return one for every living agent.")

    def _error(self, fact: str, kind: type[Exception] = ValueError) -> Exception:
        moment = f"step {self._num_steps}" if self._num_steps else "reset"
        return kind(f"In {moment} the environment {fact}")


def _holder(env: Any, name: str) -> Any:
    """Return the outermost of an env and the envs it wraps that has this attribute itself; `env` if none has it.

    PettingZoo's conversions hide the attributes of the env that they convert.
    """
    inner = env
    while inner is not None:
        if name in getattr(inner, "__dict__", ()) or hasattr(type(inner), name):
            return inner
        inner = next((vars(inner)[key] for key in _WRAPPED if key in getattr(inner, "__dict__", ())), None)
    return env


# ---- envs with possible_agents --------------------------------------------------------------------------------------


class JointEnv(BaseJointEnv):
    """All agents of an env with `possible_agents`, each at its place in the arrays.

    In most steps all agents are present and go on. Then no work is done agent by agent that can be done at once.
    """

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.layout = layout = AgentLayout.of(env)
        self.observation_space = JointObservations(layout)
        self.action_space = joint_actions(layout)
        self._all_agents = list(layout.agents)
        groups = [[layout.agents[index] for index in group.indices] for group in layout.observation_groups]
        stacks = [_Stack(group.space, agents) for group, agents in zip(layout.observation_groups, groups, strict=True)]
        self._stacks = [(group_key(number), stack) for number, stack in enumerate(stacks)]
        self._stack_of = {agent: stack for stack, agents in zip(stacks, groups, strict=True) for agent in agents}
        self._action_place: dict[Agent, tuple[Any, ...]] = {}
        """By agent the key of its group, its row there, and leaves and assembler of its space (None: one array)."""
        for number, group in enumerate(() if layout.has_one_action_array else layout.action_groups):
            parts = leaves(group.space)
            made_of = (None, None) if only_leaf(parts) is not None else (parts, assembler(group.space))
            for row, index in enumerate(group.indices):
                self._action_place[layout.agents[index]] = (group_key(number), row, *made_of)
        self._flags = np.zeros(len(layout), np.uint8)
        self._rewards = np.zeros(len(layout), np.float64)
        self._everyone = frozenset(self._all_agents)
        self._observed: frozenset[Agent] = frozenset()
        """Agents whose observations are in the arrays now."""

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        observations, infos = self._reset_env(seed, options)
        self._write_some(observations, {}, {})
        self._rewards[:] = 0.0
        return self._joint(), self._joint_info(infos)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        if self._waits:
            self._write_some({}, {}, {})
            self._rewards[:] = 0.0
            return self._joint(), 0.0, True, False, {}
        agents, layout = self.env.agents, self.layout
        if not layout.has_one_action_array:
            actions = {}
            for agent in agents:
                key, row, parts, assemble = self._action_place[agent]
                group = action[GROUPS][key]
                actions[agent] = group[row] if parts is None else assemble([leaf.of(group)[row] for leaf in parts])
        elif agents == self._all_agents:
            actions = dict(zip(agents, action, strict=False))
        else:
            actions = {agent: action[layout.index[agent]] for agent in agents}
        results, usual, terminated, truncated = self._step_env(actions)
        observations, rewards, terminations, truncations, infos = results
        if usual and self.env.agents == self._all_agents:
            for _, stack in self._stacks:
                stack.write_all(observations)
            self._flags[:], self._observed = PRESENT | ALIVE, self._everyone
        else:
            self._write_some(observations, terminations, truncations)
        values = list(map(rewards.get, self._all_agents))
        if not _NUMBERS.issuperset(map(type, values)):
            values = [as_float(rewards.get(agent, 0.0)) for agent in self._all_agents]
        self._rewards[:] = values
        return self._joint(), 0.0, terminated, truncated, self._joint_info(infos)

    def _write_some(self, observations: ByAgent, terminations: ByAgent, truncations: ByAgent) -> None:
        """Write observations and flags where some agents may be missing or have ended."""
        if strangers := observations.keys() - self._everyone:
            raise ValueError(
                f"The environment returned an observation for {strangers.pop()!r}, which is not among its "
                f"possible_agents {self._all_agents}. Name all agents there, or leave possible_agents out."
            )
        for agent in self._observed.difference(observations):
            self._stack_of[agent].clear(agent)
        self._observed = frozenset(observations)
        if len(self._observed) == len(self._all_agents):
            for _, stack in self._stacks:
                stack.write_all(observations)
        else:
            for agent, observation in observations.items():
                self._stack_of[agent].write(agent, observation)
        index = self.layout.index
        flags = [0] * len(index)
        for agent in observations:
            flags[index[agent]] = PRESENT
        living = self.env.agents if not self._waits else ()
        # one agent may have left unannounced while another has come
        self._check_observed(living, index if self._takes_turns else self._observed)
        for agent in living:
            flags[index[agent]] |= ALIVE
        for bit, ends in ((TERMINATED, terminations), (TRUNCATED, truncations)):
            for agent, ended in ends.items():
                if ended and agent in index:
                    flags[index[agent]] |= bit
        self._flags[:] = flags

    def _joint(self) -> Info:
        groups = {key: stack.value for key, stack in self._stacks}
        return {FLAGS: self._flags, REWARDS: self._rewards, GROUPS: groups}

    def _joint_info(self, infos: ByAgent) -> Info:
        """Return the non-empty infos: those of agents by index, and beside them those of no agent."""
        index, own = self.layout.index, self._checked_info
        by_index = {str(index[agent]): own(info, agent) for agent, info in infos.items() if info and agent in index}
        common = {str(key): value for key, value in infos.items() if key not in index}
        return {**({AGENTS: by_index} if by_index else {}), **({COMMON: common} if common else {})}


class _Stack:
    """Observations of agents with equal spaces: one row for each agent; zeros (or None) without an observation."""

    def __init__(self, space: Space[Any], agents: Sequence[Agent]) -> None:
        self._agents = tuple(agents)
        self._row = {agent: row for row, agent in enumerate(agents)}
        self._leaves, self._assemble = leaves(space), assembler(space)
        self._columns: list[Any] = [
            np.zeros((len(agents), *leaf.shape), leaf.dtype) if leaf.fixed else [None] * len(agents)
            for leaf in self._leaves
        ]
        only = only_leaf(self._leaves)
        self._shape = None if only is None else only.shape
        self._end_to_end = self._columns[0].reshape(-1, *self._shape[1:]) if self._shape else None
        self._constant = self._assemble(self._columns) if all(leaf.fixed for leaf in self._leaves) else None
        """The value, if its arrays are always the same objects."""

    def write_all(self, observations: ByAgent) -> None:
        """Write the rows of all agents: in one call if they are arrays of the right shape, else one by one."""
        if self._end_to_end is not None:
            assert self._shape
            values = [observations[agent] for agent in self._agents]
            try:
                if set(map(len, values)) == {self._shape[0]}:  # concatenate checks the other dimensions itself
                    np.concatenate(values, out=self._end_to_end, casting="unsafe")
                    return
            except (TypeError, ValueError):
                pass
        for agent in self._agents:
            self.write(agent, observations[agent])

    def write(self, agent: Agent, observation: Any) -> None:
        row = self._row[agent]
        if type(observation) is np.ndarray and observation.shape == self._shape and observation.dtype.kind in "biuf":
            self._columns[0][row] = observation  # the usual case
            return
        for leaf, column in zip(self._leaves, self._columns, strict=True):
            value = _checked_part(observation, leaf, agent)
            try:
                column[row] = value
            except (TypeError, ValueError) as error:
                raise ValueError(
                    f"The environment returned an observation{leaf.name} for {agent!r} that is no {leaf.dtype}: "
                    f"{shortened(value)} ({error}). Correct the environment or its observation_space."
                ) from error

    def clear(self, agent: Agent) -> None:
        for leaf, column in zip(self._leaves, self._columns, strict=True):
            column[self._row[agent]] = 0 if leaf.fixed else None

    @property
    def value(self) -> Any:
        """All rows as one value. Its arrays are overwritten by later writes."""
        if self._constant is not None:
            return self._constant
        return self._assemble([tuple(column) if isinstance(column, list) else column for column in self._columns])


def _checked_part(observation: Any, leaf: Leaf, agent: Agent) -> Any:
    """Return a part of an observation. Raise ValueError if it is missing or has the wrong shape."""
    advice = "Correct the environment or its observation_space."
    try:
        value = leaf.of(observation)
    except (KeyError, IndexError, TypeError) as error:
        raise ValueError(
            f"The environment returned an observation without {leaf.name} for {agent!r}, whose observation space says "
            f"that there is one: {observation!r}. {advice}"
        ) from error
    if leaf.fixed and np.shape(value) != leaf.shape:
        raise ValueError(
            f"The environment returned an observation{leaf.name} of shape {np.shape(value)} for {agent!r}, but its "
            f"observation space says {leaf.shape}. {advice}"
        )
    return value


# ---- envs without possible_agents -----------------------------------------------------------------------------------


class OpenJointEnv(BaseJointEnv):
    """All agents of an env without `possible_agents`. Its results are sent unchanged, with the spaces of new agents."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.observation_space: Space[Any] = Anything()
        self.action_space: Space[Any] = Anything()
        self._known: dict[Agent, tuple[Space[Any], Space[Any]]] = {}
        self._parts: dict[Agent, tuple[Leaf, ...]] = {}

    def reset(self, *, seed: int | None = None, options: Info | None = None) -> tuple[Any, Info]:
        observations, infos = self._reset_env(seed, options)
        self._known.clear()  # an earlier announcement may have been lost with the answer to a step that failed
        return self._joint((observations, {}, {}, {}, infos)), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, Info]:
        if self._waits:
            return ({}, {}, {}, {}, {}, (), {}), 0.0, True, False, {}
        actions = {agent: action[agent] for agent in self.env.agents if agent in action}
        results, _, terminated, truncated = self._step_env(actions)
        return self._joint(results), 0.0, terminated, truncated, {}

    def _joint(self, results: Results) -> tuple[Any, ...]:
        """Return the env's results, the living agents, and the spaces that are new or have changed, by agent."""
        observations, rewards, terminations, truncations, infos = results
        known, news = self._known, {}
        for agent in dict.fromkeys((*observations, *self.env.agents)):
            spaces = self.env.observation_space(agent), self.env.action_space(agent)
            if known.get(agent) != spaces:
                news[agent] = known[agent] = spaces
                self._parts[agent] = leaves(spaces[0])
        for agent, observation in observations.items():
            for leaf in self._parts[agent]:
                _checked_part(observation, leaf, agent)
        return (
            dict(observations),
            {agent: as_float(reward) for agent, reward in rewards.items()},
            dict(terminations),
            dict(truncations),
            {agent: self._checked_info(info or {}, agent) if agent in known else info for agent, info in infos.items()},
            tuple(self.env.agents),
            news,
        )


# ---- factories ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class JointFactory:
    """Makes an env with `make` and wraps it as a joint env. `turns` says how an AEC env is played."""

    make: Callable[[], Any]
    turns: str

    def __call__(self) -> JointEnv | OpenJointEnv:
        env = self.make()
        with contextlib.ExitStack() as undo:
            undo.callback(getattr(env, "close", int))  # an env may have no `close`
            parallel = as_parallel(env, self.turns)
            joint = JointEnv(parallel) if hasattr(parallel, "possible_agents") else OpenJointEnv(parallel)
            undo.pop_all()
        return joint


@dataclass(frozen=True, slots=True)
class OnJoint:
    """Function that is called with the PettingZoo env inside a joint env."""

    function: Callable[..., Any]

    def __call__(self, env: JointEnv | OpenJointEnv, *args: Any) -> Any:
        return self.function(env.env.env if isinstance(env.env, TurnEnv) else env.env, *args)

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))


def joint_factories(
    env_fns: Any, num_envs: Any, turns: str, env_kwargs: Mapping[str, Any] | None
) -> list[JointFactory]:
    """Return one factory for each env. Raise TypeError or ValueError for arguments that are wrong."""
    if not is_one_of(turns, TURNS):
        raise ValueError(f"turns={turns!r} is unknown. Choose 'simultaneous' or 'sequential'.{hint(turns, TURNS)}")
    if isinstance(env_fns, str) and not is_env_file(env_fns):
        if num_envs is None:
            raise ValueError(f"The name {env_fns!r} was given without num_envs. Say how many environments to make.")
        check_count("num_envs", num_envs)
        if env_kwargs is not None and not isinstance(env_kwargs, Mapping):
            raise TypeError(f"env_kwargs={env_kwargs!r} is not a dict of keyword arguments.")
        if not env_fns.strip(".") or env_fns.startswith("."):
            raise ValueError(f"{env_fns!r} is not the path of a module. Give one such as 'mpe2.simple_spread_v3'.")
        return [JointFactory(ZooFactory(env_fns, turns, dict(env_kwargs or {})), turns)] * int(num_envs)
    return [JointFactory(make, turns) for make in factories(env_fns, num_envs, env_kwargs)[0]]
