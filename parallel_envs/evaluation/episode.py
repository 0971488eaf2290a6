"""Episodes: the seeds, the steps, the actions of the agents, and the resulting record.

    make the environment -> reset -> [ actions of all agents -> step ] ... -> EpisodeRecord

`play_episode` is called in a worker, or in the caller's process with `jobs=0`. An exception of an environment or a
policy ends the episode, and becomes the `Failure` of its record.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, Space, Tuple

from parallel_envs import engine
from parallel_envs.choices import Strategy
from parallel_envs.devices import AUTO, CPU
from parallel_envs.engine import Death, reraise_ctrl_c
from parallel_envs.engine.worker_group import exit_text, without_engine_frames
from parallel_envs.errors import PolicyError
from parallel_envs.evaluation.determinism import seeded_globally
from parallel_envs.evaluation.missions import EnvMaker
from parallel_envs.evaluation.policies import Candidate, EpisodePolicies, PolicyTemplates, deal
from parallel_envs.evaluation.records import (
    EpisodeKey,
    EpisodeRecord,
    EvaluationConfig,
    Failure,
    FailureKind,
    Trajectory,
)
from parallel_envs.policies import EachAgent
from parallel_envs.policies.ready import zero
from parallel_envs.seeding import SeedTree
from parallel_envs.wrappers import PolicyPool, Rules, WrappedMultiAgentPolicy

Agent = Any
ByAgent = dict[Agent, Any]

_log = logging.getLogger(__name__)
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

    def record(self, candidates: Sequence[Candidate], places: Mapping[Agent, int], **fields: Any) -> EpisodeRecord:
        """Return the record of the episode, whose agents had the candidates at these places."""
        names = {agent: candidates[place].name for agent, place in places.items()}
        own: dict[str, Any] = {
            "mission": self.mission,
            "episode": self.episode,
            "alone": self.alone,
            "seed": self.env_seed,
        }
        return EpisodeRecord(**own, assignment=names, **fields)

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


# ---- failures -------------------------------------------------------------------------------------------------------


class EpisodeAborted(Exception):
    """The episode cannot go on. `failure` is the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


def aborted_by(error: BaseException, kind: FailureKind, where: str) -> EpisodeAborted:
    """Return the exception to raise instead of `error`. A Ctrl-C of the user is raised here.

    The traceback of the failure begins at the last frame of this package's own code.
    """
    reraise_ctrl_c(error)
    described = engine.Failure.of(error)
    name, message = described.type_name, described.message
    if isinstance(error, PolicyError):  # of a wrapper, whose own text has advice for its user
        name, message, error = error.type_name, error.remote_message, error.__cause__ or error
    frames = traceback.extract_tb(error.__traceback__)
    own = [number for number, frame in enumerate(frames) if "/parallel_envs/evaluation/" in frame.filename]
    stack = "".join(traceback.StackSummary.from_list(frames[own[-1] if own else 0 :]).format())
    lines = f"Traceback (most recent call last):\n{stack}{''.join(traceback.format_exception_only(error))}"
    return EpisodeAborted(Failure(kind=kind, error_type=name, message=message, traceback=lines, where=where))


@contextlib.contextmanager
def attributed_to(kind: FailureKind, where: str) -> Iterator[None]:
    """Turn any exception into `EpisodeAborted` by the fault of `kind`, except a Ctrl-C of the user."""
    try:
        yield
    except EpisodeAborted:
        raise
    except BaseException as error:  # user code: it may raise SystemExit, too
        raise aborted_by(error, kind, where) from error


@contextlib.contextmanager
def closing(close: Callable[[], Any], what: str) -> Iterator[None]:
    """Call `close` at the end and log what it raises: the numbers of the episode stay valid."""
    try:
        yield
    finally:
        try:
            close()
        except BaseException as error:  # noqa: BLE001  # user code: it may raise SystemExit, too
            reraise_ctrl_c(error)
            _log.warning("Closing %s raised %s: %s", what, type(error).__name__, error)


def failure_of_death(death: Death) -> Failure:
    """Return the failure for an episode whose worker died."""
    advice = " The system may be out of memory: give fewer jobs." if death.exitcode == -9 else ""
    text = f"The worker that played the episode (pid {death.pid}) {exit_text(death.exitcode)}.{advice}"
    return Failure(kind="death", error_type="WorkerDied", message=text, traceback="\n".join(death.last_output))


def timeout_failure(seconds: float, where: str, stack: str = "") -> Failure:
    """Return the failure for an episode that takes too long. `stack`: the stack of the worker that played it."""
    text, lines = f"The episode took longer than episode_timeout={seconds:g} seconds.", without_engine_frames(stack)
    return Failure(kind="timeout", error_type="TimeoutError", message=text, traceback=lines, where=where)


# ---- playing an episode ---------------------------------------------------------------------------------------------


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

    @property
    def device(self) -> str:
        """The device of the mission, or that of all missions."""
        return self.maker.mission.device or self.config.device


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
        self._steps: list[tuple[ByAgent, ...]] = []  # the first has the observations of the reset alone
        self._timeouts: dict[Agent, int] = {}

    def play(self) -> None:
        spec, context = self._spec, self._context
        with attributed_to("env", "making the env"):
            env = context.maker.make()
        with closing(env.close, "an environment"):
            with attributed_to("env", "reset"):
                observations, _ = env.reset(seed=spec.env_seed)
                agents = list(getattr(env, "possible_agents", None) or env.agents)
            self._places = places(spec, self._candidates, agents)
            self._pattern = list(self._places.values())
            policies = EpisodePolicies(context.templates, env, spec.agent_seed, context.device)
            policy_of = partial(self._policy_of, policies)
            how = context.strategy, context.pool, context.device
            actions = Actions(policy_of, env, context.config, spec.global_seed, *how)
            with closing(policies.close, "policies"), closing(actions.close, "policies"):
                try:
                    self._run(env, actions, observations)
                finally:
                    self._timeouts = dict(actions.timeouts)

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

    def _run(self, env: Any, source: Actions, observations: ByAgent) -> None:
        config, watch = self._config, self._context.watch or (lambda env: None)
        over: set[Agent] = set()
        deadline = math.inf
        if config.trajectories:
            self._steps.append((copy.deepcopy(dict(observations)),))
        watch(env)
        while self._length < config.max_steps:
            try:
                agents = [agent for agent in env.agents if agent not in over]
                if not agents and self._length:
                    return
                if not agents:
                    text = "The environment began without agents: nothing was played."
                    raise EpisodeAborted(Failure(kind="env", error_type="ValueError", message=text, where="reset"))
                if time.monotonic() > deadline:
                    raise EpisodeAborted(timeout_failure(config.episode_timeout or 0.0, f"step {self._length}"))
                seen = {agent: observations[agent] for agent in agents if agent in observations}
                actions = source.act(seen, self._length)
                if self._length == 0 and config.episode_timeout is not None:
                    deadline = time.monotonic() + config.episode_timeout  # from here on everything is loaded
                observations, over = self._step(env, actions)
            except EpisodeAborted:
                raise
            except BaseException as error:  # user code: it may raise SystemExit, too
                raise aborted_by(error, "env", f"step {self._length}") from error
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
            step = observations, actions, rewards, terminated, truncated
            self._steps.append(tuple(copy.deepcopy(dict(one)) for one in step))
        return observations, over

    def record(self, failure: Failure | None, attempt: int, seconds: float) -> EpisodeRecord:
        """Return the record of the episode, up to where it was played."""
        trajectory = None
        if self._config.trajectories:
            observations = tuple(step[0] for step in self._steps) or ({},)
            names = "actions", "rewards", "terminations", "truncations"
            parts = {name: tuple(step[place] for step in self._steps[1:]) for place, name in enumerate(names, 1)}
            trajectory = Trajectory(observations=observations, **parts)
        return self._spec.record(
            self._candidates,
            self._places,
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


class Actions:
    """Computes the actions of one episode. `policy_of` returns the policy of a new agent.

    The first action of an agent may take any time: libraries are loaded then, and code is compiled. Later actions are
    computed one after another, or by the strategy of `parallel_envs.wrappers` that was requested. A later action that
    takes longer than `action_timeout` is dropped, and the agent does nothing in this step. An agent that has been late
    by more than `lateness_budget` in all gets no more calls in this episode.
    """

    def __init__(
        self,
        policy_of: Callable[[Agent], Any],
        env: Any,
        config: EvaluationConfig,
        seed: int,
        strategy: Strategy | Mapping[Agent, Strategy] = "sequential",
        pool: PolicyPool | None = None,
        device: str = CPU,
    ) -> None:
        self._policy_of, self._env, self._seed = policy_of, env, seed
        self._limit, self._budget = config.action_timeout, config.lateness_budget
        self._policies: ByAgent = {}
        self._spaces: ByAgent = {}
        self._seen: Mapping[Agent, Any] = {}
        self._late_seconds: dict[Agent, float] = {}
        self._late: dict[Agent, int] = {}
        self._wrapper: WrappedMultiAgentPolicy | None = None
        if strategy != "sequential":
            limits: dict[str, Any] = {"action_timeout": self._limit, "lateness_budget": self._budget}
            rules = None if self._limit is None else Rules(default_action=self._noop, **limits)
            policies = EachAgent(lambda agent: self._policies[agent])
            names = strategy.values() if isinstance(strategy, Mapping) else (strategy,)
            place = device if device != CPU and "gpu" in names else AUTO
            self._wrapper = WrappedMultiAgentPolicy(policies, strategy, budget=pool, rules=rules, device=place)

    def _noop(self, agent: Agent) -> Any:
        return noop(self._spaces[agent], self._seen[agent], self._seed)

    @property
    def timeouts(self) -> dict[Agent, int]:
        """The number of late actions of each agent that was late."""
        if self._wrapper is None:
            return self._late
        return {agent: tally.defaults for agent, tally in self._wrapper.tallies.items() if tally.defaults}

    def act(self, observations: Mapping[Agent, Any], step: int) -> ByAgent:
        """Return an action for each agent. Raise EpisodeAborted if a policy raises or returns no valid action."""
        actions, known = {}, observations
        if new := [agent for agent in observations if agent not in self._policies]:
            for agent in new:
                with attributed_to("policy", f"making the policy of {agent!r}"):
                    self._policies[agent] = self._policy_of(agent)
                self._spaces[agent] = self._env.action_space(agent)
                actions[agent] = self._action_of(agent, observations[agent], step)
            known = {agent: seen for agent, seen in observations.items() if agent not in actions}
        self._seen = known
        if self._wrapper is None:
            act = self._action_of if self._limit is None else self._action_in_time
            actions |= {agent: act(agent, seen, step) for agent, seen in known.items()}
        elif known:
            try:
                actions |= self._wrapper.step(known)
            except PolicyError as error:
                raise aborted_by(error, "policy", ", ".join([f"step {step}", *map(repr, error.agents)])) from error
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

    def _action_in_time(self, agent: Agent, observation: Any, step: int) -> Any:
        """Do what `Rules` do for other strategies, at a tenth of their cost in each step."""
        limit, late_so_far = self._limit or 0.0, self._late_seconds.get(agent, 0.0)
        if self._budget is None or late_so_far <= self._budget:
            began = time.monotonic()
            action = self._action_of(agent, observation, step)
            lateness = time.monotonic() - began - limit
            if lateness <= 0:
                return action
            self._late_seconds[agent] = late_so_far + lateness
        self._late[agent] = self._late.get(agent, 0) + 1
        return self._noop(agent)

    def close(self) -> None:
        """Close the wrapper. The policies stay open."""
        if self._wrapper is not None:
            self._wrapper.close()


def action_problem(space: Space[Any], action: Any) -> str | None:
    """Return why this is not an action of the space, or None if it is one.

    Numbers for a Box may be of any type, and may exceed its bounds, as samples of a normal distribution do: the
    environment decides whether to clip them. The same holds for a Box within a Dict or a Tuple.
    """
    parts: list[tuple[Space[Any], Any]] = []
    if isinstance(space, Dict) and isinstance(action, Mapping) and action.keys() == space.spaces.keys():
        parts = [(space[name], action[name]) for name in space.spaces]
    elif isinstance(space, Tuple) and isinstance(action, tuple | list) and len(action) == len(space.spaces):
        parts = list(zip(space.spaces, action, strict=True))
    if parts:
        problems = (action_problem(part, one) for part, one in parts)
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


def noop(space: Space[Any], observation: Any, seed: int) -> Any:
    """Return the action of a late agent: the zero of its space, or the first allowed action if its mask forbids zero.

    Text and some other spaces have no zero: then it is sampled with the seed.
    """
    try:
        nothing = zero(space)
    except TypeError:
        space = copy.deepcopy(space)
        space.seed(seed)
        return space.sample()
    mask = observation.get("action_mask") if isinstance(observation, dict) else None
    if mask is None or not isinstance(space, Discrete) or mask[nothing - space.start] or not np.any(mask):
        return nothing
    return int(space.start) + int(np.flatnonzero(mask)[0])
