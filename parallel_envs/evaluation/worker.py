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
    """The findings of a rehearsal."""

    mission: str
    agents: tuple[Agent, ...] = ()  # the agents that are known before anything is played
    is_open: bool = False  # whether other agents may join during an episode
    problem: str | None = None  # why the mission cannot be evaluated
    strategy: Strategy | Mapping[Agent, Strategy] = "sequential"  # of all agents, or by agent; "auto" is resolved
    chosen: Mapping[Agent, str] = field(default_factory=dict)  # the strategy of each of `agents`
    why: str = ""  # the measurements of "auto", and which policies cannot be pickled


class EvaluationWorker:
    """Plays episodes, one at a time.

    `registrations`: environments that the caller has registered with Gymnasium or PettingZoo. `num_processes`: how many
    processes the worker may start for the actions of agents; None: one for each core.
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
                text = f"{end.failure.where} raised {end.failure.error_type}: {end.failure.message}"
                return Rehearsal(mission=spec.mission, problem=text)

    def play(self, spec: EpisodeSpec, strategy: Strategy | Mapping[Agent, Strategy], attempt: int) -> EpisodeRecord:
        """Play an episode with one strategy for all agents, or one by agent."""
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
            everyone = tuple(getattr(env, "possible_agents", None) or agents)
        is_open = getattr(env, "possible_agents", None) is None
        rehearsal = Rehearsal(mission=name, agents=everyone, is_open=is_open)
        if not agents:
            return replace(rehearsal, problem=f"The mission {name!r} begins without agents.")
        seen = {agent: observations[agent] for agent in agents if agent in observations}
        for place, candidate in enumerate(context.templates.candidates):
            if spec.alone not in ("", candidate.name):
                continue
            policies = EpisodePolicies(context.templates, env, spec.agent_seed)
            with closing(policies.close, "policies"):
                for agent, observation in seen.items():
                    who = f"The policy {candidate.name!r} does not fit {agent!r} of {name!r}: it"
                    with attributed_to("policy", who):
                        action = policies.add(agent, place).step(observation)
                    if problem := action_problem(env.action_space(agent), action):
                        return replace(rehearsal, problem=f"{who} returned {problem}.")
        return _with_strategies(rehearsal, spec, context, env, seen)


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
