"""A training run from its settings to its folder: `parallel-envs train`.

    settings ──▶ environments, learners ──▶ steps and updates ──▶ the run's folder: metrics, checkpoints
                                                              └─▶ the display

A checkpoint cannot hold environments. All episodes therefore begin anew at each checkpoint, seeded by the number of
steps. A run that is resumed there continues, to the bit, as a run that never ended (with `update_mode: auto`, once it
has chosen: see `AutoMode` in `run_folder.py`). A checkpoint is written when no experience waits for an update.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler

from parallel_envs.engine.interrupts import Interrupts
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied
from parallel_envs.learners.agent import ALGORITHMS, configs_by_name
from parallel_envs.learners.algorithm import NothingLearnt
from parallel_envs.learners.checkpoint import BadCheckpoint, folder_names, load_checkpoint
from parallel_envs.learners.config import (
    WHY_SIMULTANEOUS,
    BadSettings,
    TrainSettings,
    algorithm_configs,
    completed,
    load_settings,
    read_overrides,
)
from parallel_envs.learners.independent import IndependentLearners
from parallel_envs.learners.loops import Loop, LoopOptions, open_loop
from parallel_envs.learners.loops.loop import Metrics
from parallel_envs.learners.loops.options import Shares, check_agents, fewest_workers, share_workers
from parallel_envs.learners.meta.agent import AGENT
from parallel_envs.learners.meta.config import is_meta
from parallel_envs.learners.meta.learner import DEFAULT_ITERS, Learner
from parallel_envs.learners.outcomes import Ended, RunOutcome, commands_after, commands_after_meta, outcome_of
from parallel_envs.learners.progress import Counted, Display, Progress, Repetitions, display
from parallel_envs.learners.run_folder import (
    BadRun,
    CheckpointNotSaved,
    MetricMeans,
    Run,
    new_folder_in_runs,
    newest_checkpoint,
    newest_whole,
    settings_of,
    way_back,
)
from parallel_envs.learners.updates import MODES, AutoUpdates
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import env_factory
from parallel_envs.rollouts.trajectories import TrajectoryStore
from parallel_envs.trust import TUPLE_AGENTS, check_env
from parallel_envs.vector.recovery import env_names
from parallel_envs.yaml_files import settings_in

Agent = Hashable

_log = logging.getLogger(__name__)


# ---- new runs ---------------------------------------------------------------------------------------------------


def begin(config: str | Path | None, overrides: Sequence[str] = ()) -> Path:
    """Train in a new folder, which is returned. `config`: a settings file; None if `overrides` contain everything.

    Settings with a block `env` (`env_type: meta`) are those of the meta-RL `Learner`, which is trained then.
    """
    if config is not None and is_meta(settings_in(config, BadSettings)):
        with _console() as console, _ShownLearner(config, **read_overrides(overrides)) as learner:
            return learner.train_shown(console)
    settings = load_settings(config, overrides)
    with _console() as console, build_learners(settings) as learners:
        algorithms = [ALGORITHMS[type(one.config)].name for one in learners.agents.values()]
        folder = settings.folder or new_folder_in_runs(settings.env, algorithms, settings.seed)
        described = completed(settings, configs_by_name()).described()
        with Run.create(folder, described, seed=settings.seed, **_run_options(settings)) as run:
            train(learners, settings, run, console)
    return folder


def _run_options(settings: TrainSettings) -> dict[str, Any]:
    return {"keep_checkpoints": settings.keep_checkpoints, "tensorboard": settings.tensorboard}


@contextlib.contextmanager
def build_learners(settings: TrainSettings) -> Iterator[IndependentLearners]:
    """Make environments, and learners in them. BadSettings if that fails, as settings are wrong then.

    Spaces that an algorithm does not support, and wrong arguments, are mistakes in settings too.
    """
    with contextlib.ExitStack() as stack:
        try:
            options, shares = loop_options(settings), worker_shares(settings)
            envs = stack.enter_context(_build_envs(settings, shares))
            folder_names(envs.possible_agents)  # raises before any experience can be lost
            learners = IndependentLearners(
                envs,
                algorithm_configs(settings, envs.possible_agents, configs_by_name()),
                update_mode=settings.update_mode,
                seed=settings.seed,
                strategy=settings.strategy,
                workers=settings.num_workers if shares is None else shares.learning or None,
                update_timeout=settings.update_timeout,
                on_divergence=settings.on_divergence,
            )
            stack.enter_context(learners)
            check_agents(options, learners.agents, learners.update_mode)
        except (EnvError, ModuleNotFoundError, TypeError, ValueError) as error:
            raise BadSettings(str(error)) from error
        yield learners


def loop_options(settings: TrainSettings) -> LoopOptions:
    """Return how collecting and learning go together. Raises ValueError for a wrong combination."""
    names = [field.name for field in dataclasses.fields(LoopOptions)]
    return LoopOptions(**{name: getattr(settings, name) for name in names})


def worker_shares(settings: TrainSettings) -> Shares | None:
    """Return how the budget of workers is shared between environments and updates; None without a budget."""
    if settings.worker_budget is None:
        return None
    num_envs = 0 if settings.backend == "serial" else settings.num_envs
    asked = min(settings.num_workers, num_envs) if settings.num_workers else None
    least = fewest_workers(settings.mode, settings.learn_in, settings.update_mode)
    try:
        return share_workers(settings.worker_budget, num_envs, least, env_workers=asked)
    except ValueError as error:
        raise ValueError(f"`worker_budget` (in the block `parallel`: `num_workers`): {error}") from error


def _build_envs(settings: TrainSettings, shares: Shares | None) -> MultiAgentEnvManager:
    factory = env_factory(settings.env, settings.env_kwargs, settings.turns)
    asked = settings.num_workers if shares is None else shares.envs
    try:
        return MultiAgentEnvManager(
            [factory] * settings.num_envs,
            num_workers=min(asked or settings.num_envs, settings.num_envs),
            backend=settings.backend,
            turns=settings.turns,
            on_failure=settings.on_failure,
            step_timeout=settings.step_timeout,
            reset_timeout=settings.reset_timeout,
            start_timeout=settings.start_timeout,
            max_restarts=settings.max_restarts,
            restart_window=settings.restart_window,
        )
    except EnvError as error:
        text, wanted, _ = str(error).partition("Give turns='sequential'")
        if not wanted:
            raise
        raise BadSettings(f"{text}Choose another: {WHY_SIMULTANEOUS}.") from error


# ---- resumed runs -----------------------------------------------------------------------------------------------

_MAY_CHANGE = frozenset((
    "total_steps", "log_every", "keep_checkpoints", "tensorboard", "num_workers", "backend", "folder", "learn_in",
    "worker_budget", "schedule", "update_timeout", "on_divergence", "on_failure", "step_timeout", "reset_timeout",
    "start_timeout", "max_restarts", "restart_window",
))  # fmt: skip
"""Settings that may change when a run is resumed, as the training does not depend on them. (A checkpoint is written
where a run ends, and episodes begin anew there as at any other checkpoint.)"""


def go_on(
    folder: str | Path,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    trust: Sequence[str] = (),
) -> Path:
    """Continue training from the newest checkpoint in a run's folder. Returns the folder.

    Settings that do not influence the training may be changed by a file or overrides; the folder then contains the new
    values. A run that has made `total_steps` already is reported as done, and left as it is.

    Args:
        folder: The run's folder.
        config: A settings file to use in place of the run's own.
        overrides: Settings to replace, as `key=value`.
        trust: Modules with environments that the run's own settings.yaml may name.

    Raises:
        UntrustedName: The run's own settings.yaml names an environment of another module.
        NothingLearnt: As `train` does, also for a run that was done before.
    """
    if is_meta(settings_in(settings_of(folder), BadSettings)):
        if config is not None:
            raise BadSettings(f"{config} was given beside a meta-RL run. Change single settings of it, as key=value.")
        resumed = _ShownLearner.resume(folder, trust=trust, **read_overrides(overrides))
        with _console() as console, resumed as learner:
            return learner.train_shown(console)
    settings, stored = settings_to_go_on(folder, config, overrides, trust)
    with _console() as console:
        newest = newest_checkpoint(folder)
        if newest is not None and (steps := int(newest.name)) >= settings.total_steps:
            _say(
                console,
                f"The run in {folder} has made {steps:,} steps, and total_steps is {settings.total_steps:,}: nothing "
                f"is left to do. To have it go on, give it more, as total_steps={2 * steps}.",
            )
            agents = load_checkpoint(newest_whole(Path(folder))).agents
            _check_learnt({agent: state["counters"] for agent, state in agents.items()})
            return Path(folder)
        with build_learners(settings) as learners:
            run, checkpoint = Run.resume(folder, **_run_options(settings))
            with run:
                _load(learners, run, checkpoint)
                described = completed(settings, configs_by_name()).described()
                run.remember({**described, "folder": stored.described()["folder"]})
                train(learners, settings, run, console)
    return Path(folder)


def settings_to_go_on(
    folder: str | Path, config: str | Path | None, overrides: Sequence[str], trust: Sequence[str] = ()
) -> tuple[TrainSettings, TrainSettings]:
    """Return the new and the old settings of a resumed run. BadSettings if the new ones mean another run.

    UntrustedName if only the run's own settings.yaml names the environment, which a file may not (see `trust.py`).
    An environment that `config` or an override names was named by the user.
    """
    stored = load_settings(settings_of(folder))
    computed = {name: getattr(stored, name) for name in ("checkpoint_every", "log_every")}  # not from new total_steps
    settings = load_settings(config or settings_of(folder), overrides, computed)
    named = settings.folder
    if named not in (None, stored.folder) and Path(named).resolve() != Path(folder).resolve():
        raise BadSettings(f"`folder: {named}` is not {folder}, where the run is. Move it there, or leave `folder` out.")
    own, other = (completed(one, configs_by_name()).described() for one in (settings, stored))
    changed = sorted(name for name in own if own[name] != other[name] and name not in _MAY_CHANGE)
    if changed:
        raise BadSettings(
            f"The run in {folder} has other settings: {', '.join(f'`{name}`' for name in changed)}. Begin another "
            f"run with them; a run that goes on may change {', '.join(f'`{name}`' for name in sorted(_MAY_CHANGE))}."
        )
    by_user = "env_kwargs" if settings.env in TUPLE_AGENTS else "env="  # these envs are named by their arguments
    if config is None and not any(override.startswith(by_user) for override in overrides):
        check_env(settings.env, settings.env_kwargs, settings_of(folder), trust)
    return settings, stored


def _load(learners: IndependentLearners, run: Run, checkpoint: Path) -> None:
    """Load the checkpoint, and run updates in the mode that "auto" had chosen by then.

    Another mode would give the same numbers up to rounding only.
    """
    try:
        learners.load(checkpoint)
    except KeyError as error:  # the environments have other agents by now
        raise BadCheckpoint(str(error.args[0])) from error
    except BadCheckpoint as error:
        raise BadCheckpoint(f"{error} {way_back(run.folder, checkpoint)}") from error
    if run.chosen is None or learners.update_mode != "auto":
        return
    if run.chosen not in MODES.keys() - {"auto"}:
        raise BadRun(f'{run.folder} says that "auto" has chosen {run.chosen!r}, which is not an update mode.')
    limits = learners.workers, learners.update_timeout
    learners.run_by(make=lambda parameters: AutoUpdates(parameters, *limits, choice=run.chosen))


# ---- training ---------------------------------------------------------------------------------------------------


def train(learners: IndependentLearners, settings: TrainSettings, run: Run, console: Console | None = None) -> None:
    """Train until `total_steps` have been made and learnt from, with metrics and checkpoints in the run's folder.

    However the run ends, the console shows its results and the next commands (`outcomes.py`), and the folder keeps the
    figures. An exception that ends the run early has a note that names the newest checkpoint and how to continue.

    Raises:
        EnvError, WorkerDied, StepTimeout: With `on_failure: raise`, or once an environment fails more often than
            `max_restarts` allows.
        NothingLearnt: At the end, when everything has been saved: every update of some agent was undone. If only some
            updates were undone, a warning says how many.
        CheckpointNotSaved: See `Run.save_if_possible`.
    """
    _Training(learners, settings, run, console or Console(stderr=True)).run_to_end()


class _InterruptedSafely(KeyboardInterrupt):
    """Ctrl-C between two steps, when everything is complete."""


class _Training:
    """Training of one run: the loop, and its metrics, checkpoints and texts."""

    display: Display
    loop: Loop
    means: MetricMeans

    def __init__(self, learners: IndependentLearners, settings: TrainSettings, run: Run, console: Console) -> None:
        self.learners, self.settings, self.run, self.console = learners, settings, run, console
        self.first_step, self.started = learners.steps, time.monotonic()

    def run_to_end(self) -> None:
        learners, total = self.learners, self.settings.total_steps
        every = self.settings.checkpoint_every or total
        _say(self.console, f"Run in {self.run.folder}; if it is ended: {self.run.resume_command()}")
        with (
            self._outcome_on_error(),  # before the display, so that its text stands below the last frame
            display(total, console=self.console) as self.display,
            open_loop(learners, loop_options(self.settings)) as self.loop,
        ):
            self._show()
            while learners.steps < total:
                learners.begin()
                mark = min((learners.steps // every + 1) * every, total)
                self.means = MetricMeans(self.settings.log_every or every, self._log_line, begins=learners.steps)
                with self._interruptible() as allow_interrupt:
                    while not self._may_save(mark, every):
                        self._add(self.loop.advance())
                        allow_interrupt()
                    self._add(self.loop.settle())
                    self._save(is_last=learners.steps >= total)
            self._show(last=True)
        text = f"Updates were run by {learners.mode.why}. {self.loop.report()}"
        last, restarts = learners.envs.last_restart, learners.envs.num_restarts
        if last is not None:
            by_worker = ", ".join(f"worker {one['worker']}: {one['restarts']}" for one in learners.envs.stats())
            text += (
                f"\nRestarts of environments: {restarts} ({by_worker}). The last was of {env_names(last[0])}: {last[1]}"
            )
        _say(self.console, text)
        self._show_outcome("budget")
        _check_learnt({agent: one.counters for agent, one in learners.agents.items()})

    def _may_save(self, mark: int, every: int) -> bool:
        """Return whether a checkpoint is due and no experience waits for an update.

        Agents that never learn all at once delay a checkpoint by one interval or one rollout at most.
        """
        memories = [one.memory for one in self.learners.agents.values() if isinstance(one.memory, TrajectoryStore)]
        longest = max((memory.horizon * memory.num_rows for memory in memories), default=0)
        waiting = any(memory.num_steps > 0 for memory in memories)
        steps = self.learners.steps
        return steps >= mark and (steps >= mark + max(every, longest) or not waiting)

    def _add(self, metrics: Metrics) -> None:
        if metrics:
            self.means.add(self.learners.steps, metrics)
            self._show()

    def _log_line(self, steps: int, means: Mapping[Agent, dict[str, float]]) -> None:
        learners, report, returns = self.learners, self.loop.report(), self.learners.returns()
        counts = {"update": learners.updates, "steps": steps, "seconds": dict(learners.seconds)}
        counts["loop"] = report.described()
        counts["restarts"] = learners.envs.num_restarts  # since the run was begun, or resumed last
        agents = {agent: dict(own) for agent, own in means.items()}
        for agent, own in agents.items():
            own["skipped"] = float(learners.agents[agent].counters["skipped"])
            if agent in report.lags:
                own["lag"] = report.lags[agent].mean
            if agent in returns:
                own["return"] = returns[agent]
        self.run.log(counts, agents)

    def _save(self, *, is_last: bool) -> None:
        """Write a checkpoint, and the metrics up to it."""
        learners = self.learners
        self.means.flush(learners.steps)
        chosen = learners.mode.choice if isinstance(learners.mode, AutoUpdates) else None
        self.run.save_if_possible(learners.steps, learners.save, chosen, is_last=is_last)

    def _show(self, *, last: bool = False) -> None:
        learners, report = self.learners, self.loop.report()
        loop = str(report) if report.lags and report.mode != "sync" else ""  # for "sync", once at the end is enough
        returns, seconds = learners.returns(), dict(learners.seconds)
        self.display.show(Progress(learners.steps, learners.updates, returns, seconds, loop), last=last)

    @contextlib.contextmanager
    def _interruptible(self) -> Iterator[Callable[[], None]]:
        """Delay Ctrl-C to the end of a step, then save a checkpoint. A second Ctrl-C strikes at once and saves none.

        Experience without an update is then lost: a run that is resumed there works, but differs from an uninterrupted
        one. Yields the function to call when everything is complete.
        """
        with Interrupts() as interrupts:

            @contextlib.contextmanager
            def harmless() -> Iterator[None]:
                try:
                    with interrupts.let_through():
                        yield
                except KeyboardInterrupt as strike:
                    raise _InterruptedSafely from strike

            def allow_interrupt() -> None:
                with harmless():
                    pass

            self.loop.while_waiting = harmless
            try:
                yield allow_interrupt
            except _InterruptedSafely:
                self.loop.stop()
                self._save(is_last=True)
                raise

    @contextlib.contextmanager
    def _outcome_on_error(self) -> Iterator[None]:
        """Show the results and how to continue after Ctrl-C or an error."""
        try:
            yield
        except CheckpointNotSaved as error:  # its text says how to continue
            self._show_outcome("error", type(error).__name__)
            raise
        except Exception as error:
            self._show_outcome("error", type(error).__name__)
            error.add_note(f"{self.run.kept()} {self.run.way_on()}")
            if self.settings.on_failure == "raise" and isinstance(error, EnvError | WorkerDied | StepTimeout):
                error.add_note("With on_failure=restart a run goes on after such a failure.")
            raise
        except _InterruptedSafely:
            steps, command = self.learners.steps, self.run.resume_command()
            _say(self.console, f"Ended by Ctrl-C after {steps:,} steps, which are kept: {command}")
            self._show_outcome("ctrl-c")
            raise

    def _show_outcome(self, ended: Ended, reason: str = "") -> None:
        """Show the results and the next commands, and write the figures into the run's folder."""
        learners, settings, seconds = self.learners, self.settings, time.monotonic() - self.started
        outcome = outcome_of(
            learners, self.run.folder, settings, ended=ended, reason=reason, began=self.first_step, seconds=seconds
        )
        outcome.write()
        _say(self.console, outcome.told())
        _say_next(self.console, commands_after(self.run, settings, learners.steps))


def _check_learnt(counters: Mapping[Agent, Mapping[str, Any]]) -> None:
    """Warn of updates that were undone since the run began, and raise NothingLearnt for agents without any other."""
    undone = {agent: own["skipped"] for agent, own in counters.items() if own["skipped"]}
    if nothing := {agent: number for agent, number in undone.items() if not counters[agent]["updates"]}:
        raise NothingLearnt.of_counts(nothing)
    if undone:
        texts = [f"{agent} {number:,} of {number + counters[agent]['updates']:,}" for agent, number in undone.items()]
        _log.warning("Updates that were not finite, and undone: %s.", ", ".join(texts))


class _ShownLearner(Learner):
    """The meta-RL learner, with the display."""

    _display: Display | None = None
    _outcome: RunOutcome | None = None

    def train_shown(self, console: Console) -> Path:
        """Train to the end of the settings, and show how well the agent adapts. Returns the run's folder.

        However the training ends, the console shows its results and the next commands.
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
                # a finished run gets as much again
                end, settings = 2 if self.finished else 1, self.settings.train
                if settings.n_env_steps_total is not None:
                    until = f"train.n_env_steps_total={end * settings.n_env_steps_total}"
                else:
                    until = f"train.num_iters={end * (settings.num_iters or DEFAULT_ITERS)}"
                _say_next(console, commands_after_meta(run, until))
        return folder

    def _end_with(self, outcome: RunOutcome) -> None:
        super()._end_with(outcome)
        self._outcome = outcome

    def log_train_stats(self, run: Any, stats: Any = None) -> None:
        super().log_train_stats(run, stats)
        if self._display is not None and stats is not None:
            now = Progress(self.num_env_steps, self.num_iters_done, {AGENT: stats["return"]}, dict(self.seconds))
            self._display.show(now, last=self.finished)


# ---- the console ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _console() -> Iterator[Console]:
    """Open a console on stderr, with the package's warnings above the display."""
    console, logger = Console(stderr=True), logging.getLogger("parallel_envs")
    handler = RichHandler(logging.WARNING, console, show_time=False, show_path=False)
    handler.addFilter(Repetitions())
    handler.setFormatter(Counted())
    logger.addHandler(handler)
    try:
        yield console
    finally:
        logger.removeHandler(handler)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _say_next(console: Console, commands: Sequence[str]) -> None:
    if commands:
        _say(console, "\n".join(["Next:", *(f"  {command}" for command in commands)]))
