"""A training run from its settings to its folder: `parallel-envs train`.

    settings ──▶ environments, learners ──▶ steps and updates ──▶ the run's folder: metrics, checkpoints
                                                              └─▶ the display

A checkpoint cannot hold environments. All episodes therefore begin anew at each checkpoint, seeded by the number of
steps. A run that is resumed there continues, to the bit, as a run that never ended (with `update_mode: auto`, once it
has chosen: see `read_choice` in `run_folder.py`). A checkpoint is written when no experience waits for an update.
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

from parallel_envs.devices import find_device
from parallel_envs.engine.interrupts import InterruptedSafely, Interrupts
from parallel_envs.errors import EnvError, StepTimeout, WorkerDied
from parallel_envs.learners.agent import configs_by_name
from parallel_envs.learners.checkpoint import BadCheckpoint, folder_names, load_checkpoint
from parallel_envs.learners.config import (
    BadSettings,
    FailureSettings,
    TrainSettings,
    algorithm_configs,
    completed,
    load_settings,
    read_overrides,
)
from parallel_envs.learners.independent import IndependentLearners
from parallel_envs.learners.loops import Loop, LoopOptions, open_loop
from parallel_envs.learners.loops.loop import Metrics, check_agents, fewest_workers, share_workers
from parallel_envs.learners.meta.config import is_meta
from parallel_envs.learners.meta.learner import Learner
from parallel_envs.learners.outcomes import STATUS, Ended, RunOutcome, check_learnt, commands_after, outcome_of
from parallel_envs.learners.progress import Counted, Display, Progress, Repetitions, display
from parallel_envs.learners.run_folder import (
    TRACE,
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
from parallel_envs.learners.writers import Writer, make_writers
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import as_text, env_factory
from parallel_envs.progress import say
from parallel_envs.rollouts.trajectories import TrajectoryStore
from parallel_envs.settings import settings_in
from parallel_envs.trace import Trace, span
from parallel_envs.trust import TUPLE_AGENTS, check_env, check_writer
from parallel_envs.vector import ParallelEnvManager
from parallel_envs.vector.env_errors import env_names
from parallel_envs.vector.tracing import traced

Agent = Hashable

_log = logging.getLogger(__name__)


# ---- new runs ---------------------------------------------------------------------------------------------------


def begin(
    config: str | Path | None,
    overrides: Sequence[str] = (),
    *,
    writers: Sequence[Writer] = (),
    quiet: bool = False,
    trace: bool = False,
) -> Path:
    """Train in a new folder, which is returned. `config`: a settings file; None if `overrides` contain everything.
    `quiet`: nothing is shown but warnings. With `trace` the folder gets a timeline of the last minute, `trace.json`.

    `writers` get the metrics, besides those of the settings. Settings with a block `env` (`env_type: meta`) are those
    of the meta-RL `Learner`, which is trained then.
    """
    if config is not None and is_meta(settings_in(config, BadSettings)):
        return _train_meta(lambda: Learner(config, **read_overrides(overrides)), writers, quiet=quiet, trace=trace)
    settings = load_settings(config, overrides)
    made = make_writers(settings.writers, writers)
    with _console(quiet) as console, build_learners(settings) as learners:
        algorithms = [one.algorithm.name for one in learners.agents.values()]
        folder = settings.folder or new_folder_in_runs(settings.env, algorithms, settings.seed)
        described = completed(settings, configs_by_name()).described()
        with (
            Run.create(folder, described, seed=settings.seed, **_run_options(settings)) as run,
            _traced(run, trace, learners.envs.envs),
        ):
            run.begin_writers(made, described)
            _Training(learners, settings, run, console).run_to_end()
    return folder


def _run_options(settings: TrainSettings) -> dict[str, Any]:
    board = settings.tensorboard or settings.writers.tensorboard is not None
    return {"keep_checkpoints": settings.keep_checkpoints, "tensorboard": board}


@contextlib.contextmanager
def build_learners(settings: TrainSettings) -> Iterator[IndependentLearners]:
    """Make environments, and learners in them. BadSettings if they refuse their arguments or each other."""
    limit, num_envs = settings.num_workers, settings.num_envs
    learning_workers = limit
    with contextlib.ExitStack() as stack:
        try:
            options = loop_options(settings)
            device = find_device(settings.device)
            if settings.worker_budget is not None:
                least = fewest_workers(settings.mode, settings.learn_in, settings.update_mode)
                in_workers = 0 if settings.backend == "serial" else num_envs
                asked = min(limit, in_workers) if limit else None
                try:
                    shares = share_workers(settings.worker_budget, in_workers, least, env_workers=asked)
                except ValueError as error:
                    raise ValueError(f"`worker_budget` (in the block `parallel`: `num_workers`): {error}") from error
                limit, learning_workers = shares.envs, shares.learning or None
            factory = env_factory(settings.env, settings.env_kwargs, settings.turns)
            envs = MultiAgentEnvManager(
                [factory] * num_envs,
                num_workers=min(limit or num_envs, num_envs),
                **{name: getattr(settings, name) for name in ("backend", "turns", *FailureSettings.model_fields)},
            )
            stack.enter_context(envs)
            folder_names(envs.possible_agents)  # raises before any experience can be lost
            learners = IndependentLearners(
                envs,
                algorithm_configs(settings, envs.possible_agents, configs_by_name()),
                update_mode=settings.update_mode,
                seed=settings.seed,
                strategy=settings.strategy,
                workers=learning_workers,
                update_timeout=settings.update_timeout,
                on_divergence=settings.on_divergence,
                device=device,
            )
            stack.enter_context(learners)
            check_agents(options, learners.agents, learners.update_mode)
        except (EnvError, ModuleNotFoundError, TypeError, ValueError) as error:
            text, takes_turns, _ = str(error).partition("Give turns='sequential'")
            why = "Choose another: learners need all agents' actions at once, so environments that take turns cannot be"
            raise BadSettings(f"{text}{why} trained in." if takes_turns else text) from error
        yield learners


def loop_options(settings: TrainSettings) -> LoopOptions:
    """Return how collecting and learning go together. Raises ValueError for a wrong combination."""
    names = [field.name for field in dataclasses.fields(LoopOptions)]
    return LoopOptions(**{name: getattr(settings, name) for name in names})


# ---- resumed runs -----------------------------------------------------------------------------------------------

_MAY_CHANGE = FailureSettings.model_fields.keys() | {
    "total_steps",
    "log_every",
    "keep_checkpoints",
    "tensorboard",
    "writers",
    "num_workers",
    "backend",
    "folder",
    "device",
    "learn_in",
    "worker_budget",
    "schedule",
    "update_timeout",
    "on_divergence",
}
"""Settings that may change when a run is resumed, as the training does not depend on them. (A checkpoint is written
where a run ends, and episodes begin anew there as at any other checkpoint.)"""


def go_on(
    folder: str | Path,
    config: str | Path | None = None,
    overrides: Sequence[str] = (),
    *,
    trust: Sequence[str] = (),
    writers: Sequence[Writer] = (),
    quiet: bool = False,
    trace: bool = False,
) -> Path:
    """Continue training from the newest checkpoint in a run's folder. Returns the folder. `trace`: as in `begin`.

    `config`, a settings file to use in place of the run's own, and `overrides` may change what does not influence the
    training. `trust` has modules with environments and writers that the run's own settings.yaml may name. A run that
    has made `total_steps` already is reported as done, and left as it is; its writers get what they have not had.

    Raises:
        UntrustedName: The run's own settings.yaml names an environment or a writer of another module.
        NothingLearnt: Every update of some agent was undone, also in a run that was done before.
    """
    if is_meta(settings_in(settings_of(folder), BadSettings)):
        if config is not None:
            raise BadSettings(f"{config} was given beside a meta-RL run. Change single settings of it, as key=value.")
        resumed = lambda: Learner.resume(folder, trust=trust, **read_overrides(overrides))  # noqa: E731
        return _train_meta(resumed, writers, quiet=quiet, trace=trace)
    stored = load_settings(settings_of(folder))
    computed = {name: getattr(stored, name) for name in ("checkpoint_every", "log_every")}  # not from new total_steps
    settings = load_settings(config or settings_of(folder), overrides, computed)
    named = settings.folder
    if named not in (None, stored.folder) and Path(named).resolve() != Path(folder).resolve():
        raise BadSettings(f"`folder: {named}` is not {folder}, where the run is. Move it there, or leave `folder` out.")
    own, other = (completed(one, configs_by_name()).described() for one in (settings, stored))
    if changed := sorted(name for name in own if own[name] != other[name] and name not in _MAY_CHANGE):
        raise BadSettings(
            f"The run in {folder} has other settings: {', '.join(f'`{name}`' for name in changed)}. Begin another "
            f"run with them; a run that goes on may change {', '.join(f'`{name}`' for name in sorted(_MAY_CHANGE))}."
        )
    by_user = "env_kwargs" if settings.env in TUPLE_AGENTS else "env="  # these envs are named by their arguments
    if config is None and not any(override.startswith(by_user) for override in overrides):
        check_env(settings.env, settings.env_kwargs, settings_of(folder), trust)
    if config is None and not any(override.startswith("writers=") for override in overrides):
        for name in settings.writers.own.keys() & stored.writers.own.keys():
            check_writer(name, settings_of(folder), trust)
    made = make_writers(settings.writers, writers)
    with _console(quiet) as console:
        newest = newest_checkpoint(folder)
        if newest is not None and (steps := int(newest.name)) >= settings.total_steps:
            say(
                console,
                f"The run in {folder} has made {steps:,} steps, and total_steps is {settings.total_steps:,}: nothing "
                f"is left to do. To have it go on, give it more, as total_steps={2 * steps}.",
            )
            agents = load_checkpoint(newest_whole(Path(folder))).agents
            if made:
                with Run(Path(folder), tensorboard=False) as run:
                    run.status = "finished"
                    run.begin_writers(made, own)
            check_learnt({agent: state["counters"] for agent, state in agents.items()})
            return Path(folder)
        with build_learners(settings) as learners:
            run, checkpoint = Run.resume(folder, **_run_options(settings))
            with run:
                try:
                    learners.load(checkpoint)
                except KeyError as error:  # the environments have other agents by now
                    raise BadCheckpoint(str(error.args[0])) from error
                except BadCheckpoint as error:
                    raise BadCheckpoint(f"{error} {way_back(run.folder, checkpoint)}") from error
                if run.chosen is not None and learners.update_mode == "auto":
                    # Another mode than at the checkpoint would give the same numbers up to rounding only.
                    if run.chosen not in MODES.keys() - {"auto"}:
                        raise BadRun(f'In {folder} "auto" has chosen {run.chosen!r}, which is not an update mode.')
                    limits = learners.workers, learners.update_timeout
                    learners.run_by(make=lambda parameters: AutoUpdates(parameters, *limits, choice=run.chosen))
                run.remember({**own, "folder": other["folder"]})
                run.begin_writers(made, own)
                with _traced(run, trace, learners.envs.envs):
                    _Training(learners, settings, run, console).run_to_end()
    return Path(folder)


# ---- training ---------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _traced(run: Run, wanted: bool, *managers: ParallelEnvManager | None) -> Iterator[None]:
    """Write a timeline of the context into the run's folder, if it is wanted. Workers of managers after the first one
    are those of evaluations.
    """
    with contextlib.ExitStack() as stack:
        if wanted:
            timeline = stack.enter_context(Trace(run.folder / TRACE))
            for number, manager in enumerate(managers):
                if manager is not None:
                    stack.enter_context(traced(manager, timeline, "evaluation " if number else ""))
        yield


class _Training:
    """Training of one run: the loop, and its metrics, checkpoints and texts."""

    display: Display
    loop: Loop
    means: MetricMeans

    def __init__(self, learners: IndependentLearners, settings: TrainSettings, run: Run, console: Console) -> None:
        self.learners, self.settings, self.run, self.console = learners, settings, run, console
        self.first_step, self.started = learners.steps, time.monotonic()

    def run_to_end(self) -> None:
        """Train until `total_steps` have been made and learnt from.

        However the run ends, the console shows its results and the next commands (`outcomes.py`), and the folder keeps
        the figures. An exception that ends the run early has a note that says how to continue. NothingLearnt is raised
        at the end, when everything has been saved, if every update of some agent was undone.
        """
        learners, run, total = self.learners, self.run, self.settings.total_steps
        say(self.console, f"Run in {run.folder}; if it is ended: {run.resume_command()}")
        _say_devices(self.console, run, learners.devices)
        try:
            with (
                display(total, console=self.console) as self.display,
                open_loop(learners, loop_options(self.settings)) as self.loop,
            ):
                self._show()
                while learners.steps < total:
                    self._train_to_checkpoint()
                self._show(last=True)
        # The display has ended, so texts stand below its last frame.
        except InterruptedSafely:
            say(self.console, f"Ended by Ctrl-C after {learners.steps:,} steps, which are kept: {run.resume_command()}")
            self._show_outcome("ctrl-c")
            raise
        except Exception as error:
            self._show_outcome("error", type(error).__name__)
            if not isinstance(error, CheckpointNotSaved):  # its text says how to continue
                error.add_note(f"{run.kept()} {run.way_on()}")
            if self.settings.on_failure == "raise" and isinstance(error, EnvError | WorkerDied | StepTimeout):
                error.add_note("With on_failure=restart a run goes on after such a failure.")
            raise
        text = f"Updates were run by {learners.mode.why}. {self.loop.report()}"
        last, restarts = learners.envs.last_restart, learners.envs.num_restarts
        if last is not None:
            by_worker = ", ".join(f"worker {one['worker']}: {one['restarts']}" for one in learners.envs.stats())
            text += (
                f"\nRestarts of environments: {restarts} ({by_worker}). The last was of {env_names(last[0])}: {last[1]}"
            )
        say(self.console, text)
        self._show_outcome("budget")
        check_learnt({agent: one.counters for agent, one in learners.agents.items()})

    def _train_to_checkpoint(self) -> None:
        """Begin episodes anew, train until a checkpoint is due, and save it.

        It is due at the next multiple of `checkpoint_every` at which no experience waits for an update. Agents that
        never learn all at once delay it by one interval or one rollout at most.

        Ctrl-C is delayed to the end of a step; then a checkpoint is saved. A second Ctrl-C strikes at once and saves
        none: a run that is resumed then differs from an uninterrupted one.
        """
        learners, loop, total = self.learners, self.loop, self.settings.total_steps
        every = self.settings.checkpoint_every or total
        learners.begin()
        mark = min((learners.steps // every + 1) * every, total)
        self.means = MetricMeans(self.settings.log_every or every, self._log_line, begins=learners.steps)
        stores = [one.memory for one in learners.agents.values() if isinstance(one.memory, TrajectoryStore)]
        longest = max((store.horizon * store.num_rows for store in stores), default=0)

        def add(metrics: Metrics) -> None:
            if metrics:
                self.means.add(learners.steps, metrics)
            if self.display.due():
                self._show()

        with Interrupts() as interrupts:
            loop.while_waiting = interrupts.let_through
            try:
                while learners.steps < mark or (
                    learners.steps < mark + max(every, longest) and any(store.num_steps > 0 for store in stores)
                ):
                    add(loop.advance())
                    with interrupts.let_through():
                        pass  # everything is complete here
                add(loop.settle())
                self._save(is_last=learners.steps >= total)
            except InterruptedSafely:
                loop.stop()
                self._save(is_last=True)
                raise

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
        with span("checkpoint", steps=learners.steps):
            self.run.save_if_possible(learners.steps, learners.save, chosen, is_last=is_last)

    def _show(self, *, last: bool = False) -> None:
        learners, report = self.learners, self.loop.report()
        loop = str(report) if report.lags and report.mode != "sync" else ""  # for "sync", once at the end is enough
        returns, seconds = learners.returns(), dict(learners.seconds)
        self.display.show(Progress(learners.steps, learners.updates, returns, seconds, loop), last=last)

    def _show_outcome(self, ended: Ended, reason: str = "") -> None:
        """Write the results into the run's folder, and show them with the next commands."""
        learners, settings = self.learners, self.settings
        outcome = outcome_of(
            self.run.folder,
            {agent: one.algorithm.name for agent, one in learners.agents.items()},
            ended=ended,
            reason=reason,
            steps=learners.steps,
            began=self.first_step,
            seconds=time.monotonic() - self.started,
            total_steps=settings.total_steps,
            episodes=learners.num_episodes,
            returns=learners.returns(),
        )
        outcome.write()
        self.run.status = STATUS[ended]
        more = "" if learners.steps < settings.total_steps else f"total_steps={2 * settings.total_steps}"
        mission = as_text(settings.env, settings.env_kwargs)
        _say_results(self.console, outcome, commands_after(self.run, more, mission))


def _train_meta(make: Callable[[], Learner], writers: Sequence[Writer], *, quiet: bool, trace: bool) -> Path:
    """Train a meta-RL learner with the display, and show how well the agent adapts. Returns the run's folder."""
    with _console(quiet) as console, make() as learner:
        run, settings = learner._start_training(writers=writers), learner.settings.train
        say(console, f"Run in {run.folder}; if it is ended: {run.resume_command()}")
        _say_devices(console, run, learner.devices)
        try:
            envs = (learner.train_env_parallel, learner.eval_env_parallel) if trace else ()
            with (
                display(learner.n_env_steps_total, console=console) as learner.display,
                _traced(run, trace, *envs),
            ):
                folder = learner.train()
            curve = " ".join(f"{one:.4g}" for one in learner.evaluate().curve)
            say(console, f"Mean return by inner episode on {len(learner.eval_tasks)} evaluation tasks: {curve}")
        finally:
            if learner.outcome is not None:
                times = 2 if learner.finished else 1  # a finished run gets as much again
                until = f"train.num_iters={times * learner.num_iters}"
                if settings.n_env_steps_total is not None:
                    until = f"train.n_env_steps_total={times * settings.n_env_steps_total}"
                _say_results(console, learner.outcome, commands_after(run, until))
    return folder


# ---- the console ------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _console(quiet: bool) -> Iterator[Console]:
    """Open a console on stderr, with the package's warnings above the display. If it is quiet, there are only these."""
    console, logger = Console(stderr=True, quiet=quiet), logging.getLogger("parallel_envs")
    warnings_on = Console(stderr=True) if quiet else console
    handler = RichHandler(logging.WARNING, warnings_on, show_time=False, show_path=False)
    handler.addFilter(Repetitions())
    handler.setFormatter(Counted())
    logger.addHandler(handler)
    try:
        yield console
    finally:
        logger.removeHandler(handler)


def _say_devices(console: Console, run: Run, devices: Mapping[str, str]) -> None:
    """Show where networks learn and act, and write it into the run's folder."""
    run.describe(devices=dict(devices))
    learning, acting = devices["learning"], devices["acting"]
    say(console, f"Networks learn {'' if acting == learning else f'on {learning} '}and act on {acting}.")


def _say_results(console: Console, outcome: RunOutcome, commands: Sequence[str]) -> None:
    say(console, "\n".join([outcome.told(), *(["Next:"] if commands else []), *(f"  {one}" for one in commands)]))
