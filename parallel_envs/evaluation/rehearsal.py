"""Before anything is played: whether a mission can be made, and whether the policies fit its agents."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from parallel_envs.choices import Strategy
from parallel_envs.evaluation.actions import objection
from parallel_envs.evaluation.blame import EpisodeEnds, blaming, closing
from parallel_envs.evaluation.candidates import deal
from parallel_envs.evaluation.episode import Stage
from parallel_envs.evaluation.generators import seeded_globally
from parallel_envs.evaluation.team import Team
from parallel_envs.evaluation.work import Order
from parallel_envs.wrappers import PerAgentAutoWrapper

Agent = Any
_TURNS = 6  # of which `auto` measures five


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What has come out.

    Args:
        mission: Of this mission.
        agents: Those that are known before anything is played.
        problem: Why it cannot be evaluated, or None.
        strategy: How its policies are computed: what was asked for, or what was found to be quickest.
    """

    mission: str
    agents: tuple[Agent, ...] = ()
    problem: str | None = None
    strategy: Strategy = "sequential"


def rehearse(order: Order, stage: Stage) -> Rehearsal:
    """Make the environment, and have every policy act once for every agent that is there."""
    with seeded_globally(order.global_seed):
        try:
            return _Rehearsing(order, stage).run()
        except EpisodeEnds as end:
            failure = end.failure
            problem = f"{failure.where} raised {failure.error_type}: {failure.message}"
            return Rehearsal(mission=order.mission, problem=problem)


class _Rehearsing:
    def __init__(self, order: Order, stage: Stage) -> None:
        self._order, self._stage = order, stage

    def run(self) -> Rehearsal:
        name = self._order.mission
        with blaming("env", f"The mission {name!r} cannot be made: it"):
            env = self._stage.maker.make()
        with closing(env.close, "an environment"):
            with blaming("env", f"The mission {name!r} cannot begin: its reset"):
                observations, _ = env.reset(seed=self._order.env_seed)
                agents = list(env.agents)
                everyone = list(getattr(env, "possible_agents", None) or agents)
            seen = {agent: observations[agent] for agent in agents if agent in observations}
            problem = self._first_misfit(env, seen) if agents else f"The mission {name!r} begins without agents."
            strategy = self._stage.strategy if problem else self._strategy(env, everyone, seen)
            return Rehearsal(mission=name, agents=tuple(everyone), problem=problem, strategy=strategy)

    def _first_misfit(self, env: Any, seen: dict[Agent, Any]) -> str | None:
        """Who does not fit, and why."""
        for place, candidate in enumerate(self._stage.originals.candidates):
            team = Team(self._stage.originals, env, self._order.agent_seed)
            with closing(team.close, "policies"):
                for agent, observation in seen.items():
                    who = f"The policy {candidate.name!r} does not fit {agent!r} of {self._order.mission!r}: it"
                    with blaming("policy", who):
                        action = team.join(agent, place).step(observation)
                    if problem := objection(env.action_space(agent), action):
                        return f"{who} returned {problem}."
        return None

    def _strategy(self, env: Any, everyone: Sequence[Agent], seen: dict[Agent, Any]) -> Strategy:
        """The strategy that was asked for; "auto" is measured here, so that all episodes have the same."""
        if self._stage.strategy != "auto":
            return self._stage.strategy
        places = deal(self._stage.originals.candidates, everyone, self._order.dealing())
        team = Team(self._stage.originals, env, self._order.agent_seed)
        with closing(team.close, "policies"), blaming("policy", f"Trying strategies in {self._order.mission!r}"):
            policies = {agent: team.join(agent, places.get(agent, 0)) for agent in seen}
            with PerAgentAutoWrapper(policies, pool=self._stage.pool) as wrapper:
                for _ in range(_TURNS):
                    wrapper.step(seen)
                return cast(Strategy, wrapper.chosen)
