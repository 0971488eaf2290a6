"""Going on with a run: which settings may be others, and whether there is anything left to do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from parallel_envs.learners.algorithm_settings import completed
from parallel_envs.learners.learner import configs_by_name
from parallel_envs.learners.runs import newest_checkpoint, settings_of
from parallel_envs.learners.settings import BadSettings, TrainSettings, load_settings
from parallel_envs.trust import TUPLE_AGENTS, check_env

MAY_CHANGE = frozenset(
    (
        "total_steps",
        "log_every",
        "keep_checkpoints",
        "tensorboard",
        "num_workers",
        "backend",
        "folder",
        "learn_in",
        "worker_budget",
        "schedule",
        "update_timeout",
        "on_divergence",
        "on_failure",
        "step_timeout",
        "reset_timeout",
        "start_timeout",
        "max_restarts",
        "restart_window",
    )
)
"""Settings that may be others when a run is resumed: what is learnt does not depend on them. (Where a run ends there is
a checkpoint, and episodes begin anew, as at any other.)
"""
_FOLLOWS = ("checkpoint_every", "log_every")  # from `total_steps`, where nothing is said


def settings_to_go_on(
    folder: str | Path, config: str | Path | None, overrides: Sequence[str], trust: Sequence[str] = ()
) -> tuple[TrainSettings, TrainSettings]:
    """Return the settings with which a run goes on, and those that it had. BadSettings if that would be another run.

    UntrustedName if the environment is named by the run's own settings.yaml alone, and is none that a file may name
    (see `trust.py`). One that `config` or an override names was named by the user.
    """
    stored = load_settings(settings_of(folder))
    follow = {name: getattr(stored, name) for name in _FOLLOWS}
    settings = load_settings(config or settings_of(folder), overrides, follow)
    _check_same(settings, stored, folder)
    of_user = "env_kwargs" if settings.env in TUPLE_AGENTS else "env="  # its arguments name the environment
    if config is None and not any(override.startswith(of_user) for override in overrides):
        check_env(settings.env, settings.env_kwargs, settings_of(folder), trust)
    return settings, stored


def _check_same(settings: TrainSettings, stored: TrainSettings, folder: str | Path) -> None:
    named = settings.folder
    if named not in (None, stored.folder) and Path(named).resolve() != Path(folder).resolve():
        raise BadSettings(f"`folder: {named}` is not {folder}, where the run is. Move it there, or leave `folder` out.")
    own, other = (completed(one, configs_by_name()).described() for one in (settings, stored))
    changed = sorted(name for name in own if own[name] != other[name] and name not in MAY_CHANGE)
    if changed:
        raise BadSettings(
            f"The run in {folder} has other settings: {', '.join(f'`{name}`' for name in changed)}. Begin a run of its "
            f"own with them; a run that goes on may change {', '.join(f'`{name}`' for name in sorted(MAY_CHANGE))}."
        )


def why_done(folder: str | Path, total_steps: int) -> str:
    """A sentence for a run that has nothing left to do; empty for one that has."""
    newest = newest_checkpoint(folder)
    if newest is None or int(newest.name) < total_steps:
        return ""
    steps = int(newest.name)
    return (
        f"The run in {folder} has made {steps:,} steps, and total_steps is {total_steps:,}: nothing is left to do. To "
        f"have it go on, give it more, as total_steps={2 * steps}."
    )
