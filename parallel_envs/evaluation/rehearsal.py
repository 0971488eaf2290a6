"""Before anything is played: whether a mission can be made, and whether the policies fit its agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from parallel_envs.choices import Strategy
from parallel_envs.evaluation.actions import objection
from parallel_envs.evaluation.blame import EpisodeEnds, blaming, closing
from parallel_envs.evaluation.episode import Stage, places
from parallel_envs.evaluation.generators import seeded_globally
from parallel_envs.evaluation.team import Team
from parallel_envs.evaluation.work import Order
from parallel_envs.wrappers import PerAgentAutoWrapper
from parallel_envs.wrappers.sharing import check_together, stuck

Agent = Any
_TURNS = 6  # of which `auto` measures five


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What has come out.

    Args:
        mission: Of this mission.
        agents: Those that are known before anything is played.
        problem: Why it cannot be evaluated, or None.
        strategy: How its policies are computed, for all agents or by agent: what was asked for, with what was found to
            be quickest in the place of "auto".
        chosen: The strategy by which each of `agents` acts.
        why: What "auto" measured, and which policies cannot be pickled; empty if there is nothing to say.
        is_open: Whether other agents may join in the course of an episode.
    """

    mission: str
    agents: tuple[Agent, ...] = ()
    problem: str | None = None
    strategy: Strategy | Mapping[Agent, Strategy] = "sequential"
    chosen: Mapping[Agent, str] = field(default_factory=dict)
    why: str = ""
    is_open: bool = False


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
            rehearsal = Rehearsal(
                mission=name,
                agents=tuple(everyone),
                problem=problem,
                is_open=getattr(env, "possible_agents", None) is None,
            )
            return rehearsal if problem else replace(rehearsal, **self._strategies(env, everyone, seen))

    def _first_misfit(self, env: Any, seen: dict[Agent, Any]) -> str | None:
        """Who does not fit, and why."""
        for place, candidate in enumerate(self._stage.originals.candidates):
            if self._order.alone not in ("", candidate.name):
                continue
            team = Team(self._stage.originals, env, self._order.agent_seed)
            with closing(team.close, "policies"):
                for agent, observation in seen.items():
                    who = f"The policy {candidate.name!r} does not fit {agent!r} of {self._order.mission!r}: it"
                    with blaming("policy", who):
                        action = team.join(agent, place).step(observation)
                    if problem := objection(env.action_space(agent), action):
                        return f"{who} returned {problem}."
        return None

    def _strategies(self, env: Any, everyone: Sequence[Agent], seen: dict[Agent, Any]) -> dict[str, Any]:
        """Return `strategy`, `chosen` and `why` of the rehearsal.

        "auto" is measured here, for all of its agents together, so that all episodes are played in the same way.
        """
        settings = self._stage.settings
        asked = {agent: settings.strategy_of(agent) for agent in everyone}
        if not {"auto", "process"} & settings.all_strategies:
            return {"strategy": asked if settings.strategies else settings.strategy, "chosen": asked}
        dealt = places(self._order, self._stage.originals.candidates, everyone)
        other = next(iter(dealt.values())) if self._order.alone else 0  # of agents that were not known beforehand
        team = Team(self._stage.originals, env, self._order.agent_seed)
        with closing(team.close, "policies"), blaming("policy", f"Trying strategies in {self._order.mission!r}"):
            policies = {agent: team.join(agent, dealt.get(agent, other)) for agent in seen}
            if settings.strategies:
                check_together(policies, settings.strategy_of, policies)
            measured = {agent: policies[agent] for agent in seen if settings.strategy_of(agent) == "auto"}
            found, why = self._measured(measured, seen) if measured else ("sequential", "")
            resolved = {name: found if name == "auto" else name for name in settings.all_strategies}
            chosen = {agent: resolved[name] for agent, name in asked.items()}
            here = stuck({agent: policy for agent, policy in policies.items() if chosen.get(agent) == "process"})
        if here:
            why = (
                f"{why} Not in processes, since their policies cannot be pickled: {', '.join(map(str, here))}.".strip()
            )
        single = {agent: resolved[name] for agent, name in settings.strategies.items()}  # some may join later
        return {
            "strategy": {**single, **chosen} if single else resolved[settings.strategy],
            "chosen": {agent: "sequential" if agent in here else name for agent, name in chosen.items()},
            "why": why,
        }

    def _measured(self, policies: Mapping[Agent, Any], seen: Mapping[Agent, Any]) -> tuple[str, str]:
        """Return the strategy that is quickest for these policies, and what was measured."""
        observations = {agent: seen[agent] for agent in policies}
        with PerAgentAutoWrapper(policies, pool=self._stage.pool) as wrapper:
            for _ in range(_TURNS):
                wrapper.step(observations)
            return wrapper.chosen, f"Auto: {wrapper.why}"
