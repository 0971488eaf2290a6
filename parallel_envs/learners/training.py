"""A training run from its settings to its folder: what `parallel-envs train` does.

    settings ──▶ environments, learners ──▶ steps and updates ──▶ the run's folder: metrics, checkpoints
                                                              └─▶ the display

A checkpoint cannot hold environments. So at each one all episodes begin anew, seeded by how far the run is; a run that
is resumed there goes on, to the bit, as the one that was never ended. It is written where nothing waits to be learnt.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.logging import RichHandler

from parallel_envs.errors import EnvError
from parallel_envs.learners.algorithm_settings import algorithm_configs
from parallel_envs.learners.averages import Averages
from parallel_envs.learners.display import Display, Progress, display
from parallel_envs.learners.independent import IndependentLearners
from parallel_envs.learners.learner import CONFIGS
from parallel_envs.learners.runs import Run, settings_of
from parallel_envs.learners.settings import BadSettings, TrainSettings, load_settings
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import env_factory
from parallel_envs.rollouts.trajectories import TrajectoryStore

Agent = Hashable

MAY_CHANGE = frozenset(
    (
        "total_steps",
        "checkpoint_every",
        "log_every",
        "keep_checkpoints",
        "tensorboard",
        "num_workers",
        "backend",
        "folder",
    )
)
"""Settings that may be others when a run is resumed: what is learnt does not depend on them."""

_log = logging.getLogger(__name__)


def begin(config: str | Path, overrides: Sequence[str] = ()) -> Path:
    """Train as a settings file says, in a new folder. Returns the folder."""
    settings = load_settings(config, overrides)
    folder = settings.folder or _new_folder(Path(config).stem)
    with (
        _shown() as console,
        _learners(settings) as learners,
        Run.create(folder, settings.described(), seed=settings.seed, **_run_options(settings)) as run,
    ):
        train(learners, settings, run, console)
    return folder


def go_on(folder: str | Path, config: str | Path | None = None, overrides: Sequence[str] = ()) -> Path:
    """Train on from the newest checkpoint in a run's folder. Returns the folder.

    Other settings (a file, overrides) may be given as far as what is learnt does not depend on them.
    """
    settings = load_settings(config or settings_of(folder), overrides)
    _check_same(settings, load_settings(settings_of(folder)), folder)
    with _shown() as console, _learners(settings) as learners:
        run, checkpoint = Run.resume(folder, **_run_options(settings))
        with run:
            learners.load(checkpoint)
            train(learners, settings, run, console)
    return Path(folder)


def train(learners: IndependentLearners, settings: TrainSettings, run: Run, console: Console | None = None) -> None:
    """Go on until `total_steps` have been made and learnt from, with metrics and checkpoints in the run's folder."""
    every, console = settings.checkpoint_every or settings.total_steps, console or Console(stderr=True)
    console.print(
        f"Run in {run.folder}; if it is ended: --resume {run.folder}", markup=False, highlight=False, soft_wrap=True
    )
    with display(settings.total_steps, console=console) as shown:
        shown.show(_progress(learners))
        while learners.steps < settings.total_steps:
            learners.begin()
            mark = min(_next_mark(learners.steps, every), settings.total_steps)
            averages = Averages(settings.log_every or every, partial(_log_line, learners, run), begins=learners.steps)
            while not _may_save(learners, mark, every):
                _step(learners, averages, shown)
            averages.flush(learners.steps)
            run.save(learners.steps, learners.save)
        shown.show(_progress(learners), last=True)
    console.print(f"Updates were run by {learners.mode.why}.", markup=False, highlight=False, soft_wrap=True)


def _next_mark(steps: int, every: int) -> int:
    return (steps // every + 1) * every


def _may_save(learners: IndependentLearners, mark: int, every: int) -> bool:
    """Behind the mark, and nothing is lost; agents who never all have learnt at once do not put it off for ever."""
    return learners.steps >= mark and (learners.steps >= mark + every or not _waiting(learners))


def _waiting(learners: IndependentLearners) -> bool:
    """Whether someone has lived what is yet to be learnt, and can only be learnt now."""
    memories = [agent.memory for agent in learners.agents.values()]
    return any(isinstance(memory, TrajectoryStore) and memory.num_steps > 0 for memory in memories)


def _step(learners: IndependentLearners, averages: Averages, shown: Display) -> None:
    learners.step()
    metrics = learners.update()
    if metrics:
        averages.add(learners.steps, metrics)
        shown.show(_progress(learners))


def _log_line(learners: IndependentLearners, run: Run, steps: int, means: Mapping[Agent, dict[str, float]]) -> None:
    returns = {agent: {"return": value} for agent, value in learners.returns().items()}
    counts = {"update": learners.updates, "steps": steps, "seconds": dict(learners.seconds)}
    run.log(counts, {agent: {**own, **returns.get(agent, {})} for agent, own in means.items()})


def _progress(learners: IndependentLearners) -> Progress:
    return Progress(learners.steps, learners.updates, learners.returns(), dict(learners.seconds))


# ---- from settings --------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _learners(settings: TrainSettings) -> Iterator[IndependentLearners]:
    """Learners as the settings say, in environments of their own."""
    if settings.mode == "overlap":
        _log.warning("Collecting and learning take turns: learning while collecting is not built yet.")
    with _made_of(settings, _envs) as envs, _made_of(settings, _learners_in, envs) as learners:
        yield learners


def _made_of(settings: TrainSettings, make: Callable[..., Any], *given: Any) -> Any:
    """What cannot be made as the settings say is their fault: spaces that an algorithm cannot take, wrong arguments."""
    try:
        return make(settings, *given)
    except (EnvError, TypeError, ValueError) as error:
        raise BadSettings(str(error)) from error


def _envs(settings: TrainSettings) -> MultiAgentEnvManager:
    factory = env_factory(settings.env, settings.env_kwargs, settings.turns)
    workers = min(settings.num_workers or settings.num_envs, settings.num_envs)
    return MultiAgentEnvManager(
        [factory] * settings.num_envs, num_workers=workers, backend=settings.backend, turns=settings.turns
    )


def _learners_in(settings: TrainSettings, envs: MultiAgentEnvManager) -> IndependentLearners:
    return IndependentLearners(
        envs,
        algorithm_configs(settings, envs.possible_agents, CONFIGS),
        update_mode=settings.update_mode,
        seed=settings.seed,
        strategy=settings.strategy,
        workers=settings.num_workers,
    )


def _run_options(settings: TrainSettings) -> dict[str, Any]:
    return {"keep_checkpoints": settings.keep_checkpoints, "tensorboard": settings.tensorboard}


def _check_same(settings: TrainSettings, stored: TrainSettings, folder: str | Path) -> None:
    own, other = settings.described(), stored.described()
    changed = sorted(name for name in own if own[name] != other[name] and name not in MAY_CHANGE)
    if changed:
        raise BadSettings(
            f"The run in {folder} has other settings: {', '.join(f'`{name}`' for name in changed)}. Begin a run of its "
            f"own with them; a run that goes on may change {', '.join(f'`{name}`' for name in sorted(MAY_CHANGE))}."
        )


def _new_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"


@contextlib.contextmanager
def _shown() -> Iterator[Console]:
    """A console on stderr, on which the package's warnings stand above the display."""
    console, logger = Console(stderr=True), logging.getLogger("parallel_envs")
    handler = RichHandler(logging.WARNING, console, show_time=False, show_path=False)
    logger.addHandler(handler)
    try:
        yield console
    finally:
        logger.removeHandler(handler)
