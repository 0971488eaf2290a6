"""A search for good settings: many training runs, whose settings Optuna chooses, in one folder.

    settings file, spaces ──▶ Optuna ──▶ trials: `train` in processes, `jobs` at a time ──▶ metric ──▶ Optuna

runs/cartpole_sweep/
    sweep.yaml           the search: spaces, metric, number of trials
    base.yaml            settings that all trials share
    study.log            trials and their values (Optuna's journal): `optuna.storages.JournalStorage` reads it
    trial-000/           a run like any other (`trial-000_seed1/` ... if a trial has several seeds)
    trial-000.log        what the run has printed
    best.yaml            settings of the best trial, to be trained with

Each space is checked against the settings before the first trial. A trial that fails is recorded with its reason, and
the search goes on. After Ctrl-C or a kill the search goes on where it stopped: runs that were interrupted are resumed.
Each of the trials that run at the same time has its share of the cores, and as many workers unless the settings say.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from parallel_envs.checks import hint
from parallel_envs.env_files import absolute
from parallel_envs.extras import require
from parallel_envs.files import is_file, locked, write_text
from parallel_envs.learners.config import BadSettings, read_config, read_settings, replaced
from parallel_envs.learners.meta import config as meta
from parallel_envs.learners.outcomes import outcome_in
from parallel_envs.learners.run_folder import BadRun, newest_checkpoint, read_metrics
from parallel_envs.learners.writers import numbers_of
from parallel_envs.meta.making import KNOWN
from parallel_envs.settings import settings_in, value_of
from parallel_envs.threads import cores_here, num_cores
from parallel_envs.trust import check_env

SWEEP, BASE, BEST, STUDY = "sweep.yaml", "base.yaml", "best.yaml", "study.log"

SamplerName = Literal["tpe", "random"]
PrunerName = Literal["median", "none"]
Say = Callable[[str], None]

_PARTS = 20  # of a run: at the end of each, its metric is compared with those of other trials
_END_SECONDS = 60.0  # that a run has to save a checkpoint after Ctrl-C
_ORPHAN_SECONDS = 90.0  # that a run of a sweep that was killed has for it
_POLL_SECONDS = 0.2
_MOST_REASON = 300

_ADVICE = re.compile(
    r"holds no checkpoint yet|newest whole checkpoint|^With on_failure=restart|goes on from a checkpoint"
)
_NEXT = re.compile(r"^(?:agent +algorithm .*\n(?:.*\n)*?)?Next:\n(?:  .*\n?)*", re.MULTILINE)
"""Results and commands at the end of a run."""

_CHILD = """
import ctypes, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started the sweep without it
parent, cores = int(sys.argv.pop(1)), [int(core) for core in sys.argv.pop(1).split(",") if core]
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, int(signal.SIGINT))  # PR_SET_PDEATHSIG: a sweep that is killed ends its runs
    if os.getppid() != parent:  # it was killed before
        sys.exit("The sweep was killed before the run began.")
    os.sched_setaffinity(0, cores)
from parallel_envs.cli import main
main()
"""


# ---- spaces ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Space:
    """Values that a setting may have: a range, on a linear or logarithmic scale, or choices."""

    key: str
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    whole: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def first(self) -> Any:
        """The lower end or the first choice."""
        return self.choices[0] if self.choices else int(self.low) if self.whole else self.low

    def distribution(self) -> Any:
        """Return the space as Optuna has it. Choices that are lists or blocks are texts there."""
        from optuna import distributions

        if self.choices:
            return distributions.CategoricalDistribution([_label(one) for one in self.choices])
        if self.whole:
            return distributions.IntDistribution(int(self.low), int(self.high), log=self.log)
        return distributions.FloatDistribution(self.low, self.high, log=self.log)

    def value(self, chosen: Any) -> Any:
        """Return the setting for a value that Optuna has chosen."""
        return next((one for one in self.choices if _label(one) == chosen), chosen)


def _label(choice: Any) -> Any:
    return choice if choice is None or isinstance(choice, str | int | float) else json.dumps(choice)


_RANGE = re.compile(r"(?P<log>log:)?(?P<low>[^,/\[\]{}]*?)\.\.(?P<high>[^,/\[\]{}]*)")  # "../" is of a path


def read_words(words: Sequence[str]) -> tuple[list[Space], dict[str, Any]]:
    """Return the spaces and the fixed values in `key=low..high`, `key=log:low..high`, `key=a,b,c` and `key=value`.

    Raises BadSettings. Whether a range is of whole numbers is not known yet: see `check_space`.
    """
    spaces: list[Space] = []
    fixed: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise BadSettings(f"{word!r} does not have the form key=low..high, key=a,b,c or key=value.")
        if key in fixed or any(one.key == key for one in spaces):
            raise BadSettings(f"`{key}` is given twice. Give it once.")
        found = _RANGE.fullmatch(text)
        if found is None:
            values = value_of(f"[{text}]", f"The value of {word!r}", BadSettings)
            if len(values) < 2:
                fixed[key] = value_of(text, f"The value of {word!r}", BadSettings)
            else:
                spaces.append(Space(key, choices=tuple(values)))
            continue
        try:
            low, high = float(found["low"]), float(found["high"])
        except ValueError:
            raise BadSettings(f"{word!r} is no range of numbers. Give one such as {key}=1..8.") from None
        if not -math.inf < low < high < math.inf:
            raise BadSettings(f"{word!r} is an empty range. Give the lower end first.")
        if found["log"] and low <= 0:
            raise BadSettings(f"{word!r}: a range on a logarithmic scale begins above 0.")
        whole = not any(mark in f"{found['low']}{found['high']}".lower() for mark in ".e")
        spaces.append(Space(key, low, high, log=bool(found["log"]), whole=whole))
    keys = [*fixed, *(one.key for one in spaces)]
    for one in spaces:
        if inner := next((key for key in keys if key.startswith(f"{one.key}.")), None):
            raise BadSettings(
                f"`{inner}` is a part of `{one.key}`, whose choices replace it. Write it into each of them, "
                f"or give `{one.key}` one value."
            )
    if not spaces:
        raise BadSettings(
            "There is nothing to search. Give settings with several values: algorithm.learning_rate=log:1e-5..1e-2, "
            "algorithm.num_epochs=2..8, algorithm.activation=tanh,relu."
        )
    return spaces, fixed


def check_settings(content: Mapping[str, Any]) -> None:
    """Raise BadSettings for a mistake in the settings of a run of any kind, also in those of its algorithms."""
    if meta.is_meta(content):
        from parallel_envs.learners.meta.agent import AGENT_ARCHS, read_algorithm, read_memory

        policy = meta.load_settings(content).policy
        arch = AGENT_ARCHS(policy.arch)
        read_algorithm(policy.algorithm, arch)
        read_memory(policy.memory.model_dump(), arch)
        return
    from parallel_envs.learners.agent import configs_by_name

    settings, kinds = read_settings(content), configs_by_name()
    common = settings.algorithm
    read_config(common, "algorithm", kinds, outside=type(settings).model_fields)
    for agent, own in settings.agents.items():
        block = {**common, **own} if own.get("name", common["name"]) == common["name"] else own
        read_config(block, f"agents.{agent}", kinds, outside=type(settings).model_fields)


def check_space(space: Space, base: Mapping[str, Any]) -> Space:
    """Return the space, with `whole` set as the setting needs it. BadSettings if the setting takes none of its values.

    The ends and the choices are tried in the settings of a run, so mistakes have the same texts as in `train`.
    """
    if space.choices:
        for value in space.choices:
            check_settings(replaced(base, {space.key: value}))
        return space
    if "env_kwargs." in f"{space.key}.":  # arguments may be anything: whole numbers if it is written without a point
        return space
    is_whole = space.low.is_integer() and space.high.is_integer()
    if is_whole:
        try:
            check_settings(replaced(base, {space.key: space.low + 0.5}))
        except BadSettings:
            for end in (space.low, space.high):
                check_settings(replaced(base, {space.key: int(end)}))
            return Space(space.key, space.low, space.high, space.log, whole=True)
    for end in (space.low, space.high):
        check_settings(replaced(base, {space.key: end}))
    return Space(space.key, space.low, space.high, space.log, whole=False)


# ---- a sweep and its trials ------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SweepSettings:
    """Contents of `sweep.yaml`."""

    words: tuple[str, ...]
    """Spaces and fixed settings, as on the command line."""
    metric: str
    minimize: bool = False
    trials: int
    seeds: int = 1
    sampler: SamplerName = "tpe"
    pruner: PrunerName = "median"

    def write(self, folder: Path) -> None:
        _write_yaml(folder / SWEEP, {**asdict(self), "words": list(self.words)})


@dataclass(frozen=True, kw_only=True)
class TrialRecord:
    """A trial, as tables and pages show it. `state` is "complete", "pruned", "failed" or "running"."""

    number: int
    state: str
    value: float | None
    settings: Mapping[str, Any]
    seconds: float | None = None
    reason: str = ""
    folders: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """All trials of a sweep so far."""

    folder: Path
    settings: SweepSettings
    spaces: Sequence[Space]
    trials: Sequence[TrialRecord]

    @property
    def ranked(self) -> list[TrialRecord]:
        """The complete trials, the best one first."""
        done = [one for one in self.trials if one.state == "complete" and one.value is not None]
        return sorted(done, key=lambda one: one.value or 0.0, reverse=not self.settings.minimize)

    def described(self) -> dict[str, Any]:
        """Return the result as JSON."""
        best = next(iter(self.ranked), None)
        return {
            "folder": str(self.folder),
            "metric": self.settings.metric,
            "minimize": self.settings.minimize,
            "best": None if best is None else asdict(best),
            "trials": [asdict(one) for one in self.trials],
        }


def is_sweep(folder: str | Path) -> bool:
    """Return whether a folder holds a sweep."""
    return is_file(Path(folder) / SWEEP)


def sweep_in(folder: str | Path) -> SweepResult:
    """Return the sweep in a folder. BadRun if its files are damaged, MissingExtra without Optuna."""
    folder, settings = Path(folder), read_sweep(Path(folder))
    spaces = _spaces(read_words(settings.words)[0], settings_in(folder / BASE, BadRun))
    return _result(folder, settings, spaces, _study(folder, settings))


def read_sweep(folder: Path) -> SweepSettings:
    content = settings_in(folder / SWEEP, BadRun)
    try:
        return SweepSettings(**{**content, "words": tuple(content["words"])})
    except (KeyError, TypeError) as error:
        raise BadRun(f"{folder / SWEEP} is damaged: {error}.") from None


def _spaces(spaces: Sequence[Space], base: Mapping[str, Any]) -> list[Space]:
    """Return the spaces as the settings need them: see `check_space`. BadSettings for a mistake in either."""
    first = replaced(base, {one.key: one.first for one in spaces})
    found = [check_space(one, first) for one in spaces]
    check_settings(first)
    return found


def _study(folder: Path, settings: SweepSettings) -> Any:
    require("A search of settings", "optuna")
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    no_lock: Any = SimpleNamespace(acquire=lambda: True, release=lambda: None)  # `Sweep.run` locks the whole folder
    storage = JournalStorage(JournalFileBackend(str(folder / STUDY), lock_obj=no_lock))
    pruners = {"median": optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=_PARTS // 5)}
    try:
        study = optuna.load_study(study_name="sweep", storage=storage)
    except KeyError:  # it is new
        direction: Any = "minimize" if settings.minimize else "maximize"
        study = optuna.create_study(study_name="sweep", storage=storage, direction=direction)
    study.pruner = pruners.get(settings.pruner, optuna.pruners.NopPruner())
    seed = len(study.trials)  # a search that goes on draws other values than at its beginning
    if settings.sampler == "random":
        study.sampler = optuna.samplers.RandomSampler(seed=seed)
    else:
        with warnings.catch_warnings():  # before Optuna 5, this argument is called experimental
            warnings.simplefilter("ignore")
            study.sampler = optuna.samplers.TPESampler(seed=seed, constant_liar=True)  # several trials run at a time
    return study


def _result(folder: Path, settings: SweepSettings, spaces: Sequence[Space], study: Any) -> SweepResult:
    by_key = {one.key: one for one in spaces}
    states = {"COMPLETE": "complete", "PRUNED": "pruned", "FAIL": "failed"}
    records = []
    for one in study.get_trials(deepcopy=False):
        compared = list(one.intermediate_values.values())
        record = TrialRecord(
            number=one.number,
            state=states.get(one.state.name, "running"),
            value=one.value if one.state.name == "COMPLETE" else compared[-1] if compared else None,
            settings={key: by_key[key].value(chosen) for key, chosen in one.params.items() if key in by_key},
            seconds=one.user_attrs.get("seconds"),
            reason=one.user_attrs.get("reason", ""),
            folders=tuple(path.name for path in _folders(folder, one.number, settings.seeds)),
        )
        records.append(record)
    return SweepResult(folder=folder, settings=settings, spaces=spaces, trials=records)


def _folders(folder: Path, number: int, seeds: int) -> list[Path]:
    name = f"trial-{number:03}"
    return [folder / (name if seeds == 1 else f"{name}_seed{seed}") for seed in range(seeds)]


def metric_of(lines: Sequence[Mapping[str, Any]], name: str) -> list[tuple[Mapping[str, Any], float]]:
    """Return the lines of metrics that have a metric, each with its value: `loss/red`, or `loss` as a mean of agents.

    Raises BadRun if there are lines and none has it, except for returns and evaluations, which a run may not have yet.
    """
    found, known = [], dict[str, None]()
    for line in lines:
        numbers = numbers_of(line, line.get("agents") or {})
        own = [value for key, value in numbers.items() if name in (key, key.partition("/")[0])]
        known |= dict.fromkeys([*numbers, *(key.partition("/")[0] for key in numbers)])
        if own:
            found.append((line, statistics.fmean(own)))
    if known and not found and name.partition("/")[0] not in ("return", "evaluation"):
        raise BadRun(f"There is no metric {name!r}; there are {', '.join(sorted(known))}.{hint(name, known)}")
    return found


# ---- running ---------------------------------------------------------------------------------------------------------


def begin_sweep(config: str | Path, settings: SweepSettings, folder: Path | None = None) -> tuple[Path, bool]:
    """Check everything, and write the folder of a new sweep. Returns it, and whether it holds the same sweep already.

    Raises BadSettings for a wrong setting or space, FileExistsError if the folder holds something else.
    """
    content = settings_in(config, BadSettings)
    spaces, fixed = read_words(settings.words)
    base = replaced({key: value for key, value in content.items() if key != "folder"}, fixed)
    env, beside = base.get("env"), Path(config).parent
    if isinstance(env, str):
        base["env"] = absolute(env, beside=beside)
    elif isinstance(env, Mapping) and isinstance(env.get("env_name"), str):
        base["env"] = {**env, "env_name": absolute(env["env_name"], beside=beside)}
    for key in ("folder", "seed") if settings.seeds > 1 else ("folder",):
        if any(one.key == key for one in spaces) or (key == "folder" and key in base):
            raise BadSettings(f"`{key}` is what the sweep itself gives each run. Leave it out.")
    _spaces(spaces, base)
    if folder is None:
        folder = Path("runs") / f"{Path(config).stem}_sweep_{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    if is_sweep(folder):
        stored = read_sweep(folder)
        if (stored.words, stored.metric, stored.minimize, stored.seeds) != (
            (settings.words, settings.metric, settings.minimize, settings.seeds)
        ) or settings_in(folder / BASE, BadRun) != base:
            raise FileExistsError(
                f"{folder} holds another sweep. Choose another folder, or go on with it: --resume {folder}"
            )
        return folder, True
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} holds something already. Choose another folder.")
    folder.mkdir(parents=True, exist_ok=True)
    _write_yaml(folder / BASE, base)
    settings.write(folder)
    return folder, False


def _write_yaml(path: Path, content: Mapping[str, Any]) -> None:
    import yaml

    write_text(path, yaml.safe_dump(dict(content), sort_keys=False))


def check_trust(folder: Path, trust: Sequence[str]) -> None:
    """Raise `UntrustedName` unless the environment in the sweep's folder may be made: see `parallel_envs.trust`."""
    base = settings_in(folder / BASE, BadRun)
    env = base.get("env")
    block = env if isinstance(env, Mapping) else {**base, "env_name": env}
    name = str(block.get("env_name"))
    check_env(KNOWN.get(name, name), block.get("env_kwargs") or {}, folder / BASE, trust)


@dataclass
class RunningTrial:
    """A trial with the process of its current run."""

    trial: Any
    settings: Mapping[str, Any]
    slot: int
    folders: list[Path]
    begun: float = field(default_factory=time.monotonic)
    process: subprocess.Popen[bytes] | None = None
    number_of_seed: int = 0
    values: list[float] = field(default_factory=list)  # of the seeds that are done
    reported: int = 0  # parts of the run that were compared

    @property
    def folder(self) -> Path:
        return self.folders[self.number_of_seed]


class Sweep:
    """Runs trials until there are enough of them. `run` is the loop."""

    def __init__(self, folder: Path, jobs: int, say: Say, trials: int | None = None) -> None:
        self.folder, self.say = folder, say
        self.settings = read_sweep(folder)
        if trials is not None:
            self.settings = replace(self.settings, trials=trials)  # written as soon as the folder is locked
        self.base = settings_in(folder / BASE, BadRun)
        self.spaces = _spaces(read_words(self.settings.words)[0], self.base)
        self.study = _study(folder, self.settings)
        self.running: list[RunningTrial] = []
        cores = cores_here() or tuple(range(num_cores()))
        self.shares = [cores[slot::jobs] or [cores[slot % len(cores)]] for slot in range(jobs)]

    def run(self) -> SweepResult:
        """Run trials, and return all results. After Ctrl-C, runs have a checkpoint, and KeyboardInterrupt is raised."""
        import optuna

        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(locked(self.folder))
            except BlockingIOError:
                raise BadRun(f"Another process is searching in {self.folder}. End it first.") from None
            self.settings.write(self.folder)
            unfinished = self.study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.RUNNING])
            waiting = [optuna.trial.Trial(self.study, one._trial_id) for one in unfinished]
            try:
                while True:
                    total = len(self.study.get_trials(deepcopy=False))
                    while len(self.running) < len(self.shares) and (waiting or total < self.settings.trials):
                        if waiting:
                            self._begin(waiting.pop(0))
                        else:
                            self._begin(self.study.ask({one.key: one.distribution() for one in self.spaces}))
                            total += 1
                    if not self.running:
                        break
                    time.sleep(_POLL_SECONDS)
                    for one in list(self.running):
                        self._look_at(one)
            finally:
                self._stop([one.process for one in self.running if one.process is not None])
        result = _result(self.folder, self.settings, self.spaces, self.study)
        if result.ranked:
            _write_yaml(self.folder / BEST, replaced(self.base, result.ranked[0].settings))
        return result

    def _begin(self, trial: Any) -> None:
        import optuna

        chosen = {one.key: one.value(trial.params[one.key]) for one in self.spaces if one.key in trial.params}
        if len(chosen) < len(self.spaces):
            trial.set_user_attr("reason", "The sweep was killed before the trial had its settings.")
            self.study.tell(trial, state=optuna.trial.TrialState.FAIL)
            return
        slot = min(set(range(len(self.shares))) - {one.slot for one in self.running})
        one = RunningTrial(trial, chosen, slot, _folders(self.folder, trial.number, self.settings.seeds))
        frozen = self.study.get_trials(deepcopy=False)[trial.number]
        one.reported = max(frozen.intermediate_values, default=0)
        self.running.append(one)
        self.say(f"trial {trial.number} begins: {_told(chosen)}")
        self._start_run(one)

    def _start_run(self, one: RunningTrial) -> None:
        """Start the process of the trial's current seed: a new run, or one that goes on from its checkpoint."""
        cores, folder = self.shares[one.slot], one.folder
        content = replaced(self.base, one.settings)
        more: dict[str, Any] = {} if meta.is_meta(content) else {"tensorboard": content.get("tensorboard", False)}
        if self.settings.seeds > 1:
            more["seed"] = int(content.get("seed", 0)) + one.number_of_seed
        is_plain = not meta.is_meta(content) and "parallel" not in content
        if is_plain and content.get("num_workers") is None and content.get("backend", "process") != "serial":
            more["num_workers"] = max(min(len(cores), int(content.get("num_envs", 8))), 1)
        words = [
            str(self.folder / BASE),
            *(f"{key}={json.dumps(value)}" for key, value in {**one.settings, **more}.items()),
        ]
        with self._free(folder):
            is_new = newest_checkpoint(folder) is None
            if is_new:  # a run that ended before its first checkpoint begins anew
                shutil.rmtree(folder, ignore_errors=True)
        if is_new:
            words.append(f"folder={json.dumps(str(folder))}")
        elif not meta.is_meta(content):
            words += ["--resume", str(folder)]
        else:
            words = ["--resume", str(folder), *(f"--trust={name}" for name in _modules(content))]
        command = [sys.executable, "-c", _CHILD, str(os.getpid()), ",".join(map(str, cores)), "train", *words]
        with (self.folder / f"{folder.name}.log").open("ab") as log:
            one.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    @contextlib.contextmanager
    def _free(self, folder: Path) -> Iterator[None]:
        """Lock the folder of a run, if there is one. A run that a killed sweep left may be saving: wait for its end."""
        deadline = None
        with contextlib.ExitStack() as stack:
            while folder.is_dir():
                try:
                    stack.enter_context(locked(folder))
                    break
                except BlockingIOError:
                    if deadline is None:
                        deadline = time.monotonic() + _ORPHAN_SECONDS
                        self.say(f"Waiting for the end of the run in {folder}, which another process is using.")
                    elif time.monotonic() > deadline:
                        raise BadRun(f"Another process is using {folder}. End it, then go on with the sweep.") from None
                time.sleep(_POLL_SECONDS)
            yield

    def _look_at(self, one: RunningTrial) -> None:
        """Compare a running trial with the others, or record what has come of it."""
        assert one.process is not None
        status = one.process.poll()
        points = metric_of(read_metrics(one.folder), self.settings.metric)
        if status is None:
            self._compare(one, points)
        elif status != 0:
            self._end(one, "FAIL", reason=self._reason(one, status))
        elif not points or not math.isfinite(points[-1][1]):
            self._end(one, "FAIL", reason=f"The run has no finite value of {self.settings.metric!r}.")
        else:
            one.values.append(points[-1][1])
            if len(one.values) < len(one.folders):
                one.number_of_seed += 1
                self._start_run(one)
            else:
                self._end(one, "COMPLETE", value=statistics.fmean(one.values))

    def _compare(self, one: RunningTrial, points: Sequence[tuple[Mapping[str, Any], float]]) -> None:
        """Give Optuna the metric at the end of each part of the first seed's run. End the trial if it is behind."""
        for line, value in points if one.number_of_seed == 0 else ():
            part = int(_PARTS * self._share(line, one.settings))
            if part <= one.reported or not math.isfinite(value):
                continue
            one.reported = part
            one.trial.report(value, part)
            if part < _PARTS and one.trial.should_prune():
                assert one.process is not None
                self._stop([one.process])
                self._end(one, "PRUNED", reason=f"behind others after {part * 100 // _PARTS} % of the steps")
                return

    def _share(self, line: Mapping[str, Any], settings: Mapping[str, Any]) -> float:
        """Return the share of a run that was done at a line of its metrics."""
        content = replaced(self.base, settings)
        train = content.get("train") or {}
        total = train.get("n_env_steps_total") if meta.is_meta(content) else content["total_steps"]
        if total is not None:
            return float(line["steps"] / float(total))
        return float(line.get("update", 0) / float(train.get("num_iters") or 100))

    def _end(self, one: RunningTrial, state: str, value: float | None = None, reason: str = "") -> None:
        import optuna

        self.running.remove(one)
        seconds = round(time.monotonic() - one.begun, 1)
        one.trial.set_user_attr("seconds", seconds)
        if reason:
            one.trial.set_user_attr("reason", reason)
        self.study.tell(one.trial, value, state=optuna.trial.TrialState[state])
        told = {"COMPLETE": f"{self.settings.metric} {_short(value)}", "PRUNED": f"pruned ({reason})"}
        done = len([1 for trial in self.study.get_trials(deepcopy=False) if trial.state.is_finished()])
        count = f"{done} of {max(self.settings.trials, done)}"
        what = told.get(state, f"failed: {reason}")
        self.say(f"trial {one.trial.number} ({count}): {what}, {seconds:.0f} s, {_told(one.settings)}")

    def _reason(self, one: RunningTrial, status: int) -> str:
        """Return why a run has ended: the last text in its log that is no advice on how to go on."""
        log = self.folder / f"{one.folder.name}.log"
        text = _NEXT.sub("", log.read_text(encoding="utf-8", errors="replace"))
        lines = [line.strip() for line in text.splitlines() if line.strip() and not _ADVICE.search(line)]
        with contextlib.suppress(BadRun, OSError):
            if kind := outcome_in(one.folder).reason:
                lines = [line for line in lines if f"{kind}:" in line] or lines
        return f"{' '.join(lines[-1:])[:_MOST_REASON]} (exit code {status}, {log.name})"

    def _stop(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        """End runs as Ctrl-C does, so that each saves a checkpoint, and by force if that takes too long."""
        for process in processes:
            process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + _END_SECONDS
        try:
            for process in processes:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(deadline - time.monotonic(), 0.1))
        finally:  # also after a second Ctrl-C
            for process in processes:
                process.kill()
                process.wait()


def _modules(content: Mapping[str, Any]) -> list[str]:
    """Return the module of a meta-RL run's environment, which the user's settings name."""
    module, colon, _ = str(content["env"]["env_name"]).rpartition(":")
    return [module] if colon else []


def _told(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_short(value)}" for key, value in settings.items())


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return json.dumps(value) if isinstance(value, list | dict) else str(value)
