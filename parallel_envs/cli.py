"""The command `parallel-envs`.

Exit codes: 0 done, 1 it went wrong, 2 it cannot be done as asked. A command is a function here that reads what the
user said and leaves the work to the package; what it needs is imported when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

__all__ = ["app", "main", "train"]

app = typer.Typer(
    name="parallel-envs",
    no_args_is_help=True,
    add_completion=False,
    help="Many environments and many agents at once.",
    pretty_exceptions_enable=False,
)


@app.callback()
def _commands() -> None:
    """Keeps `train` a command of its own while it is the only one."""


@app.command()
def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(metavar="CONFIG.yaml [key=value ...]", help="Settings, and those to replace: seed=3."),
    ] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Go on with the run in this folder.")] = None,
) -> None:
    """Train independent learners as a settings file says. What comes of it is in the run's folder."""
    config, overrides = _config_and_overrides(words or [])
    with _plain_errors():
        from parallel_envs.learners.training import begin, go_on

        if resume is not None:
            folder = go_on(resume, config, overrides)
        elif config is not None:
            folder = begin(config, overrides)
        else:
            raise typer.BadParameter("Give a settings file (CONFIG.yaml), or a run to go on with (--resume DIR).")
    typer.echo(str(folder))


def _config_and_overrides(words: list[str]) -> tuple[Path | None, list[str]]:
    files = [word for word in words if "=" not in word]
    if len(files) > 1:
        raise typer.BadParameter(f"{' and '.join(files)} are two settings files. Give one; overrides are key=value.")
    return (Path(files[0]) if files else None), [word for word in words if "=" in word]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What the user can mend is said in plain words, without a traceback."""
    from parallel_envs.learners.checkpoints import BadCheckpoint
    from parallel_envs.learners.settings import BadSettings

    try:
        yield
    except (BadCheckpoint, BadSettings, FileExistsError, FileNotFoundError) as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(2) from None


def main() -> None:
    """The console script."""
    if "" not in sys.path:
        sys.path.insert(0, "")  # `package.module:factory` is looked for where the user is, as `python -m` does
    app()
