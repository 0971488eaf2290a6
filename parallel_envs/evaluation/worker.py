"""The object in each worker process of an evaluation: it makes policies once, rehearses missions and plays episodes.

A rehearsal comes before any episode: it makes the environment of a mission once, has every policy act once for every
agent, and measures which strategy is the quickest where "auto" was requested.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from parallel_envs.choices import Strategy
from parallel_envs.errors import WorkerStartError
from parallel_envs.evaluation.config import EvaluationConfig
from parallel_envs.evaluation.determinism import seeded_globally
from parallel_envs.evaluation.episode import EpisodeContext, EpisodeSpec, action_problem, places, play_episode
from parallel_envs.evaluation.failures import EpisodeAborted, attributed_to, closing
from parallel_envs.evaluation.missions import EnvMaker, Mission
from parallel_envs.evaluation.policies import Candidate, EpisodePolicies, PolicyTemplates
from parallel_envs.evaluation.records import EpisodeRecord
from parallel_envs.vector.registry import Registrations
from parallel_envs.wrappers import PerAgentAutoWrapper, PolicyPool
from parallel_envs.wrappers.sharing import check_together, stuck

Agent = Any
_AUTO_STEPS = 6  # of which "auto" measures five


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """The findings of a rehearsal.

    Args:
        mission: The name of the mission.
        agents: The agents that are known before anything is played.
        problem: Why the mission cannot be evaluated, or None.
        strategy: How the actions are computed, for all agents or by agent: the strategies that were requested, with the
            quickest one in the place of "auto".
        chosen: The strategy of each of `agents`.
        why: The measurements of "auto", and which policies cannot be pickled. Empty if there is nothing to say.
        is_open: Whether other agents may join during an episode.
    """

    mission: str
    agents: tuple[Agent, ...] = ()
    problem: str | None = None
    strategy: Strategy | Mapping[Agent, Strategy] = "sequential"
    chosen: Mapping[Agent, str] = field(default_factory=dict)
    why: str = ""
    is_open: bool = False


class EvaluationWorker:
    """Plays episodes, one at a time.

    Args:
        missions: All missions of the evaluation.
        candidates: The policies.
        seed: The seed of the evaluation.
        config: How episodes are played.
        registrations: Environments that the caller has registered with Gymnasium or PettingZoo.
        num_processes: How many processes it may start for the actions of agents. None: one for each core.
        alone: Whether each policy plays on its own.
    """

    def __init__(
        self,
        missions: Sequence[Mission],
        candidates: Sequence[Candidate],
        seed: int,
        config: EvaluationConfig,
        registrations: Registrations,
        *,
        num_processes: int | None,
        alone: bool = False,
    ) -> None:
        registrations.install()
        self._templates = PolicyTemplates(candidates, seed, alone=alone)
        self._config = config
        self._pool = _NoProcesses() if num_processes == 0 else PolicyPool(num_processes)
        self._makers = {mission.name: EnvMaker(mission) for mission in missions}

    def _context(self, spec: EpisodeSpec, strategy: Strategy | Mapping[Agent, Strategy]) -> EpisodeContext:
        return EpisodeContext(
            maker=self._makers[spec.mission],
            templates=self._templates,
            config=self._config,
            strategy=strategy,
            pool=self._pool,
        )

    def rehearse(self, spec: EpisodeSpec) -> Rehearsal:
        """Return whether the mission of this episode can be played, and how."""
        with seeded_globally(spec.global_seed):
            try:
                return _rehearse(spec, self._context(spec, self._config.strategy))
            except EpisodeAborted as end:
                failure = end.failure
                problem = f"{failure.where} raised {failure.error_type}: {failure.message}"
                return Rehearsal(mission=spec.mission, problem=problem)

    def play(self, spec: EpisodeSpec, strategy: Strategy | Mapping[Agent, Strategy], attempt: int) -> EpisodeRecord:
        """Play an episode, with the actions of all agents computed by this strategy, or each by its own."""
        return play_episode(spec, self._context(spec, strategy), attempt)

    def peak_bytes(self) -> int:
        """Return the most resident memory that this process has had, or 0 where the system does not tell."""
        if sys.platform == "win32":
            return 0
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def close(self) -> None:
        """Close the policies that were made here, and the processes for agents."""
        try:
            self._templates.close()
        finally:
            self._pool.close()


class _NoProcesses(PolicyPool):
    """A pool of threads only, for a worker for which `jobs` has left no processes."""

    def processes(self) -> NoReturn:
        raise WorkerStartError("all jobs play episodes, and none is left for the agents of an episode")


def _rehearse(spec: EpisodeSpec, context: EpisodeContext) -> Rehearsal:
    name = spec.mission
    with attributed_to("env", f"The mission {name!r} cannot be made: it"):
        env = context.maker.make()
    with closing(env.close, "an environment"):
        with attributed_to("env", f"The mission {name!r} cannot begin: its reset"):
            observations, _ = env.reset(seed=spec.env_seed)
            agents = list(env.agents)
            everyone = list(getattr(env, "possible_agents", None) or agents)
        seen = {agent: observations[agent] for agent in agents if agent in observations}
        problem = _first_misfit(spec, context, env, seen) if agents else f"The mission {name!r} begins without agents."
        rehearsal = Rehearsal(
            mission=name,
            agents=tuple(everyone),
            problem=problem,
            is_open=getattr(env, "possible_agents", None) is None,
        )
        return rehearsal if problem else _with_strategies(rehearsal, spec, context, env, seen)


def _first_misfit(spec: EpisodeSpec, context: EpisodeContext, env: Any, seen: Mapping[Agent, Any]) -> str | None:
    """Have each policy act once for each agent. Return the first problem, or None."""
    for place, candidate in enumerate(context.templates.candidates):
        if spec.alone not in ("", candidate.name):
            continue
        policies = EpisodePolicies(context.templates, env, spec.agent_seed)
        with closing(policies.close, "policies"):
            for agent, observation in seen.items():
                who = f"The policy {candidate.name!r} does not fit {agent!r} of {spec.mission!r}: it"
                with attributed_to("policy", who):
                    action = policies.add(agent, place).step(observation)
                if problem := action_problem(env.action_space(agent), action):
                    return f"{who} returned {problem}."
    return None


def _with_strategies(
    rehearsal: Rehearsal, spec: EpisodeSpec, context: EpisodeContext, env: Any, seen: Mapping[Agent, Any]
) -> Rehearsal:
    """Return the rehearsal with `strategy`, `chosen` and `why`.

    "auto" is measured here, for all of its agents together, so all episodes are played in the same way.
    """
    config, everyone = context.config, rehearsal.agents
    requested = {agent: config.strategy_of(agent) for agent in everyone}
    if not {"auto", "process"} & config.all_strategies:
        strategy = requested if config.strategies else config.strategy
        return replace(rehearsal, strategy=strategy, chosen=requested)
    dealt = places(spec, context.templates.candidates, everyone)
    other = next(iter(dealt.values())) if spec.alone else 0  # for agents that were not known beforehand
    why, fastest = "", "sequential"
    copies = EpisodePolicies(context.templates, env, spec.agent_seed)
    with closing(copies.close, "policies"), attributed_to("policy", f"Trying strategies in {spec.mission!r}"):
        policies = {agent: copies.add(agent, dealt.get(agent, other)) for agent in seen}
        if config.strategies:
            check_together(policies, config.strategy_of, policies)
        if measured := {agent: policies[agent] for agent in seen if config.strategy_of(agent) == "auto"}:
            observations = {agent: seen[agent] for agent in measured}
            with PerAgentAutoWrapper(measured, pool=context.pool) as wrapper:
                for _ in range(_AUTO_STEPS):
                    wrapper.step(observations)
                fastest, why = wrapper.chosen, f"Auto: {wrapper.why}"
        resolved: dict[str, Any] = {name: fastest if name == "auto" else name for name in config.all_strategies}
        chosen = {agent: resolved[name] for agent, name in requested.items()}
        here = stuck({agent: policy for agent, policy in policies.items() if chosen.get(agent) == "process"})
    if here:
        why = f"{why} Not in processes, since their policies cannot be pickled: {', '.join(map(str, here))}.".strip()
    single = {agent: resolved[name] for agent, name in config.strategies.items()}  # some of them may join later
    return replace(
        rehearsal,
        strategy={**single, **chosen} if single else resolved[config.strategy],
        chosen={agent: "sequential" if agent in here else name for agent, name in chosen.items()},
        why=why,
    )
