"""`parallel-envs bench`."""

from __future__ import annotations

import typer


def bench(context: typer.Context) -> None:
    """Measure speed beside other libraries, and find the best settings for an environment on this machine.

    Example: parallel-envs bench suggest CartPole-v1
    """
    from parallel_envs.bench.cli import app

    app(context.args or ["--help"], prog_name="parallel-envs bench")
