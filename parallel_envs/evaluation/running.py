"""The workers of an evaluation, and the two queues of work that they do: rehearsals, then episodes.

with EvaluationWorkers(...) as workers:
    workers.start()
    workers.run(RehearsalQueue(...))     rehearse each mission
    workers.run(EpisodeQueue(...))       play the episodes, and a failed episode once more in a fresh worker

A rehearsal makes the environment of a mission once, has every policy act once for every agent, and measures which
strategy is the quickest where "auto" was requested.
"""

from __future__ import annotations

import contextlib
import logging
import math
import sys
import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, Self

from parallel_envs import trace
from parallel_envs.checks import hint
from parallel_envs.choices import StartMethod, Strategy
from parallel_envs.engine import PendingRequest, PoolSettings, Reply, open_pool
from parallel_envs.engine.restart_budget import MAX_ATTEMPTS
from parallel_envs.engine.worker_group import LostWorker, WorkerGroup
from parallel_envs.errors import EpisodeFailed, WorkerStartError
from parallel_envs.evaluation.determinism import seeded_globally
from parallel_envs.evaluation.episode import (
    EpisodeAborted,
    EpisodeContext,
    EpisodeSpec,
    MissionKey,
    action_problem,
    attributed_to,
    closing,
    failure_of_death,
    places,
    play_episode,
    timeout_failure,
)
from parallel_envs.evaluation.missions import EnvMaker, Mission
from parallel_envs.evaluation.policies import Candidate, EpisodePolicies, PolicyTemplates, shares
from parallel_envs.evaluation.records import BadEvaluation, EpisodeRecord, EvaluationConfig, Failure
from parallel_envs.vector.registry import Registrations
from parallel_envs.wrappers import PerAgentAutoWrapper, PolicyPool
from parallel_envs.wrappers.sharing import check_together, stuck

Agent = Any
_log = logging.getLogger(__name__)

_LOOK_UP_SECONDS = 0.5  # between checks of the deadlines, while nothing happens
_GRACE_SECONDS, _FRESH_GRACE_SECONDS = 5.0, 30.0
"""How much later than an episode's deadline a worker may answer. The worker itself checks the deadline as long as it
can. Loading and compiling before an episode's first step does not count there; a fresh worker has most of it to do."""
_MEMORY_SECONDS = 1.0  # for workers to answer how much memory they had
_LONG_SECONDS = 600.0  # without an episode timeout: a task that takes longer is logged as a warning, once
_AUTO_STEPS = 6  # of which "auto" measures five


# ---- in a worker ----------------------------------------------------------------------------------------------------


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
    """The object in each worker: it makes policies once, and plays episodes, one at a time.

    `registrations`: environments that the caller of other processes has registered. `num_processes`: how many
    processes the worker may start for the actions of agents; None: one for each core.
    """

    def __init__(
        self,
        missions: Sequence[Mission],
        candidates: Sequence[Candidate],
        seed: int,
        config: EvaluationConfig,
        registrations: Registrations | None,
        *,
        num_processes: int | None,
        alone: bool = False,
    ) -> None:
        if registrations is not None:
            registrations.install()
        self._templates = PolicyTemplates(candidates, seed, alone=alone)
        self._pool = _NoProcesses() if num_processes == 0 else PolicyPool(num_processes)
        self._contexts = {
            mission.name: EpisodeContext(
                maker=EnvMaker(mission), templates=self._templates, config=config, pool=self._pool
            )
            for mission in missions
        }

    def rehearse(self, spec: EpisodeSpec) -> Rehearsal:
        """Return whether the mission of this episode can be played, and how."""
        with seeded_globally(spec.global_seed):
            try:
                return _rehearse(spec, self._contexts[spec.mission])
            except EpisodeAborted as end:
                text = f"{end.failure.where} raised {end.failure.error_type}: {end.failure.message}"
                return Rehearsal(mission=spec.mission, problem=text)

    def play(self, spec: EpisodeSpec, strategy: Strategy | Mapping[Agent, Strategy], attempt: int) -> EpisodeRecord:
        """Play an episode with one strategy for all agents, or one by agent."""
        return play_episode(spec, replace(self._contexts[spec.mission], strategy=strategy), attempt)

    def peak_bytes(self) -> int:
        """Return the most resident memory that this process has had, or 0 where the system does not tell."""
        if sys.platform == "win32":
            return 0
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def close(self) -> None:
        """Close the policies that were made here, and the processes for agents."""
        with contextlib.closing(self._pool):
            self._templates.close()


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
            policies = EpisodePolicies(context.templates, env, spec.agent_seed, context.device)
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
    copies = EpisodePolicies(context.templates, env, spec.agent_seed, context.device)
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


# ---- in the caller: the loop ----------------------------------------------------------------------------------------


class WorkQueue(ABC):
    """Work for the workers: calls of a method of `EvaluationWorker`, one after another."""

    method: str
    name: str
    """The word for a call in a trace."""

    @abstractmethod
    def next(self) -> tuple[Any, ...] | None:
        """Return the arguments of the next call, the episode first, or None. A result may add further calls."""

    @abstractmethod
    def finish(self, arguments: tuple[Any, ...], result: Any, failure: Failure | None = None) -> bool:
        """Record what a call returned, or why it did not. Return True if its worker must be replaced."""


class EvaluationWorkers:
    """Worker processes, each with an `EvaluationWorker` from `make`. With `jobs=0` the worker is the caller's process.

    A worker that does not end an episode soon after `episode_timeout` is killed. None: no worker is killed.
    """

    def __init__(
        self,
        jobs: int,
        context: StartMethod | None,
        preload: tuple[str, ...],
        make: Callable[[], EvaluationWorker],
        episode_timeout: float | None,
    ) -> None:
        self._timeout = episode_timeout
        settings = PoolSettings(
            backend="process" if jobs else "serial",
            context=context,
            preload=(__name__, *preload),
            name="evaluation worker",
        )
        self._pool = open_pool(max(jobs, 1), settings)
        self.num_workers = self._pool.num_workers
        recipe = (make,)  # the same tuple for all workers, so it is pickled once
        self._group = WorkerGroup(self._pool, lambda _: recipe)
        self._stale: set[int] = set()  # workers to replace before they get another call
        self._busy: dict[int, tuple[tuple[Any, ...], PendingRequest, float]] = {}
        self._began: dict[int, float] = {}  # when the worker was sent its newest call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool.backend == "process":
            for worker in self._busy:  # after an error or a Ctrl-C nobody waits for their results
                self._pool.kill(worker)
        self._pool.close()

    def start(self) -> None:
        """Make the object in every worker. Raises BadEvaluation if a worker cannot, or dies at it twice."""

        def replace(losses: Sequence[LostWorker], is_last: bool) -> None:
            for loss in () if is_last else losses:
                self._group.replace(loss.worker, built=False)

        began = time.perf_counter()
        lost = self._group.build(on_lost=replace)
        trace.record("start workers", began, workers=self.num_workers)
        for failure in filter(None, map(_failure_of, lost)):
            raise BadEvaluation(
                f"Workers cannot start ({failure.error_type}: {failure.message}). Missions and policies must be "
                "importable in a worker process. Change them, or give jobs=0."
            )

    def run(self, queue: WorkQueue) -> None:
        """Do all work of a queue."""
        pool = self._pool
        while True:
            for worker in pool.all_workers:
                if worker in self._busy or (arguments := queue.next()) is None:
                    continue
                grace = _GRACE_SECONDS
                if worker in self._stale:
                    trace.instant("restart", row=f"evaluation worker {worker}", worker=worker)
                    grace = _FRESH_GRACE_SECONDS
                    self._group.replace(worker, built=False)
                    # Requests are answered in the order in which they were sent, so this one needs no wait.
                    pool.send({worker: self._group.build_call(worker)})
                    self._stale.discard(worker)
                self._began[worker] = time.perf_counter()
                request = pool.send({worker: self._group.call(queue.method, *arguments)})
                self._busy[worker] = arguments, request, time.monotonic() + (self._timeout or _LONG_SECONDS) + grace
            if not self._busy:
                return
            seconds = _LOOK_UP_SECONDS
            if self._timeout is not None:
                nearest = min(deadline for _, _, deadline in self._busy.values())
                seconds = min(max(nearest - time.monotonic(), 0.0), seconds)
            pool.pump(seconds)
            for worker, (arguments, request, deadline) in list(self._busy.items()):
                reply, result, failure = request.replies.get(worker), None, None
                if not request.waiting:
                    if reply is not None:
                        result, failure = reply.value, _failure_of(reply)
                        if reply.death is not None:
                            self._stale.add(worker)
                elif time.monotonic() <= deadline:
                    continue
                elif self._timeout is None:
                    _log.warning(
                        "Episode %d of %r has been running in worker %d for %.0f minutes. It goes on. To make such "
                        "episodes fail, give episode_timeout (--episode-timeout).\n%s",
                        *(arguments[0].episode, arguments[0].mission, worker, _LONG_SECONDS / 60, pool.stack(worker)),
                    )
                    self._busy[worker] = arguments, request, math.inf
                    continue
                else:
                    failure = timeout_failure(self._timeout, "", self._group.end(worker, self._timeout))
                    self._stale.add(worker)
                del self._busy[worker]
                if trace.open_traces:
                    spec = arguments[0]
                    about = {"mission": spec.mission, "episode": spec.episode, "request": request.number}
                    about |= {"policy": spec.alone} if spec.alone else {}
                    trace.record(queue.name, self._began[worker], row=f"evaluation worker {worker}", **about)
                if queue.finish(arguments, result, failure):
                    self._stale.add(worker)

    def peak_bytes(self) -> tuple[int, ...]:
        """Return the most memory that each worker has had, for the workers that answer in time."""
        if self._pool.backend != "process":
            return ()
        workers = [worker for worker in self._pool.all_workers if worker not in self._stale]
        request = self._pool.send({worker: self._group.call("peak_bytes") for worker in workers})
        with contextlib.suppress(KeyboardInterrupt):
            self._pool.wait(request, timeout=_MEMORY_SECONDS)
        return tuple(reply.value for reply in request.replies.values() if isinstance(reply.value, int))


def _failure_of(lost: Reply | LostWorker) -> Failure | None:
    """Return the failure in a worker's reply, or of a lost worker."""
    if lost.death is not None:
        return failure_of_death(lost.death)
    if (failure := lost.failure) is None:
        return None
    return Failure(kind="run", error_type=failure.type_name, message=failure.message, traceback=failure.traceback)


# ---- in the caller: the queues --------------------------------------------------------------------------------------


class RehearsalQueue(WorkQueue):
    """A rehearsal of each mission; of each mission and policy, if each policy plays on its own.

    A rehearsal without an answer, because its worker died or hangs, says nothing: the episodes will show the error.
    If there are more workers than missions, some rehearse the same mission, so that all have loaded what they need.
    """

    method, name = "rehearse", "rehearsal"

    def __init__(self, specs: Sequence[EpisodeSpec], config: EvaluationConfig, num_workers: int) -> None:
        first = {spec.mission_key: spec for spec in reversed(specs)}
        once = [first[key] for key in dict.fromkeys(spec.mission_key for spec in specs)]
        self._share = not any(spec.alone for spec in specs)
        self._waiting = (once * num_workers)[: max(len(once), num_workers)]
        self._config = config
        everyone = "sequential" if config.strategy == "auto" else config.strategy
        single = {agent: "sequential" if name == "auto" else name for agent, name in config.strategies.items()}
        self.results: dict[MissionKey, Rehearsal] = {
            spec.mission_key: Rehearsal(mission=spec.mission, strategy=single or everyone) for spec in once
        }
        self._unanswered = set(self.results)

    def next(self) -> tuple[EpisodeSpec] | None:
        return (self._waiting.pop(0),) if self._waiting else None

    def finish(self, arguments: tuple[Any, ...], result: Any, failure: Failure | None = None) -> bool:
        key = arguments[0].mission_key
        if isinstance(result, Rehearsal) and key in self._unanswered:
            self._unanswered.discard(key)
            self.results[key] = result
        return failure is not None

    def check(self, candidates: Sequence[Candidate], num_agents: int | None = None) -> list[str]:
        """Raise BadEvaluation with all problems. Return warnings of missions in which some policies get no agent."""
        found = self.results.values()
        problems = [one.problem for one in found if one.problem]
        problems += [
            f"The mission {name!r} has {len(one.agents)} agents ({', '.join(map(str, one.agents))}), and {num_agents} "
            "are requested. Give the keywords that make agents in the mission itself: name?keyword=value."
            for name, one in self.results.items()
            if num_agents is not None and one.agents and len(one.agents) != num_agents
        ]
        if not any(one.is_open or not one.agents for one in found):  # all agents are known, and no others may join
            known = list(dict.fromkeys(str(agent) for one in found for agent in one.agents))
            problems += [
                f"strategy names the agent {agent!r}, and the agents are {', '.join(map(repr, known))}."
                f"{hint(agent, known)}"
                for agent in self._config.strategies
                if agent not in known
            ]
        if problems:
            raise BadEvaluation("\n".join(problems))
        advice = "each on its own: versus=False (on the command line, leave out --versus and proportions)."
        numbers = {len(one.agents) for one in found}
        if self._share and 0 not in numbers and (idle := _without_agents(candidates, numbers)):
            raise BadEvaluation(
                f"{len(candidates)} policies are to share at most {max(numbers)} agents, so {idle[0]!r} would never "
                f"play. Give it a larger proportion, or evaluate {advice}"
            )
        return [
            f"In the mission {one.mission!r} some policies never play ({', '.join(map(repr, names))}): "
            f"{len(candidates)} policies share {len(one.agents)} agents. Evaluate this mission separately, {advice}"
            for one in (found if self._share else ())
            if one.agents and not one.is_open and (names := _without_agents(candidates, [len(one.agents)]))
        ]


def _without_agents(candidates: Sequence[Candidate], numbers: Iterable[int]) -> list[str]:
    """Return the names of the policies that get no agent with any of these numbers of agents."""
    proportions = [candidate.proportion for candidate in candidates]
    most = [max(counts) for counts in zip(*(shares(proportions, number) for number in numbers), strict=True)]
    return [candidate.name for candidate, count in zip(candidates, most, strict=True) if count == 0]


class EpisodeQueue(WorkQueue):
    """The episodes. `note` is called with each record. With `strict` a failed episode raises EpisodeFailed.

    With `side_by_side` several episodes are played at once. Otherwise they are played in the order of the list.
    """

    method, name = "play", "episode"

    def __init__(
        self,
        specs: Sequence[EpisodeSpec],
        rehearsals: Mapping[MissionKey, Rehearsal],
        candidates: Sequence[Candidate],
        note: Callable[[EpisodeRecord], None],
        *,
        strict: bool,
        side_by_side: bool,
    ) -> None:
        self._waiting: defaultdict[MissionKey, deque[EpisodeSpec]] = defaultdict(deque)
        for spec in specs:
            self._waiting[spec.mission_key].append(spec)
        self._again: list[EpisodeSpec] = []
        self._rehearsals, self._candidates = rehearsals, candidates
        self._note, self._strict, self._side_by_side = note, strict, side_by_side
        self._seconds: dict[MissionKey, float] = {}  # the mean of its episodes; 0 while none of them has ended
        self._num_ended: Counter[MissionKey] = Counter()

    def next(self) -> tuple[Any, ...] | None:
        if self._again:
            spec, attempt = self._again.pop(0), MAX_ATTEMPTS
        elif self._waiting:
            key = next(iter(self._waiting))
            if self._side_by_side:
                # First one episode of each mission, to learn how long they take; then of the mission with the longest
                # episodes, so that no worker is left alone with a long one at the end. `max` takes the first of equals.
                key = max(self._waiting, key=lambda one: self._seconds.get(one, math.inf))
            spec, attempt = self._waiting[key].popleft(), 1
            if not self._waiting[key]:
                del self._waiting[key]
            self._seconds.setdefault(key, 0.0)
        else:
            return None
        return spec, self._rehearsals[spec.mission_key].strategy, attempt

    def finish(self, arguments: tuple[Any, ...], result: Any, failure: Failure | None = None) -> bool:
        spec, _, attempt = arguments
        record, key = result, spec.mission_key
        if not isinstance(record, EpisodeRecord):  # the worker died or was killed
            dealt = places(spec, self._candidates, self._rehearsals[key].agents)
            record = spec.record(self._candidates, dealt, failure=failure, attempts=attempt)
        self._num_ended[key] += 1
        self._seconds[key] += (record.seconds - self._seconds[key]) / self._num_ended[key]
        failure = record.failure
        if failure is not None and attempt < MAX_ATTEMPTS:
            self._again.append(spec)
            return True
        self._note(record)
        if failure is not None and self._strict:
            where = f" at {failure.where}" if failure.where else ""
            text = (
                f"Episode {record.episode} of {record.mission!r} failed {record.attempts} times, by the fault of its "
                f"{failure.kind}{where}: {failure.error_type}: {failure.message}"
            )
            raise EpisodeFailed(text, record=record)
        return False
