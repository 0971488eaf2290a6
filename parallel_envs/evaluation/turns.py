"""A turn of all agents: their actions, in time or replaced, and checked."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

from parallel_envs.choices import Strategy
from parallel_envs.errors import PolicyError
from parallel_envs.evaluation.actions import Noops, objection
from parallel_envs.evaluation.blame import EpisodeEnds, blaming, ended_by, failure_of
from parallel_envs.evaluation.records import Failure
from parallel_envs.evaluation.settings import PlaySettings
from parallel_envs.policies import EachAgent
from parallel_envs.wrappers import PolicyPool, Rules, WrappedMultiAgentPolicy
from parallel_envs.wrappers.rules import REVIVE_ADVICE

Agent = Any
Named = dict[Agent, Any]
PolicyOf = Callable[[Agent], Any]


class Turns(ABC):
    """Asks the policies of one episode.

    The first action of an agent may take as long as it likes: libraries are loaded then, and code is compiled. One that
    comes later than `action_timeout` is dropped, and the agent does nothing instead. An agent that has been late by
    more than `lateness_budget` in all is asked no more.

    Args:
        policy_of: The policy of an agent that is met for the first time.
        env: Whose action spaces count.
        settings: Deadlines.
        noops: What an agent does that is late.
    """

    def __init__(self, policy_of: PolicyOf, env: Any, settings: PlaySettings, noops: Noops) -> None:
        self._policy_of, self._env, self._settings, self._noops = policy_of, env, settings, noops
        self._policies: Named = {}
        self._spaces: Named = {}
        self._late: dict[Agent, int] = {}

    def act(self, observations: Mapping[Agent, Any], step: int) -> Named:
        """An action for each of these. Raises EpisodeEnds if a policy raises, or says what is no action."""
        new = [agent for agent in observations if agent not in self._policies]
        first = {agent: self._begin(agent, observations[agent], step) for agent in new}
        known = {agent: seen for agent, seen in observations.items() if agent not in first} if new else observations
        actions = {**first, **self._ask(known, step)} if known else first
        for agent, action in actions.items():
            if problem := objection(self._spaces[agent], action):
                text = f"The policy of {agent!r} returned {problem}."
                raise EpisodeEnds(Failure(kind="nonsense", error_type="ValueError", message=text, where=_where(step)))
        return {agent: actions[agent] for agent in observations}

    def _begin(self, agent: Agent, observation: Any, step: int) -> Any:
        """An agent's first action."""
        with blaming("policy", f"making the policy of {agent!r}"):
            self._policies[agent] = self._policy_of(agent)
        self._spaces[agent] = self._env.action_space(agent)
        return self._asked(agent, observation, step)

    def _asked(self, agent: Agent, observation: Any, step: int) -> Any:
        try:
            return self._policies[agent].step(observation)
        except BaseException as error:  # user code: SystemExit too is a way to fail
            raise ended_by(error, "policy", f"{_where(step)}, {agent!r}") from error

    @abstractmethod
    def _ask(self, observations: Mapping[Agent, Any], step: int) -> Named:
        """The actions of agents who have acted before."""

    @property
    def timeouts(self) -> dict[Agent, int]:
        """How often an agent did nothing because it was late, of those who were."""
        return self._late

    def close(self) -> None:  # noqa: B027  # nothing was opened
        """Let go of what was opened for these turns."""


def _where(step: int) -> str:
    return f"step {step}"


class OneByOne(Turns):
    """One policy after another, here."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._late_seconds: dict[Agent, float] = {}

    def _ask(self, observations: Mapping[Agent, Any], step: int) -> Named:
        ask = self._asked if self._settings.action_timeout is None else self._in_time
        return {agent: ask(agent, seen, step) for agent, seen in observations.items()}

    def _in_time(self, agent: Agent, observation: Any, step: int) -> Any:
        limit, budget = self._settings.action_timeout, self._settings.lateness_budget
        assert limit is not None, "asked with a limit only"
        late_so_far = self._late_seconds.get(agent, 0.0)
        if budget is None or late_so_far <= budget:
            began = time.monotonic()
            action = self._asked(agent, observation, step)
            lateness = time.monotonic() - began - limit
            if lateness <= 0:
                return action
            self._late_seconds[agent] = late_so_far + lateness
        self._late[agent] = self._late.get(agent, 0) + 1
        return self._noops.of(agent, observation)


class Wrapped(Turns):
    """By a strategy of `parallel_envs.wrappers`, which gets each policy when it has acted once."""

    def __init__(
        self,
        policy_of: PolicyOf,
        env: Any,
        settings: PlaySettings,
        noops: Noops,
        strategy: Strategy | Mapping[Agent, Strategy],
        pool: PolicyPool | None,
    ) -> None:
        super().__init__(policy_of, env, settings, noops)
        self._seen: Mapping[Agent, Any] = {}
        rules = None
        if settings.action_timeout is not None:
            rules = Rules(
                action_timeout=settings.action_timeout,
                lateness_budget=settings.lateness_budget,
                default_action=self._default,
            )
        self._wrapper = WrappedMultiAgentPolicy(
            EachAgent(lambda agent: self._policies[agent]), strategy, budget=pool, rules=rules
        )

    def _default(self, agent: Agent) -> Any:
        return self._noops.of(agent, self._seen[agent])

    def _ask(self, observations: Mapping[Agent, Any], step: int) -> Named:
        self._seen = observations
        try:
            return self._wrapper.step(observations)
        except PolicyError as error:
            raise EpisodeEnds(_failure_in_wrapper(error, step)) from error

    @property
    def timeouts(self) -> dict[Agent, int]:
        tallies = self._wrapper.tallies
        return {agent: tallies[agent].defaults for agent in tallies if tallies[agent].defaults}

    def close(self) -> None:
        self._wrapper.close()


def _failure_in_wrapper(error: PolicyError, step: int) -> Failure:
    where = ", ".join([_where(step), *map(repr, error.agents)])
    told = failure_of(error.__cause__ or error, "policy", where)
    return Failure(
        kind="policy",
        error_type=error.type_name,
        message=error.remote_message.replace(REVIVE_ADVICE, ""),  # a user of `evaluate` has no wrapper to call
        traceback=told.traceback.replace(REVIVE_ADVICE, ""),
        where=where,
    )
