"""`evaluate`: from missions and policies to a result."""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from parallel_envs.choices import StartMethod, Strategy
from parallel_envs.engine import cores_here, picklable, unpicklable_part, user_stacklevel
from parallel_envs.errors import EpisodeFailed
from parallel_envs.evaluation.candidates import Candidate, candidates_of
from parallel_envs.evaluation.checkpoints import holding
from parallel_envs.evaluation.crew import Crew
from parallel_envs.evaluation.mission_names import missions_of, with_absolute_path
from parallel_envs.evaluation.missions import Mission
from parallel_envs.evaluation.mistakes import BadEvaluation, PolicyNeverPlays
from parallel_envs.evaluation.player import Player
from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult
from parallel_envs.evaluation.resuming import Saver, check_nothing_is_lost, earlier_records, earlier_result
from parallel_envs.evaluation.running import Episodes, Rehearsals
from parallel_envs.evaluation.settings import (
    PlaySettings,
    check_jobs,
    check_whole,
    path_or_none,
    shared_processes,
    strategies_of,
    yes_or_no,
)
from parallel_envs.evaluation.statistics import late_actions_text
from parallel_envs.evaluation.threads import one_thread
from parallel_envs.evaluation.work import Key, Order, part_name, work_list
from parallel_envs.policies.specs import with_absolute_paths
from parallel_envs.spelling import suggests_keywords
from parallel_envs.threads import CallGuard, in_turn
from parallel_envs.vector.registry import Registrations

Keep = Callable[[EpisodeRecord], object]
"""Does something with an episode's record that has its trajectory."""


class Progress(Protocol):
    """What is told while an evaluation runs."""

    def begin(self, work: Sequence[Key], done: Sequence[EpisodeRecord]) -> None:
        """All episodes that are wanted, and those of them that are complete already."""

    def note(self, record: EpisodeRecord) -> None:
        """An episode has become complete, or has failed for good."""


@suggests_keywords
def evaluate(
    missions: Any,
    policies: Any,
    episodes: int = 10,
    *,
    seed: int = 42,
    jobs: int | Literal["auto"] = 0,
    parallel_policy: bool | Strategy = False,
    strategy: Strategy | Mapping[Any, Strategy] | None = None,
    num_agents: int | None = None,
    versus: bool = True,
    proportions: Sequence[float] | Mapping[str, float] | None = None,
    action_timeout: float | None = None,
    lateness_budget: float | None = 5.0,
    episode_timeout: float | None = None,
    max_steps: int = 1000,
    info_keys: Sequence[str] = (),
    trajectories: bool | Keep = False,
    strict: bool = False,
    resume: str | Path | EvaluationResult | None = None,
    save: str | Path | None = None,
    context: StartMethod | None = None,
    preload: Sequence[str] = (),
    progress: Progress | None = None,
    options: Mapping[str, Any] | None = None,
    trust: Sequence[str] = (),
) -> EvaluationResult:
    """Play `episodes` episodes of each mission and return what came of them, in the order of the missions.

    Episode i of a mission is always the same, whatever else is played, however many workers there are and however they
    are started: its seeds follow from `seed`, the mission's name and i; its environment is made anew; its policies are
    copies of what was made; numeric libraries have one thread. The clock decides about nothing, unless you ask for it:
    with `action_timeout` a late action is dropped, with `episode_timeout` a long episode fails, and with
    `parallel_policy="auto"` the quickest strategy is chosen.

    Before anything is played each mission is made once, and every policy acts once for every agent: what does not fit
    is a BadEvaluation. An episode that fails is tried once more in a fresh worker, and is then a record with a failure.

    Threads: any number may call it at once, each call by itself. With `jobs=0` calls wait for one another, since
    episodes that are played here set the global random generators of this process. Calls may not share a `save` file.

    Args:
        missions: A name, a Mission, a callable that makes an environment, a sequence of these, or a dict by name. See
            `missions_of`.
        policies: One or several, in a sequence or a dict by name: specs ("random", "package.module:Class", a folder),
            policies, functions of the observation. See `candidates_of`. A training run's folder stands for the newest
            checkpoint that it has now: the checkpoint is copied first, so a run that goes on training changes nothing,
            and the settings of the result name its path and digest.
        episodes: How many of each mission.
        seed: Where all seeds come from.
        jobs: How many processes work at most, for episodes and for agents together. (Processes that only start and
            watch others are not counted.) 0: episodes are played here, and strategies that need processes have one for
            each core; "auto": one for each core. Workers that play whole episodes
            come first, one for each episode up to `jobs`. With the strategy "auto" they share what is left for their
            agents, so agents are tried in processes only if there are more jobs than episodes. With "process" by name
            each worker has at least one process for agents: `jobs // 2` workers, or fewer if there are fewer episodes,
            share what is left. So `jobs=1` is refused with "process". Results are the same in all cases.
        parallel_policy: How the actions of an episode's agents are computed: one after another (False), by the name of
            a strategy of `parallel_envs.wrappers`, or by the one that a rehearsal finds to be quickest (True, "auto").
            `strategies` of the result says by which. Policies that share something, such as a list or Python's, NumPy's
            or torch's own generators, do so in whatever order threads come to it, and not at all in processes.
        strategy: The same for single agents: a dict of names by agent. Agents that are not in it act as
            `parallel_policy` says. A name instead of a dict is meant for all agents.
        num_agents: How many agents each mission is to have. It is given to the environment by the keyword that takes
            it (N, num_agents, n_agents and others, see `missions.NUM_AGENTS`), as if the mission had been given as
            `name?N=4`. A mission that takes no such number, or has another number of agents then, is a BadEvaluation.
        versus: Of several policies: True has them share the agents of each episode, which are dealt out anew in each
            (the records are `mixed`); a UserWarning names missions in which a policy gets none. False evaluates each on
            its own: all agents of an episode have one policy, and every policy plays the same episodes, from the same
            seeds. `parallel-envs eval` does that unless it is given --versus.
        proportions: How many agents each policy gets, relative to the others. They are shuffled in each episode. Only
            with `versus`.
        action_timeout: Seconds for an action, from an agent's second one on; None: no deadline. An action that comes
            later is dropped and counted, and the agent does nothing in that step. How many are late depends on the
            machine, its load and `jobs`, so scores do too: the result counts late actions (`EpisodeRecord.late`,
            `Summary.late`), and a RuntimeWarning tells how many. A policy that is asked in its own thread ("thread") is
            not waited for; a policy that is asked in turn is found to be late afterwards.
        lateness_budget: With `action_timeout`: seconds by which an agent may be late in all, in an episode. After that
            the agent is not asked any more in this episode, and does nothing.
        episode_timeout: Seconds for an episode, from its first step on; None: no deadline. An episode that takes longer
            fails. A worker that does not come back within a few more seconds is ended; with `jobs=0` nothing can end a
            policy that hangs. Without a deadline a warning is logged when a worker plays one episode for ten minutes.
        max_steps: After so many steps an episode is over.
        info_keys: Infos whose last values are kept, by name.
        trajectories: Keep what was seen and done, too. A function is given each record with it instead, as episodes
            end, and the result is without: so all of them need not fit into memory.
        strict: Raise EpisodeFailed when an episode has failed for good.
        resume: A result, or the file that holds it, of an evaluation of the same that ended early: only the rest is
            played. A policy is the same if its name, its arguments and its code are, and what lies in its folder; what
            an object holds, such as a network's weights, is not compared. Of a training run the checkpoint that was
            evaluated before is taken again; if it is gone or has changed, that is a BadEvaluation.
        save: A file that holds at any moment what is complete, as JSON; it can be resumed.
        context: How workers are started: "forkserver", "spawn" or "fork".
        preload: Modules that all workers need and that take long to import ("torch"): they are imported once for all of
            them, and stay loaded in every worker that this program starts later.
        progress: Is told what is going on.
        options: Added to the `options` of the result, and of the file: what `parallel-envs eval --resume` is to know.
        trust: Modules whose classes the files of policy folders may name. Without it such a file may only name
            policies of this package: see `parallel_envs.trust`.

    Returns:
        The result. After a Ctrl-C it is marked as interrupted and says what is missing.

    Raises:
        BadEvaluation: It cannot be done as asked. Nothing has been played.
        UntrustedName: A policy's folder names a class of a module that is not trusted. Nothing was imported.
        EpisodeFailed: With `strict`; what was complete by then is its `result`.
        NotSaved: The file could not be written in the end; what was to be in it is its `result`.
    """
    check_whole("episodes", episodes, least=1)
    check_whole("seed", seed, least=0)
    check_whole("max_steps", max_steps, least=1)
    episodes, seed, max_steps = int(episodes), int(seed), int(max_steps)
    strict, save = yes_or_no("strict", strict), path_or_none("save", save)
    resume = resume if isinstance(resume, EvaluationResult) else path_or_none("resume", resume)
    _check_told(progress)
    found, candidates = missions_of(missions, num_agents), candidates_of(policies, proportions, trust)
    alone = [] if yes_or_no("versus", versus) or len(candidates) == 1 else [one.name for one in candidates]
    if alone and proportions is not None:
        raise BadEvaluation(
            f"proportions={proportions!r} says how policies share agents, and versus=False has each play on its own. "
            "Give one of the two."
        )
    orders = work_list([mission.name for mission in found], episodes, seed, alone)
    num_jobs = check_jobs(jobs, len(orders), len(cores_here()) or 1)
    everyone, single = strategies_of(parallel_policy, strategy)
    settings = PlaySettings(
        strategy=everyone,
        strategies=single,
        action_timeout=action_timeout,
        lateness_budget=lateness_budget,
        episode_timeout=episode_timeout,
        max_steps=max_steps,
        info_keys=_names("info_keys", info_keys),
        trajectories=callable(trajectories) or yes_or_no("trajectories", trajectories),
    )
    if num_jobs:
        shared_processes(settings.all_strategies, num_jobs, len(orders))  # raises what cannot be shared
        _check_portable(found, candidates)
    keep = trajectories if callable(trajectories) else None
    modules = _modules(preload)
    earlier = earlier_result(resume)
    with holding(candidates, None if earlier is None else earlier.settings) as held:
        plan = _Plan(found, held, orders, settings, num_jobs, context, modules, strict, keep, num_agents)
        about = {"episodes": episodes, "seed": seed, **({"versus": False} if alone else {})}
        named = absolute_policies(_words(policies), [one.name for one in candidates])
        words = {"mission": absolute_words(_words(missions)), "policy": named}
        run_by = {"jobs": str(jobs), "strict": strict, **{name: one for name, one in words.items() if one is not None}}
        return _Evaluation(plan, about, {**run_by, **(options or {})}, resume, earlier, save, progress).run()


def _words(given: Any) -> Any:
    """Return missions or policies as they were given, if that was text, a list of text, or a dict of text by name."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, Mapping):
        is_text = all(isinstance(one, str) for item in given.items() for one in item)
        return dict(given) if is_text else None
    is_text = isinstance(given, Sequence) and all(isinstance(one, str) for one in given)
    return list(given) if is_text else None


def absolute_words(missions: Any) -> Any:
    """Return the words of missions, in a list or by name, with absolute paths: a file may be resumed anywhere."""
    if isinstance(missions, Mapping):
        return {name: with_absolute_path(one) for name, one in missions.items()}
    return None if missions is None else [with_absolute_path(one) for one in missions]


def absolute_policies(policies: Any, names: Sequence[str]) -> Any:
    """Return the words of policies with absolute paths, by name where that changes them: results keep their names."""
    if policies is None:
        return None
    words = list(policies.values() if isinstance(policies, Mapping) else policies)
    found = [with_absolute_paths(one) for one in words]
    return policies if found == words else dict(zip(names, found, strict=True))


def _check_told(progress: Any) -> None:
    if progress is not None and not all(callable(getattr(progress, name, None)) for name in ("begin", "note")):
        raise BadEvaluation(
            f"progress={progress!r} has no begin(work, done) and note(record). Give a Progress, or None."
        )


def _names(what: str, given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        raise BadEvaluation(f"{what}={given!r} is a string. Give a list of names: [{given!r}].")
    names = tuple(given) if isinstance(given, Iterable) else (given,)
    if not isinstance(given, Iterable) or not all(isinstance(name, str) for name in names):
        raise BadEvaluation(f"{what}={given!r} is not a list of names.")
    return names


def _modules(preload: Any) -> tuple[str, ...]:
    """Their names, if they can be found: workers pass over those that cannot."""
    names = _names("preload", preload)
    for name in names:
        try:
            is_there = importlib.util.find_spec(name) is not None
        except (ImportError, ValueError):
            is_there = False
        if not is_there:
            raise BadEvaluation(f"preload names {name!r}, and there is no such module to be imported here.")
    return names


def _check_portable(missions: Sequence[Mission], candidates: Sequence[Candidate]) -> None:
    for what, name, thing in [
        *(("mission", mission.name, mission) for mission in missions),
        *(("policy", candidate.name, candidate.source) for candidate in candidates),
    ]:
        if not picklable(thing):
            raise BadEvaluation(
                f"The {what} {name!r} cannot travel to workers: {unpicklable_part(thing, what)} cannot be pickled. "
                "Name it by a spec, from which it is made there, or give jobs=0."
            )


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is to be done, checked."""

    missions: Sequence[Mission]
    candidates: Sequence[Candidate]
    orders: Sequence[Order]
    settings: PlaySettings
    jobs: int
    context: StartMethod | None
    preload: tuple[str, ...]
    strict: bool
    keep: Keep | None
    num_agents: int | None

    def described(self, apart_from: Collection[Path]) -> dict[str, Any]:
        """What the numbers depend on, as JSON can say it. Files to be written do not count."""
        return {
            "missions": {mission.name: mission.described() for mission in self.missions},
            "policies": {candidate.name: candidate.described(apart_from) for candidate in self.candidates},
            **self.settings.described(),
        }

    def crew(self, num_orders: int) -> Crew:
        """Its workers: no more than there are episodes to be played."""
        parts = self.missions, self.candidates, self.orders[0].root, self.settings, Registrations.here()
        workers, own = shared_processes(self.settings.all_strategies, self.jobs, num_orders)
        make = partial(Player, *parts, num_processes=own if self.jobs else None, alone=bool(self.orders[0].alone))
        return Crew(workers, self.context, self.preload, make, self.settings.episode_timeout)


class _Evaluation:
    """One call of `evaluate`."""

    def __init__(
        self,
        plan: _Plan,
        about: Mapping[str, Any],
        options: Mapping[str, Any],
        resume: str | Path | EvaluationResult | None,
        earlier: EvaluationResult | None,
        save: str | Path | None,
        progress: Progress | None,
    ) -> None:
        files = [Path(file) for file in (resume, save) if isinstance(file, str | Path)]
        self._plan, self._settings, self._progress = plan, {**plan.described(files), **about}, progress
        self._options = options
        where = "The result to resume" if isinstance(resume, EvaluationResult) else str(resume)
        self._records = earlier_records(earlier, where, self._settings, plan.orders)
        if earlier is not None and isinstance(resume, str | Path) and save is not None:
            check_nothing_is_lost(Path(resume), Path(save), earlier, self._records)
        self._saver = Saver(save, partial(self._result, interrupted=True))
        self._worker_bytes: tuple[int, ...] = ()
        self._strategies = {} if earlier is None else dict(earlier.strategies)
        self._why = {} if earlier is None else dict(earlier.why)

    def run(self) -> EvaluationResult:
        interrupted = False
        try:
            self._play([order for order in self._plan.orders if order.key not in self._records])
        except KeyboardInterrupt:
            interrupted = True
        except EpisodeFailed as error:
            error.result = self._result(interrupted=True)
            self._saver.try_to_save(error.result)
            raise
        result = self._result(interrupted=interrupted)
        self._saver.save(result)
        if (text := late_actions_text(result)) is not None:
            warnings.warn(text, RuntimeWarning, stacklevel=user_stacklevel())
        return result

    def _play(self, orders: Sequence[Order]) -> None:
        plan = self._plan
        if self._progress is not None:
            self._progress.begin([order.key for order in plan.orders], list(self._records.values()))
        if orders and plan.jobs:
            self._play_all(orders)
        elif orders:
            self._play_here(orders)

    @in_turn
    def _play_here(self, orders: Sequence[Order]) -> None:
        self._play_all(orders)

    _guard = CallGuard("evaluate")
    """One for all evaluations: those that play here use what the process has only once."""

    def _play_all(self, orders: Sequence[Order]) -> None:
        plan = self._plan
        with one_thread(), plan.crew(len(orders)) as crew:
            crew.start()
            rehearsals = Rehearsals(orders, plan.settings, crew.num_workers)
            crew.work_off(rehearsals)
            rehearsals.check(plan.candidates, plan.num_agents)
            for text in rehearsals.idle(plan.candidates):
                warnings.warn(text, PolicyNeverPlays, stacklevel=user_stacklevel())
            self._strategies |= {part_name(part): one.chosen for part, one in rehearsals.found.items() if one.chosen}
            self._why |= {part_name(part): one.why for part, one in rehearsals.found.items() if one.why}
            crew.work_off(
                Episodes(
                    orders,
                    rehearsals.found,
                    plan.candidates,
                    self._note,
                    strict=plan.strict,
                    side_by_side=crew.num_workers > 1,
                )
            )
            self._worker_bytes = crew.most_bytes()

    def _note(self, record: EpisodeRecord) -> None:
        if self._plan.keep is not None:
            self._plan.keep(record)
            record = replace(record, trajectory=None)
        self._records[record.key] = record
        if self._progress is not None:
            self._progress.note(record)
        self._saver.noted()

    def _result(self, *, interrupted: bool) -> EvaluationResult:
        keys = [order.key for order in self._plan.orders]
        return EvaluationResult(
            episodes=tuple(self._records[key] for key in keys if key in self._records),
            settings=self._settings,
            interrupted=interrupted,
            missing=tuple(key for key in keys if key not in self._records),
            worker_bytes=self._worker_bytes,
            options=self._options,
            strategies=self._strategies,
            why=self._why,
        )
