"""`parallel-envs report`: the outcome of a training run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from parallel_envs.cli.mistakes import plain_errors


def report(folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a run.")]) -> None:
    """Show the outcome of a training run: how it ended, and each agent's episodes, last mean return and best.

    Example: parallel-envs report runs/spread
    """
    from parallel_envs.errors import MissingExtra
    from parallel_envs.extras import require

    with plain_errors(MissingExtra):
        require("A report of a run", "torch", "safetensors")
    from parallel_envs.learners.outcomes import outcome_in
    from parallel_envs.learners.run_folder import BadRun

    with plain_errors(BadRun, OSError):
        found = outcome_in(folder)
    typer.echo(found.told())
