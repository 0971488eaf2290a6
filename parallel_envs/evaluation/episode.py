"""Episodes: the seeds, the steps, the actions of the agents, and the resulting record.

    make the environment -> reset -> [ actions of all agents -> step ] ... -> EpisodeRecord

`play_episode` is called in a worker, or in the caller's process with `jobs=0`.
"""

from __future__ import annotations

import copy
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space, Tuple

from parallel_envs.choices import Strategy
from parallel_envs.errors import PolicyError
from parallel_envs.evaluation.config import EvaluationConfig
from parallel_envs.evaluation.determinism import seeded_globally
from parallel_envs.evaluation.failures import (
    EpisodeAborted,
    aborted_by,
    attributed_to,
    closing,
    failure_of,
    timeout_failure,
)
from parallel_envs.evaluation.missions import EnvMaker
from parallel_envs.evaluation.policies import Candidate, EpisodePolicies, PolicyTemplates, deal
from parallel_envs.evaluation.records import EpisodeKey, EpisodeRecord, Failure, Trajectory
from parallel_envs.policies import EachAgent
from parallel_envs.policies.ready import zero
from parallel_envs.seeding import SeedTree
from parallel_envs.wrappers import PolicyPool, Rules, WrappedMultiAgentPolicy

Agent = Any
ByAgent = dict[Agent, Any]

_SUCCESS = ("is_success", "success")
"""Infos in which environments tell whether the mission was accomplished."""


# ---- which episode, with which seeds --------------------------------------------------------------------------------

MissionKey = str | tuple[str, str]
"""A mission; or a mission and a policy, where each policy plays on its own. Its episodes take about equally long."""


@dataclass(frozen=True, slots=True)
class EpisodeSpec:
    """An episode to play.

    All randomness follows from the evaluation's seed (`root`), the mission's name and the episode's number: other
    missions, other policies and other episodes change nothing. `alone` is the policy of all agents, where each policy
    is evaluated on its own. Seeds do not follow from it, so all policies play the same episodes.
    """

    mission: str
    episode: int
    root: int
    alone: str = ""

    @property
    def key(self) -> EpisodeKey:
        return (self.mission, self.episode, self.alone) if self.alone else (self.mission, self.episode)

    @property
    def mission_key(self) -> MissionKey:
        return (self.mission, self.alone) if self.alone else self.mission

    @property
    def _node(self) -> SeedTree:
        return SeedTree(self.root).child("evaluation", self.mission, self.episode)

    @property
    def env_seed(self) -> int:
        """The seed for the environment's reset."""
        return self._node.child("env").seed()

    @property
    def global_seed(self) -> int:
        """The seed for the global generators of Python, NumPy and torch."""
        return self._node.child("global").seed()

    def agent_seed(self, number: int) -> int:
        """Return the seed for the policy of the agent that joined as this one, counted from 0."""
        return self._node.child("agent", number).seed()

    def dealing(self) -> np.random.Generator:
        """Return the generator that shuffles the policies among the agents."""
        return self._node.child("dealing").generator()


def episode_specs(missions: Iterable[str], episodes: int, seed: int, alone: Sequence[str] = ()) -> list[EpisodeSpec]:
    """Return all episodes, mission by mission. With `alone`, each of these policies plays all episodes by itself."""
    return [
        EpisodeSpec(mission, episode, seed, policy)
        for mission in missions
        for policy in alone or ("",)
        for episode in range(episodes)
    ]


def places(spec: EpisodeSpec, candidates: Sequence[Candidate], agents: Sequence[Agent]) -> dict[Agent, int]:
    """Return which candidate each agent has: the one that plays on its own, or one of those that share the agents."""
    if spec.alone:
        return dict.fromkeys(agents, [one.name for one in candidates].index(spec.alone))
    return deal(candidates, agents, spec.dealing())


def assignment(spec: EpisodeSpec, candidates: Sequence[Candidate], agents: Sequence[Agent]) -> dict[Agent, str]:
    """Return the name of each agent's policy."""
    return {agent: candidates[place].name for agent, place in places(spec, candidates, agents).items()}


# ---- playing it -----------------------------------------------------------------------------------------------------


@dataclass(kw_only=True)
class EpisodeContext:
    """Objects that an episode needs and that outlive it. A worker has a context for each mission.

    `watch` gets the environment after its reset and after each step.
    """

    maker: EnvMaker
    templates: PolicyTemplates
    config: EvaluationConfig
    strategy: Strategy | Mapping[Agent, Strategy] = "sequential"
    pool: PolicyPool | None = None
    watch: Callable[[Any], None] | None = None


def play_episode(spec: EpisodeSpec, context: EpisodeContext, attempt: int = 1) -> EpisodeRecord:
    """Play an episode and return its record. Errors become a failure of the record; only a Ctrl-C is raised."""
    episode, began = _Episode(spec, context), time.monotonic()
    failure: Failure | None = None
    with seeded_globally(spec.global_seed):
        try:
            episode.play()
        except EpisodeAborted as end:
            failure = end.failure
    return episode.record(failure, attempt, time.monotonic() - began)


class _Episode:
    def __init__(self, spec: EpisodeSpec, context: EpisodeContext) -> None:
        self._spec, self._context, self._config = spec, context, context.config
        self._candidates = context.templates.candidates
        self._places: dict[Agent, int] = {}
        self._pattern: list[int] = []  # the places of the agents that were known at the reset
        self._returns: dict[Agent, float] = {}
        self._length = 0
        self._infos: dict[str, ByAgent] = {name: {} for name in context.config.info_keys}
        self._success: bool | None = None
        self._first: ByAgent = {}
        self._steps: list[tuple[ByAgent, ...]] = []
        self._timeouts: dict[Agent, int] = {}

    def play(self) -> None:
        spec, context, config = self._spec, self._context, self._config
        with attributed_to("env", "making the env"):
            env = context.maker.make()
        with closing(env.close, "an environment"):
            with attributed_to("env", "reset"):
                observations, _ = env.reset(seed=spec.env_seed)
                agents = list(getattr(env, "possible_agents", None) or env.agents)
            self._places = places(spec, self._candidates, agents)
            self._pattern = list(self._places.values())
            policies = EpisodePolicies(context.templates, env, spec.agent_seed)
            arguments = partial(self._policy_of, policies), env, config, NoopActions(env, spec.global_seed)
            source: ActionSource
            if context.strategy == "sequential":
                source = SequentialActions(*arguments)
            else:
                source = WrapperActions(*arguments, context.strategy, context.pool)
            with closing(policies.close, "policies"), closing(source.close, "policies"):
                try:
                    self._run(env, source, observations)
                finally:
                    self._timeouts = dict(source.timeouts)

    def _policy_of(self, policies: EpisodePolicies, agent: Agent) -> Any:
        """Return the policy of a new agent. An agent that joins later gets the policies in the order of the others."""
        if agent not in self._places:
            if self._spec.alone:
                self._places |= places(self._spec, self._candidates, [agent])
            else:
                number = len(self._places) - len(self._pattern)
                pattern = self._pattern or range(len(self._candidates))
                self._places[agent] = pattern[number % len(pattern)]
        return policies.add(agent, self._places[agent])

    def _run(self, env: Any, source: ActionSource, observations: ByAgent) -> None:
        config, watch = self._config, self._context.watch or (lambda env: None)
        over: set[Agent] = set()
        deadline = math.inf
        if config.trajectories:
            self._first = copy.deepcopy(dict(observations))
        watch(env)
        while self._length < config.max_steps:
            where = f"step {self._length}"
            try:
                agents = [agent for agent in env.agents if agent not in over]
                seen = {agent: observations[agent] for agent in agents if agent in observations}
            except BaseException as error:  # user code: it may raise SystemExit, too
                raise aborted_by(error, "env", where) from error
            if not agents:
                if self._length == 0:
                    text = "The environment began without agents: nothing was played."
                    failure = Failure(kind="env", error_type="ValueError", message=text, where="reset")
                    raise EpisodeAborted(failure)
                return
            if time.monotonic() > deadline:
                raise EpisodeAborted(timeout_failure(config.episode_timeout or 0.0, where))
            actions = source.act(seen, self._length)
            if self._length == 0 and config.episode_timeout is not None:
                deadline = time.monotonic() + config.episode_timeout  # from here on everything is loaded
            try:
                observations, over = self._step(env, actions)
            except BaseException as error:  # user code: it may raise SystemExit, too
                raise aborted_by(error, "env", where) from error
            self._length += 1
            watch(env)

    def _step(self, env: Any, actions: ByAgent) -> tuple[ByAgent, set[Agent]]:
        """Step the environment and record the step. Return the observations, and the agents whose episode is over."""
        observations, rewards, terminated, truncated, infos = env.step(actions)
        for agent, reward in rewards.items():
            number = float(reward) if isinstance(reward, float | int) else np.asarray(reward, float).item()
            if not math.isfinite(number):
                raise ValueError(f"The environment gave {agent!r} the reward {number}.")
            self._returns[agent] = self._returns.get(agent, 0.0) + number
        for name, kept in self._infos.items():
            for agent, info in infos.items():
                if info and name in info:
                    try:
                        kept[agent] = copy.deepcopy(info[name])
                    except Exception as error:  # user code
                        text = f"The info {name!r} cannot be kept ({error}). Leave it out of info_keys."
                        raise TypeError(text) from error
        if flags := [info[name] for info in infos.values() if info for name in _SUCCESS if name in info]:
            self._success = all(bool(one) for one in flags)
        over = {agent for flags in (terminated, truncated) for agent, flag in flags.items() if flag}
        if self._config.trajectories:
            step = actions, observations, rewards, terminated, truncated
            self._steps.append(tuple(copy.deepcopy(dict(one)) for one in step))
        return observations, over

    def record(self, failure: Failure | None, attempt: int, seconds: float) -> EpisodeRecord:
        """Return the record of the episode, up to where it was played."""
        trajectory = None
        if self._config.trajectories:
            columns = tuple(zip(*self._steps, strict=True)) if self._steps else ((),) * 5
            actions, observations, rewards, terminations, truncations = columns
            trajectory = Trajectory(
                observations=(self._first, *observations),
                actions=actions,
                rewards=rewards,
                terminations=terminations,
                truncations=truncations,
            )
        return EpisodeRecord(
            mission=self._spec.mission,
            episode=self._spec.episode,
            alone=self._spec.alone,
            seed=self._spec.env_seed,
            assignment={agent: self._candidates[place].name for agent, place in self._places.items()},
            returns=self._returns,
            length=self._length,
            success=self._success,
            infos=self._infos,
            timeouts=self._timeouts,
            failure=failure,
            attempts=attempt,
            seconds=seconds,
            trajectory=trajectory,
        )


# ---- the actions of all agents in a step ----------------------------------------------------------------------------


class ActionSource(ABC):
    """Computes the actions of one episode. `policy_of` returns the policy of a new agent.

    The first action of an agent may take any time: libraries are loaded then, and code is compiled. A later action that
    takes longer than `action_timeout` is dropped, and the agent does nothing in this step. An agent that has been late
    by more than `lateness_budget` in all gets no more calls in this episode.
    """

    def __init__(
        self, policy_of: Callable[[Agent], Any], env: Any, config: EvaluationConfig, noops: NoopActions
    ) -> None:
        self._policy_of, self._env, self._config, self._noops = policy_of, env, config, noops
        self._policies: ByAgent = {}
        self._spaces: ByAgent = {}
        self._late: dict[Agent, int] = {}

    def act(self, observations: Mapping[Agent, Any], step: int) -> ByAgent:
        """Return an action for each agent. Raise EpisodeAborted if a policy raises or returns no valid action."""
        new = [agent for agent in observations if agent not in self._policies]
        first = {}
        for agent in new:
            with attributed_to("policy", f"making the policy of {agent!r}"):
                self._policies[agent] = self._policy_of(agent)
            self._spaces[agent] = self._env.action_space(agent)
            first[agent] = self._action_of(agent, observations[agent], step)
        known = {agent: seen for agent, seen in observations.items() if agent not in first} if new else observations
        actions = {**first, **self._actions_of(known, step)} if known else first
        for agent, action in actions.items():
            if problem := action_problem(self._spaces[agent], action):
                text = f"The policy of {agent!r} returned {problem}."
                failure = Failure(kind="nonsense", error_type="ValueError", message=text, where=f"step {step}")
                raise EpisodeAborted(failure)
        return {agent: actions[agent] for agent in observations}

    def _action_of(self, agent: Agent, observation: Any, step: int) -> Any:
        try:
            return self._policies[agent].step(observation)
        except BaseException as error:  # user code: it may raise SystemExit, too
            raise aborted_by(error, "policy", f"step {step}, {agent!r}") from error

    @abstractmethod
    def _actions_of(self, observations: Mapping[Agent, Any], step: int) -> ByAgent:
        """Return the actions of agents that have acted before."""

    @property
    def timeouts(self) -> dict[Agent, int]:
        """The number of late actions of each agent that was late."""
        return self._late

    def close(self) -> None:  # noqa: B027  # nothing was opened
        """Close the objects that were opened for this episode."""


class SequentialActions(ActionSource):
    """Calls one policy after another, in this thread."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._late_seconds: dict[Agent, float] = {}

    def _actions_of(self, observations: Mapping[Agent, Any], step: int) -> ByAgent:
        act = self._action_of if self._config.action_timeout is None else self._action_in_time
        return {agent: act(agent, seen, step) for agent, seen in observations.items()}

    def _action_in_time(self, agent: Agent, observation: Any, step: int) -> Any:
        limit, budget = self._config.action_timeout, self._config.lateness_budget
        assert limit is not None, "called with a limit only"
        late_so_far = self._late_seconds.get(agent, 0.0)
        if budget is None or late_so_far <= budget:
            began = time.monotonic()
            action = self._action_of(agent, observation, step)
            lateness = time.monotonic() - began - limit
            if lateness <= 0:
                return action
            self._late_seconds[agent] = late_so_far + lateness
        self._late[agent] = self._late.get(agent, 0) + 1
        return self._noops.of(agent, observation)


class WrapperActions(ActionSource):
    """Calls the policies by a strategy of `parallel_envs.wrappers`, from the second action of each agent on."""

    def __init__(
        self,
        policy_of: Callable[[Agent], Any],
        env: Any,
        config: EvaluationConfig,
        noops: NoopActions,
        strategy: Strategy | Mapping[Agent, Strategy],
        pool: PolicyPool | None,
    ) -> None:
        super().__init__(policy_of, env, config, noops)
        self._seen: Mapping[Agent, Any] = {}
        rules = None
        if config.action_timeout is not None:
            rules = Rules(
                action_timeout=config.action_timeout,
                lateness_budget=config.lateness_budget,
                default_action=lambda agent: noops.of(agent, self._seen[agent]),
            )
        self._wrapper = WrappedMultiAgentPolicy(
            EachAgent(lambda agent: self._policies[agent]), strategy, budget=pool, rules=rules
        )

    def _actions_of(self, observations: Mapping[Agent, Any], step: int) -> ByAgent:
        self._seen = observations
        try:
            return self._wrapper.step(observations)
        except PolicyError as error:
            where = ", ".join([f"step {step}", *map(repr, error.agents)])
            described = failure_of(error.__cause__ or error, "policy", where)
            failure = Failure(
                kind="policy",
                error_type=error.type_name,
                message=error.remote_message,
                traceback=described.traceback,
                where=where,
            )
            raise EpisodeAborted(failure) from error

    @property
    def timeouts(self) -> dict[Agent, int]:
        tallies = self._wrapper.tallies
        return {agent: tallies[agent].defaults for agent in tallies if tallies[agent].defaults}

    def close(self) -> None:
        self._wrapper.close()


def action_problem(space: Space[Any], action: Any) -> str | None:
    """Return why this is not an action of the space, or None if it is one.

    Numbers for a Box may be of any type, and may exceed its bounds, as samples of a normal distribution do: the
    environment decides whether to clip them. The same holds for a Box within a Dict or a Tuple.
    """
    if isinstance(space, Dict) and isinstance(action, Mapping) and action.keys() == space.spaces.keys():
        problems = (action_problem(space[name], action[name]) for name in space.spaces)
        return next((problem for problem in problems if problem is not None), None)
    if isinstance(space, Tuple) and isinstance(action, tuple | list) and len(action) == len(space.spaces):
        problems = (action_problem(part, one) for part, one in zip(space.spaces, action, strict=True))
        return next((problem for problem in problems if problem is not None), None)
    try:
        if isinstance(space, Box):
            numbers = np.asarray(action)
            fits = numbers.shape == space.shape and numbers.dtype.kind in "biuf"
            if fits and not np.isfinite(numbers).all():
                return f"{action!r}, which is not finite"
        else:
            fits = bool(space.contains(action))
    except Exception:  # noqa: BLE001  # NumPy and some spaces raise for values that they cannot convert
        fits = False
    return None if fits else f"{action!r}, which is not an action of {space}"


class NoopActions:
    """The actions of late agents: as near to nothing as their action spaces have it."""

    def __init__(self, env: Any, seed: int) -> None:
        self._env, self._seed = env, seed

    def of(self, agent: Agent, observation: Any) -> Any:
        """Return the zero of the agent's space, or the first allowed action if the agent's mask forbids the zero."""
        space = self._env.action_space(agent)
        try:
            nothing = zero(space)
        except TypeError:  # text and some other spaces have no zero
            space = copy.deepcopy(space)
            space.seed(self._seed)
            return space.sample()
        mask = observation.get("action_mask") if isinstance(observation, dict) else None
        if mask is None or not isinstance(space, Discrete) or mask[nothing - space.start] or not np.any(mask):
            return nothing
        return int(space.start) + int(np.flatnonzero(mask)[0])
