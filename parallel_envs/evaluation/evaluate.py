"""`evaluate`: play episodes of missions with policies, and return the result.

    missions, policies, arguments -> checks -> rehearsals -> episodes -> EvaluationResult

The steps are in `evaluate` and `_play`, from top to bottom. A result that ended early is resumed with
`earlier_records`, and `ResultSaver` keeps the results file up to date.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
import warnings
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from parallel_envs.checks import suggests_keywords
from parallel_envs.choices import StartMethod, Strategy
from parallel_envs.devices import CPU, find_device
from parallel_envs.engine import num_cores, picklable, unpicklable_part, user_stacklevel
from parallel_envs.env_files import absolute
from parallel_envs.errors import EpisodeFailed
from parallel_envs.evaluation.determinism import one_thread
from parallel_envs.evaluation.episode import EpisodeSpec, episode_specs
from parallel_envs.evaluation.missions import Mission, missions_of
from parallel_envs.evaluation.policies import CHECKPOINT, DIGEST, Candidate, candidates_of, held_checkpoints
from parallel_envs.evaluation.records import (
    BadDocument,
    BadEvaluation,
    EpisodeKey,
    EpisodeRecord,
    EvaluationConfig,
    EvaluationResult,
    check_whole,
    plain,
)
from parallel_envs.evaluation.running import EpisodeQueue, EvaluationWorker, EvaluationWorkers, RehearsalQueue
from parallel_envs.extras import explained, is_installed
from parallel_envs.files import unwritable
from parallel_envs.policies.specs import with_absolute_paths
from parallel_envs.threads import CallGuard
from parallel_envs.vector.registry import Registrations

_log = logging.getLogger(__name__)

Keep = Callable[[EpisodeRecord], object]
"""A function that gets each record with its trajectory."""

_LEAST_SECONDS, _MOST_SHARE = 1.0, 0.05  # between two writings; the share of the time that they may take

_here = CallGuard("evaluate")
"""Held by an evaluation that plays in this process: it uses state that the process has only once."""


class PolicyNeverPlays(UserWarning):
    """Several policies share the agents of a mission, and one of the policies gets none of them."""


@runtime_checkable
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
    device: str = CPU,
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
            checkpoint at the start, which is copied first.
        episodes: The number of episodes of each mission.
        seed: All seeds follow from it.
        jobs: The most processes that work, for episodes and for agents together (see `split_jobs`). 0: episodes are
            played in this process, and strategies that need processes have one for each core; "auto": one for each
            core. Results are the same in all cases.
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
            load and `jobs`, and so do the scores, so a RuntimeWarning has their number. A policy in its own thread
            ("thread") is not waited for; the lateness of other policies shows when they return.
        lateness_budget: With `action_timeout`: seconds by which an agent may be late in all, in an episode. After that
            its policy is not called any more in this episode, and the agent does nothing.
        episode_timeout: Seconds for an episode, from its first step on; None: no deadline. A longer episode fails. A
            worker that does not answer within a few more seconds is killed; with `jobs=0` nothing can end a policy that
            hangs. Without a deadline a warning is logged when a worker plays one episode for ten minutes.
        max_steps: An episode ends after this number of steps.
        info_keys: Names of infos whose last values are kept.
        device: Where the networks of policies are computed: "cpu", "cuda", "cuda:1", "mps", or "auto" (CUDA if torch
            finds it here, else MPS, else the CPU). Each worker has copies of its own there. A policy of your own is
            told the device if it has a method `act_on(device)`; a policy with a network and without this method is
            refused. Numbers may differ from those of the CPU in their last digits. A mission's own `device` counts
            more.
        trajectories: Whether to keep observations, actions and rewards, too. A function is called with each record
            instead, as episodes end, and the result has no trajectories: so they need not all fit into memory.
        strict: Raise EpisodeFailed when an episode has failed for good.
        resume: A result, or its file, of the same evaluation that ended early: only the missing episodes are played. A
            policy is the same if its name, its arguments, its code and the files in its folder are; the state of an
            object in memory is not compared. Of a training run the same checkpoint is used again.
        save: A file that always holds the complete episodes, as JSON. It can be resumed.
        context: How workers are started: "forkserver", "spawn" or "fork".
        preload: Modules that take long to import ("torch"): they are imported once for all workers, and stay loaded in
            every worker that this program starts later.
        progress: Is called as the evaluation goes on.
        options: Added to the `options` of the result and of the file, for `parallel-envs eval --resume`.
        trust: Modules whose classes the files of policy folders may name: see `parallel_envs.trust`.

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
    flag, file_path = "neither True nor False", "not the path of a file"
    for name, value, kinds, text in (
        ("strict", strict, bool | np.bool_, flag),
        ("versus", versus, bool | np.bool_, flag),
        ("trajectories", trajectories, bool | np.bool_ | Callable, flag),
        ("save", save, str | Path | None, file_path),
        ("resume", resume, str | Path | EvaluationResult | None, file_path),
        ("progress", progress, Progress | None, "an object without begin(work, done) and note(record)"),
    ):
        if not isinstance(value, kinds):
            raise BadEvaluation(f"{name}={value!r} is {text}.")
    found, candidates = missions_of(missions, num_agents), candidates_of(policies, proportions, trust)
    alone = [] if versus or len(candidates) == 1 else [one.name for one in candidates]
    if alone and proportions is not None:
        raise BadEvaluation(f"proportions={proportions!r} says how policies share agents, but each plays on its own.")
    specs = episode_specs([mission.name for mission in found], episodes, seed, alone)
    num_jobs = check_jobs(jobs, len(specs), num_cores() if isinstance(jobs, str) else 0)
    if isinstance(strategy, str):
        if parallel_policy is not False:
            raise BadEvaluation(f"{parallel_policy=} and {strategy=} both name a strategy for all agents.")
        parallel_policy, strategy = strategy, None
    if not isinstance(strategy, Mapping | None):
        raise BadEvaluation(f"strategy={strategy!r} is neither a name nor a dict of names by agent.")
    if isinstance(parallel_policy, bool):
        parallel_policy = "auto" if parallel_policy else "sequential"
    found = [
        one if one.device is None else replace(one, device=_device(one.device, f"The mission {one.name!r}: "))
        for one in found
    ]
    place = _device(device)
    if context == "fork" and any(name.startswith("cuda") for name in (place, *(str(one.device) for one in found))):
        raise BadEvaluation(
            "context='fork' and CUDA do not go together: CUDA cannot be used in a forked copy of this "
            "process. Leave context out."
        )
    config = EvaluationConfig(
        strategy=parallel_policy,
        strategies={str(agent): name for agent, name in (strategy or {}).items()},
        action_timeout=action_timeout,
        lateness_budget=lateness_budget,
        episode_timeout=episode_timeout,
        max_steps=max_steps,
        info_keys=_names("info_keys", info_keys),
        trajectories=bool(trajectories),
        device=place,
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
    modules = _names("preload", preload)
    if unknown := [name for name in modules if not is_installed(name)]:  # workers pass over unknown modules
        raise BadEvaluation(f"preload={unknown[0]!r} cannot be found. Leave it out, or install it.")
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
        texts = {"mission": mission_texts(missions), "policy": policy_texts(policies, [one.name for one in held])}
        options = {
            "jobs": str(jobs),
            "strict": bool(strict),
            **({} if num_agents is None else {"cogs": int(num_agents)}),
            **{name: text for name, text in texts.items() if text is not None},
            **(options or {}),
        }
        parts: dict[str, Any] = {"settings": settings, "options": options, "worker_bytes": ()}
        parts |= {name: {} if earlier is None else dict(getattr(earlier, name)) for name in ("strategies", "why")}
        records = earlier_records(earlier, resume, save, settings, specs)
        keep = trajectories if callable(trajectories) else None

        def result_now(*, interrupted: bool = True) -> EvaluationResult:
            played = tuple(records[spec.key] for spec in specs if spec.key in records)
            missing = tuple(spec.key for spec in specs if spec.key not in records)
            return EvaluationResult(episodes=played, missing=missing, interrupted=interrupted, **parts)

        def note(record: EpisodeRecord) -> None:
            if keep is not None:
                keep(record)
                record = replace(record, trajectory=None)
            records[record.key] = record
            if progress is not None:
                progress.note(record)
            saver.note()

        saver, interrupted = ResultSaver(save, result_now), False
        left = [spec for spec in specs if spec.key not in records]
        try:
            if progress is not None:
                progress.begin([spec.key for spec in specs], list(records.values()))
            if left:
                with contextlib.nullcontext() if num_jobs else _here.lock:
                    _play(left, found, held, config, num_jobs, context, modules, num_agents, bool(strict), parts, note)
        except KeyboardInterrupt:
            interrupted = True
        except EpisodeFailed as error:
            error.result = result_now()
            saver.save(error.result, last=False)
            raise
        result = result_now(interrupted=interrupted)
        saver.save(result)
    if (late := late_actions_text(result)) is not None:
        warnings.warn(late, RuntimeWarning, stacklevel=user_stacklevel())
    return result


def _device(name: str, where: str = "") -> str:
    """Return the full name of a device. Torch is imported for any other than the CPU. Raises BadEvaluation."""
    if name == CPU:
        return CPU
    try:
        with explained(f"device={name!r}"):
            return find_device(name)
    except ValueError as error:
        raise BadEvaluation(f"{where}{error}") from error


def _play(
    specs: Sequence[EpisodeSpec],
    missions: Sequence[Mission],
    candidates: Sequence[Candidate],
    config: EvaluationConfig,
    jobs: int,
    context: StartMethod | None,
    preload: tuple[str, ...],
    num_agents: int | None,
    strict: bool,
    parts: dict[str, Any],
    note: Callable[[EpisodeRecord], None],
) -> None:
    """Rehearse the missions and play these episodes. `parts`: fields of the result, which are filled in."""
    num_workers, own_processes = split_jobs(config.all_strategies, jobs, len(specs))
    alone, processes = bool(specs[0].alone), own_processes if jobs else None
    given = missions, candidates, specs[0].root, config, Registrations.here() if jobs else None
    make = partial(EvaluationWorker, *given, num_processes=processes, alone=alone)
    with one_thread(), EvaluationWorkers(num_workers, context, preload, make, config.episode_timeout) as workers:
        workers.start()
        rehearsals = RehearsalQueue(specs, config, workers.num_workers)
        workers.run(rehearsals)
        for text in rehearsals.check(candidates, num_agents):
            warnings.warn(text, PolicyNeverPlays, stacklevel=user_stacklevel())
        for key, one in rehearsals.results.items():
            name = key if isinstance(key, str) else f"{key[0]} ({key[1]})"
            parts["strategies"] |= {name: one.chosen} if one.chosen else {}
            parts["why"] |= {name: one.why} if one.why else {}
        several = workers.num_workers > 1
        workers.run(EpisodeQueue(specs, rehearsals.results, candidates, note, strict=strict, side_by_side=several))
        parts["worker_bytes"] = workers.peak_bytes()


def late_actions_text(result: EvaluationResult) -> str | None:
    """Return a warning with the number of late actions, or None if there were none."""
    records = [record for record in result.episodes if record.late]
    if not records:
        return None
    late = sum(record.late for record in records)
    limit = result.settings.get("action_timeout")
    return (
        f"{late:,} action{'s were' if late > 1 else ' was'} late in {len(records):,} of {len(result.episodes):,} "
        f"episodes (action_timeout={limit}): the agents did nothing instead. How many are late depends on the machine, "
        "its load and the number of jobs, and so do these scores. Give more time or fewer jobs to have scores that can "
        "be repeated."
    )


# ---- arguments ------------------------------------------------------------------------------------------------------


def check_jobs(jobs: Any, num_episodes: int, num_cores: int) -> int:
    """Return the number of jobs. "auto" is one job for each core, and 0 where there is only one core or one episode."""
    if isinstance(jobs, str) and jobs == "auto":
        most = min(num_cores, num_episodes)
        return most if most > 1 else 0
    return check_whole("jobs", jobs, least=0, other="nor 'auto'")


def split_jobs(strategies: Collection[str], jobs: int, num_episodes: int) -> tuple[int, int]:
    """Share `jobs` processes between episodes and agents. Return the number of workers, and of processes for each.

    A worker plays whole episodes. Its own processes compute the actions of agents. All together are at most `jobs`.

    - Episodes come first, because only a seed and a record travel for an episode: `min(jobs, num_episodes)` workers.
      With "auto" the workers share the remaining jobs, so agents get processes only if there are more jobs than
      episodes.
    - "process" by name needs a process in each worker: `min(jobs // 2, num_episodes)` workers share the remaining jobs.
    - Without "auto" and "process" no worker has processes of its own.
    """
    if "process" in strategies and jobs == 1:
        raise BadEvaluation(
            "jobs=1 is one process, which plays the episodes, and the strategy 'process' needs another one for the "
            "agents. Give jobs=2 or more, or jobs=0 to play the episodes in this process."
        )
    workers = min(jobs // 2 if "process" in strategies else jobs, num_episodes)
    if not workers or not {"process", "auto"} & set(strategies):
        return workers, 0
    return workers, (jobs - workers) // workers


def _names(what: str, given: Any) -> tuple[str, ...]:
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise BadEvaluation(f"{what}={given!r} is not a list of names.")
    return names


def mission_texts(given: Any) -> Any:
    """Return missions as text with absolute paths, in a list or by name, or None: a file may be resumed anywhere."""
    return _texts(given, lambda text: "".join([absolute(text.partition("?")[0]), *text.partition("?")[1:]]))


def policy_texts(given: Any, names: Sequence[str]) -> Any:
    """Return policies as text with absolute paths, by name where that changes them: results keep their names."""
    texts = _texts(given, with_absolute_paths)
    if texts is None or texts == _texts(given, str):
        return texts
    return dict(zip(names, texts.values() if isinstance(texts, dict) else texts, strict=True))


def _texts(given: Any, change: Callable[[str], str]) -> Any:
    """Return what was given, if it was text, a list of text, or a dict of text by name, with each text changed."""
    if isinstance(given, Mapping):
        values = _texts(list(given.values()), change)
        return None if values is None or _texts(list(given), str) is None else dict(zip(given, values, strict=True))
    given = [given] if isinstance(given, str) else given
    is_text = isinstance(given, Sequence) and all(isinstance(one, str) for one in given)
    return [change(one) for one in given] if is_text else None


# ---- resuming, and the results file ---------------------------------------------------------------------------------


def earlier_result(resume: str | Path | EvaluationResult | None) -> EvaluationResult | None:
    """Return the result to resume. Raises BadEvaluation if the file does not hold one."""
    try:
        return EvaluationResult.from_json(resume) if isinstance(resume, str | Path) else resume
    except BadDocument as error:
        raise BadEvaluation(f"{error} It cannot be resumed.") from error


def earlier_records(
    earlier: EvaluationResult | None,
    resume: str | Path | EvaluationResult | None,
    save: str | Path | None,
    settings: Mapping[str, Any],
    specs: Iterable[EpisodeSpec],
) -> dict[EpisodeKey, EpisodeRecord]:
    """Return the records that need not be played again.

    Raises BadEvaluation if they come from another evaluation than the one that is requested now (`settings`, `specs`),
    or if `save` would replace the file to resume, and lose episodes that are not requested.
    """
    if earlier is None:
        return {}
    before, now = (json.loads(json.dumps(plain(one))) for one in (earlier.settings, settings))  # as files hold them
    where = "The result to resume" if isinstance(resume, EvaluationResult) else str(resume)

    def check(what: str, old: Any, new: Any) -> None:
        """Raise unless the two are equal, and dicts in the same order."""
        if old != new or (isinstance(new, dict) and list(old) != list(new)):
            raise BadEvaluation(
                f"{where} was made with {what}{old!r}, and {new!r} is requested. Its numbers would not be comparable "
                "with the rest: give the old value, or start a new evaluation."
            )

    policies, requested = before.get("policies"), now["policies"]
    if not isinstance(policies, dict) or not all(isinstance(one, dict) for one in policies.values()):
        check("policies=", policies, requested)
    # Their order counts, too: agents are dealt out by it. Checkpoints were compared when they were copied.
    check("policies=", _comparable(policies, requested), _comparable(requested, policies))
    for name, one in requested.items():
        if policies[name].get(DIGEST, one.get(DIGEST)) != one.get(DIGEST):
            raise BadEvaluation(f"{where} was made with a policy {name!r} whose code or files have changed since.")
    check("versus=", before.get("versus", True), now.get("versus", True))
    check("device=", before.get("device", CPU), now.get("device", CPU))
    for name in [one for one in now if one not in ("missions", "policies", "episodes", "versus", "device")]:
        check(f"{name}=", before.get(name), now[name])
    for name, mission in now["missions"].items():
        check(f"the mission {name!r}: ", (before.get("missions") or {}).get(name, mission), mission)
    wanted = {spec.key: spec.env_seed for spec in specs}
    records = {record.key: record for record in earlier.episodes if wanted.get(record.key) == record.seed}
    lost = sum(record.key not in records for record in earlier.episodes)
    is_file = isinstance(resume, str | Path) and save is not None and Path(save).exists()
    if lost and is_file and Path(str(resume)).samefile(str(save)):
        raise BadEvaluation(
            f"{save} holds {lost:,} episodes that are not requested now, and would lose them. Request all of its "
            "missions and episodes, or save to another file."
        )
    return records


def _comparable(policies: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return what must be equal in both, except digests. With equal digests the data may be at another path."""
    found = {}
    for name, one in policies.items():
        other = others.get(name, {})
        paths = [str(settings.get("data")) for settings in (one, other) if isinstance(settings.get("data"), str)]
        is_same = DIGEST in one and one[DIGEST] == other.get(DIGEST) and len(paths) == 2
        may_move = is_same and any(map(os.path.lexists, paths))
        found[name] = {
            key: part for key, part in one.items() if key not in (DIGEST, CHECKPOINT, "data" if may_move else "")
        }
    return found


class NotSaved(OSError):
    """The file that was to hold an evaluation cannot be written. `result` is the evaluation: write it elsewhere."""

    def __init__(self, path: Path, result: EvaluationResult, problem: OSError) -> None:
        super().__init__(f"{path} cannot be written: {problem}. It does not hold all that was played.")
        self.result = result


class ResultSaver:
    """Writes a results file while episodes are played, as often as that takes little time. No path: does nothing.

    `result` returns the result of the episodes that are complete now.
    """

    def __init__(self, path: str | Path | None, result: Callable[[], EvaluationResult]) -> None:
        self._path, self._result = None if path is None else Path(path), result
        self._not_before = 0.0
        if self._path is not None:
            check_writable(self._path)

    def note(self) -> None:
        """Write the file after an episode, unless it was written a moment ago."""
        if self._path is None or time.monotonic() < self._not_before:
            return
        began = time.monotonic()
        self.save(self._result(), last=False)
        seconds = time.monotonic() - began
        self._not_before = time.monotonic() + max(_LEAST_SECONDS, seconds / _MOST_SHARE)

    def save(self, result: EvaluationResult, *, last: bool = True) -> None:
        """Write the file. Raises NotSaved, or logs it unless this is the last time: there may be space again later."""
        try:
            if self._path is not None:
                result.to_json(self._path)
        except OSError as problem:
            error = NotSaved(Path(str(self._path)), result, problem)
            if last:
                raise error from problem
            _log.warning("%s", str(error))  # only the text: a handler that keeps the error would keep its frames


def check_writable(path: Path) -> None:
    """Raise BadEvaluation if the file cannot be written."""
    if problem := unwritable(path):
        raise BadEvaluation(f"{path} cannot be written: {problem}. Name another file.")
