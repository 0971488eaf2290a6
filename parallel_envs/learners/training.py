"""A training run from its settings to its folder: what `parallel-envs train` does.

    settings ──▶ environments, learners ──▶ steps and updates ──▶ the run's folder: metrics, checkpoints
                                                              └─▶ the display

A checkpoint cannot hold environments. So at each one all episodes begin anew, seeded by how far the run is; a run that
is resumed there goes on, to the bit, as the one that was never ended (with `update_mode: auto`, once that has chosen:
see `choice.py`). It is written where nothing waits to be learnt.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler

from parallel_envs.errors import EnvError, StepTimeout, WorkerDied
from parallel_envs.learners.algorithm_settings import completed
from parallel_envs.learners.averages import Averages
from parallel_envs.learners.brain import NothingLearnt
from parallel_envs.learners.checkpoints import BadCheckpoint, load_checkpoint
from parallel_envs.learners.display import Display, Progress, display
from parallel_envs.learners.independent import IndependentLearners
from parallel_envs.learners.learner import ALGORITHMS, configs_by_name
from parallel_envs.learners.loops import Loop, open_loop
from parallel_envs.learners.loops.loop import Metrics
from parallel_envs.learners.meta.agent import AGENT
from parallel_envs.learners.meta.config import is_meta
from parallel_envs.learners.meta.learner import DEFAULT_ITERS, Learner
from parallel_envs.learners.outcomes import Ended, RunOutcome, commands_after, commands_after_meta, outcome_of
from parallel_envs.learners.outfit import learners_of, loop_options
from parallel_envs.learners.repetitions import Counted, Repetitions
from parallel_envs.learners.resuming import settings_to_go_on, why_done
from parallel_envs.learners.run_folder import new_folder_in_runs, newest_whole
from parallel_envs.learners.runs import BadRun, CheckpointNotSaved, Run, settings_of
from parallel_envs.learners.settings import BadSettings, TrainSettings, load_settings, read_overrides
from parallel_envs.learners.updates import MODES, AutoUpdates
from parallel_envs.rollouts.interrupts import Interrupts
from parallel_envs.rollouts.trajectories import TrajectoryStore
from parallel_envs.vector.checks import env_names
from parallel_envs.yaml_files import settings_in

Agent = Hashable

_log = logging.getLogger(__name__)


def begin(config: str | Path | None, overrides: Sequence[str] = ()) -> Path:
    """Train as a settings file says, or where it is None as `overrides` alone do, in a new folder, which is returned.

    Settings whose `env` is a block (`env_type: meta`) are those of the meta-RL `Learner`, which is trained then.
    """
    if config is not None and is_meta(settings_in(config, BadSettings)):
        with _shown() as console, _ShownLearner(config, **read_overrides(overrides)) as learner:
            return learner.train_shown(console)
    settings = load_settings(config, overrides)
    with _shown() as console, learners_of(settings) as learners:
        algorithms = [ALGORITHMS[type(one.config)].name for one in learners.agents.values()]
        folder = settings.folder or new_folder_in_runs(settings.env, algorithms, settings.seed)
        with Run.create(folder, _described(settings), seed=settings.seed, **_run_options(settings)) as run:
            train(learners, settings, run, console)
    return folder


def go_on(
    folder: str | Path,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    trust: Sequence[str] = (),
) -> Path:
    """Train on from the newest checkpoint in a run's folder. Returns the folder.

    Other settings (a file, overrides) may be given as far as what is learnt does not depend on them. They are
    remembered in the folder. A run that has made `total_steps` already is told to be done, and left as it is.

    Args:
        folder: The run's folder.
        config: A settings file to use in place of the run's own.
        overrides: Settings to replace, as `key=value`.
        trust: Modules whose environments the run's own settings.yaml may name.

    Raises:
        UntrustedName: The run's own settings.yaml names an environment of another module.
        NothingLearnt: As `train` does, also for a run that was done before.
    """
    if is_meta(settings_in(settings_of(folder), BadSettings)):
        if config is not None:
            raise BadSettings(f"{config} was given beside a meta-RL run. Change single settings of it, as key=value.")
        resumed = _ShownLearner.resume(folder, trust=trust, **read_overrides(overrides))
        with _shown() as console, resumed as learner:
            return learner.train_shown(console)
    settings, stored = settings_to_go_on(folder, config, overrides, trust)
    with _shown() as console:
        if told := why_done(folder, settings.total_steps):
            console.print(told, markup=False, highlight=False, soft_wrap=True)
            agents = load_checkpoint(newest_whole(Path(folder))).agents
            _check_learnt({agent: state["counters"] for agent, state in agents.items()})
            return Path(folder)
        with learners_of(settings) as learners:
            run, checkpoint = Run.resume(folder, **_run_options(settings))
            with run:
                _load(learners, run, checkpoint)
                _run_as_chosen(learners, run)
                run.remember({**_described(settings), "folder": stored.described()["folder"]})
                train(learners, settings, run, console)
    return Path(folder)


def _load(learners: IndependentLearners, run: Run, checkpoint: Path) -> None:
    try:
        learners.load(checkpoint)
    except KeyError as error:  # other agents than there are in the environments by now
        raise BadCheckpoint(str(error.args[0])) from error
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{error} {run.way_back(checkpoint)}") from error


def _run_as_chosen(learners: IndependentLearners, run: Run) -> None:
    """Updates go on in the way that "auto" had chosen by the checkpoint: another is the same up to rounding only."""
    if run.chosen is None or learners.update_mode != "auto":
        return
    if run.chosen not in MODES.keys() - {"auto"}:
        raise BadRun(f'{run.folder} says that "auto" has chosen {run.chosen!r}, which is no update mode.')
    limits = learners.workers, learners.update_timeout
    learners.run_by(make=lambda brains: AutoUpdates(brains, *limits, choice=run.chosen))


def _chosen(learners: IndependentLearners) -> str | None:
    return learners.mode.choice if isinstance(learners.mode, AutoUpdates) else None


def train(learners: IndependentLearners, settings: TrainSettings, run: Run, console: Console | None = None) -> None:
    """Go on until `total_steps` have been made and learnt from, with metrics and checkpoints in the run's folder.

    However the run ends, the console says what came of it and which commands go on from there (`outcomes.py`), and the
    folder keeps the figures. Whatever ends it early has a note that says which checkpoint is kept, and how to go on.

    Raises:
        EnvError, WorkerDied, StepTimeout: With `on_failure: raise`, or once an environment fails more often than
            `max_restarts` allows.
        NothingLearnt: At the end, when everything has been saved: every update of some agent was undone. Where only
            some updates were undone a warning says how many.
        CheckpointNotSaved: See `Run.save_if_possible`.
    """
    every, console = settings.checkpoint_every or settings.total_steps, console or Console(stderr=True)
    _say(console, f"Run in {run.folder}; if it is ended: {run.resume_command()}")
    tell = partial(_tell_outcome, learners, settings, run, console, learners.steps, time.monotonic())
    with (
        _told_if_ended(learners, settings, run, console, tell),
        display(settings.total_steps, console=console) as shown,
        open_loop(learners, loop_options(settings)) as loop,
    ):
        shown.show(_progress(learners, loop))
        while learners.steps < settings.total_steps:
            learners.begin()
            mark = min(_next_mark(learners.steps, every), settings.total_steps)
            write = partial(_log_line, learners, loop, run)
            averages = Averages(settings.log_every or every, write, begins=learners.steps)
            keep = partial(_keep, learners, run, averages)
            with _interruptible(loop, partial(keep, is_last=True)) as heed:
                while not _may_save(learners, mark, every):
                    _take_in(loop.advance(), learners, loop, averages, shown)
                    heed()
                _take_in(loop.settle(), learners, loop, averages, shown)
                keep(is_last=learners.steps >= settings.total_steps)
        shown.show(_progress(learners, loop), last=True)
    _say(console, f"Updates were run by {learners.mode.why}. {loop.report()}{_told_of_restarts(learners)}")
    tell("budget")
    _check_learnt({agent: one.counters for agent, one in learners.agents.items()})


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _tell_outcome(
    learners: IndependentLearners,
    settings: TrainSettings,
    run: Run,
    console: Console,
    began: int,
    since: float,
    ended: Ended,
    reason: str = "",
) -> None:
    """Say what came of the run and what to do next, and have the run's folder keep the figures.

    `began`, `since`: the steps and the clock when it was begun or resumed.
    """
    seconds = time.monotonic() - since
    outcome = outcome_of(learners, run.folder, settings, ended=ended, reason=reason, began=began, seconds=seconds)
    outcome.write()
    _say(console, outcome.told())
    _tell_next(console, commands_after(run, settings, learners.steps))


def _tell_next(console: Console, commands: Sequence[str]) -> None:
    if commands:
        _say(console, "\n".join(["Next:", *(f"  {command}" for command in commands)]))


def _told_of_restarts(learners: IndependentLearners) -> str:
    """Return how often environments were restarted, and the last reason."""
    last, number = learners.envs.last_restart, learners.envs.num_restarts
    if last is None:
        return ""
    by_worker = ", ".join(f"worker {one['worker']}: {one['restarts']}" for one in learners.envs.stats())
    return f"\nRestarts of environments: {number} ({by_worker}). The last was of {env_names(last[0])}: {last[1]}"


def _check_learnt(counters: Mapping[Agent, Mapping[str, Any]]) -> None:
    """Warn of updates that were undone since the run began, and raise NothingLearnt for agents that have no other."""
    undone = {agent: own["skipped"] for agent, own in counters.items() if own["skipped"]}
    if nothing := {agent: number for agent, number in undone.items() if not counters[agent]["updates"]}:
        raise NothingLearnt.of_counts(nothing)
    if undone:
        told = [f"{agent} {number:,} of {number + counters[agent]['updates']:,}" for agent, number in undone.items()]
        _log.warning("Updates that were not finite, and undone: %s.", ", ".join(told))


def _keep(learners: IndependentLearners, run: Run, averages: Averages, *, is_last: bool) -> None:
    """Write a checkpoint, and the metrics up to it."""
    averages.flush(learners.steps)
    run.save_if_possible(learners.steps, learners.save, _chosen(learners), is_last=is_last)


class _Heeded(KeyboardInterrupt):
    """Ctrl-C, at a moment at which nothing was half done."""


@contextlib.contextmanager
def _told_if_ended(
    learners: IndependentLearners,
    settings: TrainSettings,
    run: Run,
    console: Console,
    tell: Callable[..., None],
) -> Iterator[None]:
    """Say how to go on after a Ctrl-C or an error. Entered before the display, it says so below the last frame."""
    try:
        yield
    except CheckpointNotSaved as error:  # its text says how to go on
        tell("error", type(error).__name__)
        raise
    except Exception as error:
        tell("error", type(error).__name__)
        error.add_note(f"{run.kept()} {run.way_on()}")
        if settings.on_failure == "raise" and isinstance(error, EnvError | WorkerDied | StepTimeout):
            error.add_note("With on_failure=restart a run goes on after such a failure.")
        raise
    except _Heeded:
        _say(console, f"Ended by Ctrl-C after {learners.steps:,} steps, which are kept: {run.resume_command()}")
        tell("ctrl-c")
        raise


@contextlib.contextmanager
def _interruptible(loop: Loop, keep: Callable[[], None]) -> Iterator[Callable[[], None]]:
    """Ctrl-C waits for the end of a step, and leaves a checkpoint. A second one does not wait, and leaves none.

    What was lived and not learnt is lost: a run that is resumed there goes on well, but not as the one never ended.
    Gives what is to be called where nothing is half done.
    """
    with Interrupts() as interrupts:

        @contextlib.contextmanager
        def harmless() -> Iterator[None]:
            try:
                with interrupts.let_through():
                    yield
            except KeyboardInterrupt as strike:
                raise _Heeded from strike

        def heed() -> None:
            with harmless():
                pass

        loop.while_waiting = harmless
        try:
            yield heed
        except _Heeded:
            loop.stop()
            keep()
            raise


def _next_mark(steps: int, every: int) -> int:
    return (steps // every + 1) * every


def _may_save(learners: IndependentLearners, mark: int, every: int) -> bool:
    """Behind the mark, and nothing is lost; agents who never all have learnt at once do not put it off for ever."""
    memories = [one.memory for one in learners.agents.values() if isinstance(one.memory, TrajectoryStore)]
    longest = max((memory.horizon * memory.num_rows for memory in memories), default=0)
    waiting = any(memory.num_steps > 0 for memory in memories)
    return learners.steps >= mark and (learners.steps >= mark + max(every, longest) or not waiting)


def _take_in(metrics: Metrics, learners: IndependentLearners, loop: Loop, averages: Averages, shown: Display) -> None:
    if metrics:
        averages.add(learners.steps, metrics)
        shown.show(_progress(learners, loop))


def _log_line(
    learners: IndependentLearners, loop: Loop, run: Run, steps: int, means: Mapping[Agent, dict[str, float]]
) -> None:
    report = loop.report()
    counts = {"update": learners.updates, "steps": steps, "seconds": dict(learners.seconds)}
    counts["loop"] = report.described()
    counts["restarts"] = learners.envs.num_restarts  # since the run was begun, or resumed last
    skipped = {agent: {"skipped": float(one.counters["skipped"])} for agent, one in learners.agents.items()}
    lags = {agent: {"lag": lag.mean} for agent, lag in report.lags.items()}
    returns = {agent: {"return": value} for agent, value in learners.returns().items()}
    more = {agent: skipped[agent] | lags.get(agent, {}) | returns.get(agent, {}) for agent in means}
    run.log(counts, {agent: {**own, **more[agent]} for agent, own in means.items()})


class _ShownLearner(Learner):
    """The meta-RL learner, with the display."""

    _display: Display | None = None
    _outcome: RunOutcome | None = None

    def train_shown(self, console: Console) -> Path:
        """Train until the settings' end, and say how well the agent adapts. Returns the run's folder.

        However it ends, the console says what came of it and which commands go on from there.
        """
        run = self._start_training()
        _say(console, f"Run in {run.folder}; if it is ended: {run.resume_command()}")
        try:
            with display(self.n_env_steps_total, console=console) as self._display:
                folder = self.train()
            curve = " ".join(f"{one:.4g}" for one in self.evaluate().curve)
            _say(console, f"Mean return by inner episode on {len(self.eval_tasks)} evaluation tasks: {curve}")
        finally:
            if self._outcome is not None:
                _say(console, self._outcome.told())
                _tell_next(console, commands_after_meta(run, self._until()))
        return folder

    def _end_with(self, outcome: RunOutcome) -> None:
        super()._end_with(outcome)
        self._outcome = outcome

    def _until(self) -> str:
        """Return the setting by which the run ends when it goes on; it gets as much again if it is finished."""
        end, train = 2 if self.finished else 1, self.settings.train
        if train.n_env_steps_total is not None:
            return f"train.n_env_steps_total={end * train.n_env_steps_total}"
        return f"train.num_iters={end * (train.num_iters or DEFAULT_ITERS)}"

    def log_train_stats(self, run: Any, stats: Any = None) -> None:
        super().log_train_stats(run, stats)
        if self._display is not None and stats is not None:
            now = Progress(self.num_env_steps, self.num_iters_done, {AGENT: stats["return"]}, dict(self.seconds))
            self._display.show(now, last=self.finished)


def _progress(learners: IndependentLearners, loop: Loop) -> Progress:
    report = loop.report()
    moves = report.lags and report.mode != "sync"  # where one follows the other, one word at the end is enough
    return Progress(
        learners.steps,
        learners.updates,
        learners.returns(),
        dict(learners.seconds),
        loop=str(report) if moves else "",
    )


# ---- settings --------------------------------------------------------------------------------------------------------


def _described(settings: TrainSettings) -> dict[str, Any]:
    """Everything that the run's folder is to tell, the defaults of its algorithms as well."""
    return completed(settings, configs_by_name()).described()


def _run_options(settings: TrainSettings) -> dict[str, Any]:
    return {"keep_checkpoints": settings.keep_checkpoints, "tensorboard": settings.tensorboard}


@contextlib.contextmanager
def _shown() -> Iterator[Console]:
    """A console on stderr, on which the package's warnings stand above the display."""
    console, logger = Console(stderr=True), logging.getLogger("parallel_envs")
    handler = RichHandler(logging.WARNING, console, show_time=False, show_path=False)
    handler.addFilter(Repetitions())
    handler.setFormatter(Counted())
    logger.addHandler(handler)
    try:
        yield console
    finally:
        logger.removeHandler(handler)
