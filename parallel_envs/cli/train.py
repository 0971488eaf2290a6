"""`parallel-envs train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parallel_envs.cli.mistakes import plain_errors


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONFIG.yaml [key=value ...]", help="Settings, and those to replace: seed=3."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the run in this folder.")] = None,
) -> None:
    """Train independent learners as a settings file says. What comes of it is in the run's folder.

    Example: parallel-envs train examples/simple_spread.yaml seed=1 algorithm.learning_rate=0.001
    """
    config, overrides = _config_and_overrides(words or [])
    from parallel_envs.learners.brain import Diverged
    from parallel_envs.learners.checkpoints import BadCheckpoint
    from parallel_envs.learners.runs import BadRun
    from parallel_envs.learners.settings import BadSettings

    with plain_errors(BadCheckpoint, BadRun, BadSettings, Diverged, OSError):
        from parallel_envs.learners.training import begin, go_on

        if resume is not None:
            folder = go_on(resume, config, overrides)
        elif config is not None:
            folder = begin(config, overrides)
        else:
            raise typer.BadParameter("Give a settings file (CONFIG.yaml), or a run to go on with (--resume DIR).")
    typer.echo(str(folder))


def _config_and_overrides(words: list[str]) -> tuple[Path | None, list[str]]:
    files = [word for word in words if "=" not in word or Path(word).is_file()]
    if len(files) > 1:
        raise typer.BadParameter(f"{' and '.join(files)} are two settings files. Give one; overrides are key=value.")
    return (Path(files[0]) if files else None), [word for word in words if word not in files]
