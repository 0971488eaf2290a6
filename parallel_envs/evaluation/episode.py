"""One episode, from making the environment to the record of what happened."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from parallel_envs.choices import Strategy
from parallel_envs.evaluation.actions import Noops
from parallel_envs.evaluation.blame import EpisodeEnds, blaming, closing, ended_by, timeout_failure
from parallel_envs.evaluation.candidates import Candidate, deal
from parallel_envs.evaluation.generators import seeded_globally
from parallel_envs.evaluation.missions import EnvMaker
from parallel_envs.evaluation.records import EpisodeRecord, Failure, Trajectory
from parallel_envs.evaluation.settings import PlaySettings
from parallel_envs.evaluation.team import Originals, Team
from parallel_envs.evaluation.turns import OneByOne, Turns, Wrapped
from parallel_envs.evaluation.work import Order
from parallel_envs.wrappers import PolicyPool

Agent = Any
Named = dict[Agent, Any]
Watch = Callable[[Any], None]
"""Is shown the environment after its reset and after each step."""

_SUCCESS = ("is_success", "success")
"""The infos in which environments tell whether the mission was accomplished."""


_NOBODY = Failure(
    kind="env",
    error_type="ValueError",
    message="The environment began without agents: nothing was played.",
    where="reset",
)


@dataclass(kw_only=True)
class Stage:
    """What an episode needs, and what outlasts it: a worker has one for each mission."""

    maker: EnvMaker
    originals: Originals
    settings: PlaySettings
    strategy: Strategy | Mapping[Agent, Strategy] = "sequential"
    pool: PolicyPool | None = None
    watch: Watch | None = None


@dataclass(slots=True)
class _Account:
    """What has happened so far."""

    returns: dict[Agent, float] = field(default_factory=dict)
    length: int = 0
    infos: dict[str, Named] = field(default_factory=dict)
    success: bool | None = None
    steps: list[tuple[Named, ...]] = field(default_factory=list)
    first: Named = field(default_factory=dict)


def assignment(order: Order, candidates: Sequence[Candidate], agents: Sequence[Agent]) -> dict[Agent, str]:
    """The name of each agent's policy in an episode."""
    return {agent: candidates[place].name for agent, place in places(order, candidates, agents).items()}


def places(order: Order, candidates: Sequence[Candidate], agents: Sequence[Agent]) -> dict[Agent, int]:
    """Which candidate each agent has in an episode: the one that plays alone, or dealt out among all."""
    if order.alone:
        return dict.fromkeys(agents, [one.name for one in candidates].index(order.alone))
    return deal(candidates, agents, order.dealing())


def play(order: Order, stage: Stage, attempt: int = 1) -> EpisodeRecord:
    """Play an episode. What goes wrong in it is told in the record; only a Ctrl-C is raised."""
    episode, began = _Episode(order, stage), time.monotonic()
    failure: Failure | None = None
    with seeded_globally(order.global_seed):
        try:
            episode.play()
        except EpisodeEnds as end:
            failure = end.failure
    return episode.record(failure, attempt, time.monotonic() - began)


def _copied(value: Any, name: str) -> Any:
    try:
        return copy.deepcopy(value)
    except Exception as error:  # user code
        raise TypeError(f"The info {name!r} cannot be kept ({error}). Leave it out of info_keys.") from error


class _Episode:
    def __init__(self, order: Order, stage: Stage) -> None:
        self._order, self._stage, self._settings = order, stage, stage.settings
        self._account = _Account(infos={name: {} for name in stage.settings.info_keys})
        self._places: dict[Agent, int] = {}
        self._pattern: list[int] = []
        self._timeouts: dict[Agent, int] = {}
        self._until = math.inf

    # ---- the course -------------------------------------------------------------------------------------------------

    def play(self) -> None:
        with blaming("env", "making the env"):
            env = self._stage.maker.make()
        with closing(env.close, "an environment"):
            with blaming("env", "reset"):
                observations, _ = env.reset(seed=self._order.env_seed)
                agents = list(getattr(env, "possible_agents", None) or env.agents)
            self._places = places(self._order, self._stage.originals.candidates, agents)
            self._pattern = list(self._places.values())
            team = Team(self._stage.originals, env, self._order.agent_seed)
            turns = self._turns(env, team)
            with closing(team.close, "policies"), closing(turns.close, "policies"):
                try:
                    self._run(env, turns, observations)
                finally:
                    self._timeouts = dict(turns.timeouts)

    def _turns(self, env: Any, team: Team) -> Turns:
        stage = self._stage
        known = (lambda agent: self._join(team, agent)), env, self._settings, Noops(env, self._order.global_seed)
        if stage.strategy == "sequential":
            return OneByOne(*known)
        return Wrapped(*known, stage.strategy, stage.pool)

    def _join(self, team: Team, agent: Agent) -> Any:
        """An agent's policy. Those that nobody knew of before are dealt policies in the order of the others."""
        if agent not in self._places:
            number = len(self._places) - len(self._pattern)
            candidates = self._stage.originals.candidates
            if self._order.alone:
                self._places |= places(self._order, candidates, [agent])
            else:
                pattern = self._pattern or range(len(candidates))
                self._places[agent] = pattern[number % len(pattern)]
        return team.join(agent, self._places[agent])

    def _run(self, env: Any, turns: Turns, observations: Named) -> None:
        account, settings, watch = self._account, self._settings, self._stage.watch or (lambda env: None)
        over: set[Agent] = set()
        if settings.trajectories:
            account.first = copy.deepcopy(dict(observations))
        watch(env)
        while account.length < settings.max_steps:
            seen = self._seen(env, observations, over)
            if seen is None:
                if account.length == 0:
                    raise EpisodeEnds(_NOBODY)
                return
            if time.monotonic() > self._until:
                raise EpisodeEnds(timeout_failure(settings.episode_timeout or 0.0, self._where))
            actions = turns.act(seen, account.length)
            if account.length == 0 and settings.episode_timeout is not None:
                self._until = time.monotonic() + settings.episode_timeout  # from here on: all is loaded
            observations, over = self._step(env, actions)
            watch(env)

    def _seen(self, env: Any, observations: Named, over: set[Agent]) -> Named | None:
        """What the agents observe that are to act; None: nobody is left."""
        try:
            agents = [agent for agent in env.agents if agent not in over]
            return {agent: observations[agent] for agent in agents if agent in observations} if agents else None
        except BaseException as error:  # user code: SystemExit too is a way to fail
            raise ended_by(error, "env", self._where) from error

    def _step(self, env: Any, actions: Named) -> tuple[Named, set[Agent]]:
        """A step, noted. Returns what is observed, and of whom it is the end."""
        try:
            observations, rewards, terminated, truncated, infos = env.step(actions)
            self._note(rewards, infos)
            over = {agent for flags in (terminated, truncated) for agent, flag in flags.items() if flag}
            if self._settings.trajectories:
                told = actions, observations, rewards, terminated, truncated
                self._account.steps.append(tuple(copy.deepcopy(dict(one)) for one in told))
        except BaseException as error:  # user code: SystemExit too is a way to fail
            raise ended_by(error, "env", self._where) from error
        self._account.length += 1
        return observations, over

    @property
    def _where(self) -> str:
        return f"step {self._account.length}"

    # ---- what is noted ----------------------------------------------------------------------------------------------

    def _note(self, rewards: Mapping[Agent, Any], infos: Mapping[Agent, Any]) -> None:
        returns = self._account.returns
        for agent, reward in rewards.items():
            number = float(reward) if isinstance(reward, float | int) else np.asarray(reward, float).item()
            if not math.isfinite(number):
                raise ValueError(f"The environment gave {agent!r} the reward {number}.")
            returns[agent] = returns.get(agent, 0.0) + number
        if infos:
            self._note_infos(infos)

    def _note_infos(self, infos: Mapping[Agent, Any]) -> None:
        """The last value of each info counts."""
        for name, kept in self._account.infos.items():
            for agent, info in infos.items():
                if info and name in info:
                    kept[agent] = _copied(info[name], name)
        told = [info[name] for info in infos.values() if info for name in _SUCCESS if name in info]
        if told:
            self._account.success = all(bool(one) for one in told)

    def record(self, failure: Failure | None, attempt: int, seconds: float) -> EpisodeRecord:
        """What there is to tell."""
        account, candidates = self._account, self._stage.originals.candidates
        return EpisodeRecord(
            mission=self._order.mission,
            episode=self._order.episode,
            alone=self._order.alone,
            seed=self._order.env_seed,
            assignment={agent: candidates[place].name for agent, place in self._places.items()},
            returns=account.returns,
            length=account.length,
            success=account.success,
            infos=account.infos,
            timeouts=self._timeouts,
            failure=failure,
            attempts=attempt,
            seconds=seconds,
            trajectory=self._trajectory(),
        )

    def _trajectory(self) -> Trajectory | None:
        if not self._settings.trajectories:
            return None
        actions, observations, rewards, terminations, truncations = (
            tuple(zip(*self._account.steps, strict=True)) if self._account.steps else ((),) * 5
        )
        return Trajectory(
            observations=(self._account.first, *observations),
            actions=actions,
            rewards=rewards,
            terminations=terminations,
            truncations=truncations,
        )
