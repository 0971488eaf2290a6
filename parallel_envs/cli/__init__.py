"""The command `parallel-envs`.

Exit codes: 0 done, 1 it went wrong, 2 it cannot be done as asked. A command is a function in a file of its own, which
reads the options and leaves the work to the package. Modules that it needs are imported when it is called, so that
`--help` stays quick.
"""

from __future__ import annotations

import io
import sys

import typer

from parallel_envs.cli.compare import compare
from parallel_envs.cli.doctor import doctor
from parallel_envs.cli.evaluate import EvalCommand, evaluate
from parallel_envs.cli.report import report
from parallel_envs.cli.sweep import sweep
from parallel_envs.cli.tasks import tasks
from parallel_envs.cli.train import train
from parallel_envs.cli.watch import watch
from parallel_envs.commands import CommandLine

__all__ = [
    "EvalCommand",
    "app",
    "bench",
    "compare",
    "doctor",
    "evaluate",
    "main",
    "report",
    "sweep",
    "tasks",
    "train",
    "watch",
]

app = CommandLine(
    name="parallel-envs",
    help="""Many environments and many agents at once.

    Examples:
      parallel-envs train env=CartPole-v1 total_steps=20000 folder=runs/cartpole
      parallel-envs eval --mission CartPole-v1 --policy runs/cartpole
      parallel-envs train --help
    """,
    epilog="Exit codes: 0 done, 1 it went wrong, 2 it cannot be done as asked, 130 ended by Ctrl-C.",
)


def bench(context: typer.Context) -> None:
    """Measure speed, and find the best settings for an environment on this machine."""
    from parallel_envs.bench.cli import app as bench_app

    bench_app(context.args or ["--help"], prog_name="parallel-envs bench")


app.command()(train)
app.command(no_args_is_help=True)(sweep)
app.command("eval", cls=EvalCommand, no_args_is_help=True)(evaluate)
app.command(no_args_is_help=True)(compare)
app.command(no_args_is_help=True)(report)
app.command(no_args_is_help=True)(watch)
app.command(no_args_is_help=True)(tasks)
app.command()(doctor)
app.command(add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(bench)


def main() -> None:
    """Run the console script."""
    if "" not in sys.path:
        # `package.module:factory` is searched in the working folder, too. Installed modules come first: a file
        # `torch.py` in a folder from a stranger must not take the place of torch.
        sys.path.append("")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # an encoding without ± prints a question mark instead of raising
    app(prog_name="parallel-envs")
