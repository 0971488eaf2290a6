"""`parallel-envs train`."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from parallel_envs.cli.mistakes import plain_errors, trusted
from parallel_envs.cli.setting_list import print_settings


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONFIG.yaml [key=value ...]", help="Settings, and those to replace: seed=3."),
    ] = None,
    listed: Annotated[
        bool,
        typer.Option("--list", help="Show settings with type, default and meaning: run, env, parallel, ppo, dqn, sac."),
    ] = False,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the run in this folder.")] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            help="With --resume: a module whose environments the run's settings.yaml may name, again for more. Without "
            "it only environments of this package and of known, installed families are made from that file.",
        ),
    ] = None,
) -> None:
    """Train independent learners as a settings file says. What comes of it is in the run's folder.

    Example: parallel-envs train examples/simple_spread.yaml seed=1 algorithm.learning_rate=0.001

    Settings: parallel-envs train --list ppo
    """
    from parallel_envs.errors import MissingExtra, UntrustedName
    from parallel_envs.extras import require

    if listed:
        with plain_errors(MissingExtra):
            require("Training", "torch")
        print_settings(words or [])
        return
    modules = trusted(trust)
    config, overrides = _config_and_overrides(words or [])
    with plain_errors(MissingExtra):
        require("Training", "torch", "safetensors")
    from parallel_envs.learners.algorithm import Diverged, NothingLearnt
    from parallel_envs.learners.checkpoint import BadCheckpoint
    from parallel_envs.learners.config import BadSettings
    from parallel_envs.learners.run_folder import BadRun, CheckpointNotSaved

    mistakes = BadCheckpoint, BadRun, BadSettings, Diverged, OSError, MissingExtra, UntrustedName
    with plain_errors(*mistakes), plain_errors(NothingLearnt, CheckpointNotSaved, exit_code=1), _faults_elsewhere():
        from parallel_envs.learners.train import begin, go_on

        if resume is not None:
            folder = go_on(resume, config, overrides, trust=modules)
        elif config is not None and config.is_dir():
            raise typer.BadParameter(
                f"{config} is a folder. Give a settings file; to go on with a run, --resume {config}."
            )
        elif config is not None or any(word.startswith("env=") for word in overrides):
            folder = begin(config, overrides)
        else:
            raise typer.BadParameter(
                "Give a settings file (CONFIG.yaml), settings (env=CartPole-v1 total_steps=100000), or a run to go on "
                "with (--resume DIR)."
            )
    typer.echo(str(folder))


@contextlib.contextmanager
def _faults_elsewhere() -> Iterator[None]:
    """What environments raise is told with its own traceback, a worker's end with its last words: ours add nothing."""
    from parallel_envs.errors import EnvError, WorkerDied, WorkerTimeout

    try:
        yield
    except (EnvError, WorkerDied, WorkerTimeout) as error:
        for told in (*_traceback_of(error.__cause__), str(error), *getattr(error, "__notes__", ())):
            typer.echo(told.strip(), err=True)
        raise typer.Exit(1) from None


def _traceback_of(cause: BaseException | None) -> list[str]:
    from parallel_envs.errors import RemoteTraceback

    if isinstance(cause, RemoteTraceback):
        return [str(cause)]
    return [] if cause is None else ["".join(traceback.format_exception(cause))]


def _config_and_overrides(words: list[str]) -> tuple[Path | None, list[str]]:
    from parallel_envs.files import is_file

    files = [word for word in words if "=" not in word or is_file(word)]
    if len(files) > 1:
        raise typer.BadParameter(f"{' and '.join(files)} are two settings files. Give one; overrides are key=value.")
    return (Path(files[0]) if files else None), [word for word in words if word not in files]
