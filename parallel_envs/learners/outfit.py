"""Environments, and learners in them, as a run's settings say."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from parallel_envs.errors import EnvError
from parallel_envs.learners.agent_folders import folder_names
from parallel_envs.learners.algorithm_settings import algorithm_configs
from parallel_envs.learners.independent import IndependentLearners
from parallel_envs.learners.learner import configs_by_name
from parallel_envs.learners.loops import LoopOptions
from parallel_envs.learners.loops.options import Shares, check_agents, fewest_workers, share_workers
from parallel_envs.learners.settings import WHY_SIMULTANEOUS, BadSettings, TrainSettings
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import env_factory

_FAILURE_OPTIONS = ("on_failure", "step_timeout", "reset_timeout", "start_timeout", "max_restarts", "restart_window")
"""Settings that are options of the manager, under the same names."""


@contextlib.contextmanager
def learners_of(settings: TrainSettings) -> Iterator[IndependentLearners]:
    """Learners as the settings say, in environments of their own."""
    _made_of(settings, loop_options)
    shares = _made_of(settings, _shares)
    with _made_of(settings, _envs, shares) as envs, _made_of(settings, _learners_in, envs, shares) as learners:
        _made_of(settings, _check_agents, learners)
        yield learners


def loop_options(settings: TrainSettings) -> LoopOptions:
    """How collecting and learning go together. Raises ValueError for what cannot be."""
    names = [field.name for field in dataclasses.fields(LoopOptions)]
    return LoopOptions(**{name: getattr(settings, name) for name in names})


def _check_agents(settings: TrainSettings, learners: IndependentLearners) -> None:
    check_agents(loop_options(settings), learners.agents, learners.update_mode)


def _shares(settings: TrainSettings) -> Shares | None:
    """The budget of workers, shared out; None: there is none."""
    if settings.worker_budget is None:
        return None
    num_envs = 0 if settings.backend == "serial" else settings.num_envs
    asked = min(settings.num_workers, num_envs) if settings.num_workers else None
    least = fewest_workers(settings.mode, settings.learn_in, settings.update_mode)
    try:
        return share_workers(settings.worker_budget, num_envs, least, env_workers=asked)
    except ValueError as error:
        raise ValueError(f"`worker_budget` (in the block `parallel`: `num_workers`): {error}") from error


def _made_of(settings: TrainSettings, make: Callable[..., Any], *given: Any) -> Any:
    """What cannot be made as the settings say is their fault: spaces that an algorithm cannot take, wrong arguments."""
    try:
        return make(settings, *given)
    except (EnvError, ModuleNotFoundError, TypeError, ValueError) as error:
        raise BadSettings(str(error)) from error


def _envs(settings: TrainSettings, shares: Shares | None) -> MultiAgentEnvManager:
    factory = env_factory(settings.env, settings.env_kwargs, settings.turns)
    asked = settings.num_workers if shares is None else shares.envs
    workers = min(asked or settings.num_envs, settings.num_envs)
    try:
        return MultiAgentEnvManager(
            [factory] * settings.num_envs,
            num_workers=workers,
            backend=settings.backend,
            turns=settings.turns,
            **{name: getattr(settings, name) for name in _FAILURE_OPTIONS},
        )
    except EnvError as error:
        told, wanted, _ = str(error).partition("Give turns='sequential'")
        if not wanted:
            raise
        raise BadSettings(f"{told}Choose another: {WHY_SIMULTANEOUS}.") from error


def _learners_in(settings: TrainSettings, envs: MultiAgentEnvManager, shares: Shares | None) -> IndependentLearners:
    folder_names(envs.possible_agents)  # before there is anything to be lost
    return IndependentLearners(
        envs,
        algorithm_configs(settings, envs.possible_agents, configs_by_name()),
        update_mode=settings.update_mode,
        seed=settings.seed,
        strategy=settings.strategy,
        workers=settings.num_workers if shares is None else shares.learning or None,
        update_timeout=settings.update_timeout,
        on_divergence=settings.on_divergence,
    )
