"""`evaluate`: play episodes of missions with policies, and return the result.

    missions, policies, arguments -> checks -> rehearsals -> episodes -> EvaluationResult

The steps are in `evaluate` and `_Evaluation.run`, from top to bottom.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from parallel_envs.choices import StartMethod, Strategy
from parallel_envs.engine import cores_here, picklable, unpicklable_part, user_stacklevel
from parallel_envs.env_files import absolute
from parallel_envs.errors import EpisodeFailed
from parallel_envs.evaluation.checkpoints import held_checkpoints
from parallel_envs.evaluation.config import (
    BadEvaluation,
    EvaluationConfig,
    PolicyNeverPlays,
    check_bool,
    check_jobs,
    check_names,
    check_path,
    check_preload,
    check_progress,
    check_whole,
    split_jobs,
    strategies_of,
)
from parallel_envs.evaluation.determinism import one_thread
from parallel_envs.evaluation.episode import EpisodeSpec, episode_specs
from parallel_envs.evaluation.missions import Mission, missions_of
from parallel_envs.evaluation.policies import Candidate, candidates_of
from parallel_envs.evaluation.records import EpisodeKey, EpisodeRecord, EvaluationResult
from parallel_envs.evaluation.resume import ResultSaver, check_nothing_is_lost, earlier_records, earlier_result
from parallel_envs.evaluation.running import EpisodeQueue, EvaluationWorkers, RehearsalQueue
from parallel_envs.evaluation.statistics import late_actions_text
from parallel_envs.evaluation.worker import EvaluationWorker
from parallel_envs.policies.specs import with_absolute_paths
from parallel_envs.spelling import suggests_keywords
from parallel_envs.threads import CallGuard, in_turn
from parallel_envs.vector.registry import Registrations

Keep = Callable[[EpisodeRecord], object]
"""A function that gets each record with its trajectory."""


class Progress(Protocol):
    """An object that is told how far an evaluation is."""

    def begin(self, work: Sequence[EpisodeKey], done: Sequence[EpisodeRecord]) -> None:
        """Take all episodes that are requested, and the records of those that are complete already."""

    def note(self, record: EpisodeRecord) -> None:
        """Take the record of an episode that has become complete, or has failed for good."""


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
    """Play `episodes` episodes of each mission and return their records, in the order of the missions.

    Episode i of a mission is always the same, for any number of workers and whatever else is played: its seeds follow
    from `seed`, the mission's name and i; its environment is made anew; its policies are copies; numeric libraries have
    one thread. Results depend on the clock only if you request it: with `action_timeout` a late action is dropped, with
    `episode_timeout` a long episode fails, and with `parallel_policy="auto"` the quickest strategy is chosen.

    Before any episode each mission is rehearsed: its environment is made once, and every policy acts once for every
    agent. Problems raise BadEvaluation. An episode that fails is played once more in a fresh worker; if it fails again,
    its record has a failure.

    Threads: any number may call `evaluate` at once. With `jobs=0` the calls wait for one another, because episodes that
    are played here set the global random generators of this process. Calls may not share a `save` file.

    Args:
        missions: A name, a Mission, a callable that makes an environment, a sequence of these, or a dict by name. See
            `missions_of`.
        policies: One or several, in a sequence or a dict by name: specs ("random", "package.module:Class", a folder),
            policies, functions of the observation. See `candidates_of`. The folder of a training run means its newest
            checkpoint at the start. It is copied first, so the run may go on training.
        episodes: The number of episodes of each mission.
        seed: All seeds follow from it.
        jobs: The most processes that work, for episodes and for agents together. 0: episodes are played in this
            process, and strategies that need processes have one for each core; "auto": one for each core. Workers that
            play whole episodes come first, one for each episode up to `jobs`. With the strategy "auto" they share the
            remaining jobs for their agents. With "process" by name each worker has at least one process for agents:
            `jobs // 2` workers, or fewer if there are fewer episodes, share the remaining jobs, so `jobs=1` is refused.
            Results are the same in all cases.
        parallel_policy: How the actions of an episode's agents are computed: one after another (False), by the name of
            a strategy of `parallel_envs.wrappers`, or by the strategy that a rehearsal finds to be the quickest (True,
            "auto"). `strategies` of the result has the chosen ones. Policies that share state, such as a list or the
            global generators, use it in any order with threads, and do not share it with processes.
        strategy: The strategies of single agents: a dict of names by agent. Other agents act as `parallel_policy` says.
            A name instead of a dict is the strategy of all agents.
        num_agents: The number of agents that each mission shall have. It is given to the environment by the keyword
            that takes it (see `missions.NUM_AGENTS`), as if the mission had been given as `name?N=4`.
        versus: With several policies: True has them share the agents of each episode, dealt out anew in each (the
            records are `mixed`); a UserWarning names missions in which a policy gets no agent. False evaluates each
            policy on its own, on the same episodes. `parallel-envs eval` does that unless it is given --versus.
        proportions: The number of agents of each policy, relative to the others. Only with `versus`.
        action_timeout: Seconds for an action, from an agent's second one on; None: no deadline. A later action is
            dropped and counted, and the agent does nothing in that step. How many are late depends on the machine, its
            load and `jobs`, and so do the scores: the result counts late actions (`EpisodeRecord.late`,
            `Summary.late`), and a RuntimeWarning has their number. A policy in its own thread ("thread") is not waited
            for; the lateness of other policies shows when they return.
        lateness_budget: With `action_timeout`: seconds by which an agent may be late in all, in an episode. After that
            its policy is not called any more in this episode, and the agent does nothing.
        episode_timeout: Seconds for an episode, from its first step on; None: no deadline. A longer episode fails. A
            worker that does not answer within a few more seconds is killed; with `jobs=0` nothing can end a policy that
            hangs. Without a deadline a warning is logged when a worker plays one episode for ten minutes.
        max_steps: An episode ends after this number of steps.
        info_keys: Names of infos whose last values are kept.
        trajectories: Whether to keep observations, actions and rewards, too. A function is called with each record
            instead, as episodes end, and the result has no trajectories: so they need not all fit into memory.
        strict: Raise EpisodeFailed when an episode has failed for good.
        resume: A result, or its file, of the same evaluation that ended early: only the missing episodes are played. A
            policy is the same if its name, its arguments, its code and the files in its folder are; the state of an
            object in memory is not compared. Of a training run the same checkpoint is used again.
        save: A file that always holds the complete episodes, as JSON. It can be resumed.
        context: How workers are started: "forkserver", "spawn" or "fork".
        preload: Modules that all workers need and that take long to import ("torch"): they are imported once for all
            workers, and stay loaded in every worker that this program starts later.
        progress: Is called as the evaluation goes on.
        options: Added to the `options` of the result and of the file, for `parallel-envs eval --resume`.
        trust: Modules whose classes the files of policy folders may name. Without it such a file may only name
            policies of this package: see `parallel_envs.trust`.

    Returns:
        The result. After a Ctrl-C it is marked as interrupted and lists the missing episodes.

    Raises:
        BadEvaluation: The evaluation cannot be done as asked. Nothing has been played.
        UntrustedName: A policy's folder names a class of a module that is not trusted. Nothing was imported.
        EpisodeFailed: With `strict`. Its `result` has the complete episodes.
        NotSaved: The file could not be written in the end. Its `result` has what the file lacks.
    """
    episodes, seed = check_whole("episodes", episodes, least=1), check_whole("seed", seed, least=0)
    max_steps = check_whole("max_steps", max_steps, least=1)
    strict, save = check_bool("strict", strict), check_path("save", save)
    resume = resume if isinstance(resume, EvaluationResult) else check_path("resume", resume)
    check_progress(progress)
    found, candidates = missions_of(missions, num_agents), candidates_of(policies, proportions, trust)
    alone = [] if check_bool("versus", versus) or len(candidates) == 1 else [one.name for one in candidates]
    if alone and proportions is not None:
        raise BadEvaluation(
            f"proportions={proportions!r} says how policies share agents, and versus=False has each play on its own. "
            "Give one of the two."
        )
    specs = episode_specs([mission.name for mission in found], episodes, seed, alone)
    num_jobs = check_jobs(jobs, len(specs), len(cores_here()) or 1)
    everyone, single = strategies_of(parallel_policy, strategy)
    config = EvaluationConfig(
        strategy=everyone,
        strategies=single,
        action_timeout=action_timeout,
        lateness_budget=lateness_budget,
        episode_timeout=episode_timeout,
        max_steps=max_steps,
        info_keys=check_names("info_keys", info_keys),
        trajectories=callable(trajectories) or check_bool("trajectories", trajectories),
    )
    if num_jobs:
        split_jobs(config.all_strategies, num_jobs, len(specs))  # raises if they cannot be shared
        for what, name, thing in [
            *(("mission", mission.name, mission) for mission in found),
            *(("policy", candidate.name, candidate.source) for candidate in candidates),
        ]:
            if not picklable(thing):
                raise BadEvaluation(
                    f"The {what} {name!r} cannot be sent to workers: {unpicklable_part(thing, what)} cannot be "
                    "pickled. Name it by a spec, from which workers make it, or give jobs=0."
                )
    modules = check_preload(preload)
    earlier = earlier_result(resume)
    with held_checkpoints(candidates, None if earlier is None else earlier.settings) as held:
        files = [Path(file) for file in (resume, save) if isinstance(file, str | Path)]
        settings = {
            "missions": {mission.name: mission.described() for mission in found},
            "policies": {candidate.name: candidate.described(files) for candidate in held},
            **config.described(),
            "episodes": episodes,
            "seed": seed,
            **({"versus": False} if alone else {}),
        }
        texts = {
            "mission": absolute_missions(_texts_of(missions)),
            "policy": absolute_policies(_texts_of(policies), [one.name for one in held]),
        }
        known_texts = {name: text for name, text in texts.items() if text is not None}
        where = "The result to resume" if isinstance(resume, EvaluationResult) else str(resume)
        records = earlier_records(earlier, where, settings, specs)
        if earlier is not None and isinstance(resume, str | Path) and save is not None:
            check_nothing_is_lost(Path(resume), Path(save), earlier, records)
        evaluation = _Evaluation(
            missions=found,
            candidates=held,
            specs=specs,
            config=config,
            jobs=num_jobs,
            context=context,
            preload=modules,
            strict=strict,
            keep=trajectories if callable(trajectories) else None,
            num_agents=num_agents,
            progress=progress,
            settings=settings,
            options={"jobs": str(jobs), "strict": strict, **known_texts, **(options or {})},
            save=save,
            records=records,
            strategies={} if earlier is None else dict(earlier.strategies),
            why={} if earlier is None else dict(earlier.why),
        )
        return evaluation.run()


@dataclass(kw_only=True)
class _Evaluation:
    """A call of `evaluate`, with checked arguments."""

    missions: Sequence[Mission]
    candidates: Sequence[Candidate]
    specs: Sequence[EpisodeSpec]
    config: EvaluationConfig
    jobs: int
    context: StartMethod | None
    preload: tuple[str, ...]
    strict: bool
    keep: Keep | None
    num_agents: int | None
    progress: Progress | None
    settings: Mapping[str, Any]
    options: Mapping[str, Any]
    save: str | Path | None
    records: dict[EpisodeKey, EpisodeRecord]
    strategies: dict[str, Mapping[Any, str]]
    why: dict[str, str]
    worker_bytes: tuple[int, ...] = ()

    _guard = CallGuard("evaluate")
    """Shared by all evaluations: those that play in this process use state that the process has only once."""

    def __post_init__(self) -> None:
        self.saver = ResultSaver(self.save, partial(self._result, interrupted=True))

    def run(self) -> EvaluationResult:
        specs = [spec for spec in self.specs if spec.key not in self.records]
        interrupted = False
        try:
            if self.progress is not None:
                self.progress.begin([spec.key for spec in self.specs], list(self.records.values()))
            if specs and self.jobs:
                self._play(specs)
            elif specs:
                self._play_here(specs)
        except KeyboardInterrupt:
            interrupted = True
        except EpisodeFailed as error:
            error.result = self._result(interrupted=True)
            self.saver.try_to_save(error.result)
            raise
        result = self._result(interrupted=interrupted)
        self.saver.save(result)
        if (text := late_actions_text(result)) is not None:
            warnings.warn(text, RuntimeWarning, stacklevel=user_stacklevel())
        return result

    @in_turn
    def _play_here(self, specs: Sequence[EpisodeSpec]) -> None:
        self._play(specs)

    def _play(self, specs: Sequence[EpisodeSpec]) -> None:
        config = self.config
        num_workers, own_processes = split_jobs(config.all_strategies, self.jobs, len(specs))
        make = partial(
            EvaluationWorker,
            self.missions,
            self.candidates,
            self.specs[0].root,
            config,
            Registrations.here(),
            num_processes=own_processes if self.jobs else None,
            alone=bool(self.specs[0].alone),
        )
        with (
            one_thread(),
            EvaluationWorkers(num_workers, self.context, self.preload, make, config.episode_timeout) as workers,
        ):
            workers.start()
            rehearsals = RehearsalQueue(specs, config, workers.num_workers)
            workers.run(rehearsals)
            rehearsals.check(self.candidates, self.num_agents)
            for text in rehearsals.warnings(self.candidates):
                warnings.warn(text, PolicyNeverPlays, stacklevel=user_stacklevel())
            results = rehearsals.results
            found = {key if isinstance(key, str) else f"{key[0]} ({key[1]})": one for key, one in results.items()}
            self.strategies |= {name: one.chosen for name, one in found.items() if one.chosen}
            self.why |= {name: one.why for name, one in found.items() if one.why}
            episodes = EpisodeQueue(
                specs, results, self.candidates, self._note, strict=self.strict, side_by_side=workers.num_workers > 1
            )
            workers.run(episodes)
            self.worker_bytes = workers.peak_bytes()

    def _note(self, record: EpisodeRecord) -> None:
        if self.keep is not None:
            self.keep(record)
            record = replace(record, trajectory=None)
        self.records[record.key] = record
        if self.progress is not None:
            self.progress.note(record)
        self.saver.note()

    def _result(self, *, interrupted: bool) -> EvaluationResult:
        keys = [spec.key for spec in self.specs]
        return EvaluationResult(
            episodes=tuple(self.records[key] for key in keys if key in self.records),
            settings=self.settings,
            interrupted=interrupted,
            missing=tuple(key for key in keys if key not in self.records),
            worker_bytes=self.worker_bytes,
            options=self.options,
            strategies=self.strategies,
            why=self.why,
        )


# ---- missions and policies as text, for `--resume` ------------------------------------------------------------------


def _texts_of(given: Any) -> Any:
    """Return missions or policies as they were given, if that was text, a list of text, or a dict of text by name."""
    if isinstance(given, str):
        return [given]
    if isinstance(given, Mapping):
        is_text = all(isinstance(one, str) for item in given.items() for one in item)
        return dict(given) if is_text else None
    is_text = isinstance(given, Sequence) and all(isinstance(one, str) for one in given)
    return list(given) if is_text else None


def absolute_missions(texts: Any) -> Any:
    """Return the texts of missions, in a list or by name, with absolute paths: a file may be resumed anywhere."""

    def with_absolute_path(text: str) -> str:
        name, mark, arguments = text.partition("?")
        return f"{absolute(name)}{mark}{arguments}"

    if isinstance(texts, Mapping):
        return {name: with_absolute_path(one) for name, one in texts.items()}
    return None if texts is None else [with_absolute_path(one) for one in texts]


def absolute_policies(texts: Any, names: Sequence[str]) -> Any:
    """Return the texts of policies with absolute paths, by name where that changes them: results keep their names."""
    if texts is None:
        return None
    given = list(texts.values() if isinstance(texts, Mapping) else texts)
    found = [with_absolute_paths(one) for one in given]
    return texts if found == given else dict(zip(names, found, strict=True))
