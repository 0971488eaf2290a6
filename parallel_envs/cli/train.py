"""`parallel-envs train`: train from a settings file, resume a run, or list all settings. `report`: show an outcome.

The list is read from the classes that check the settings: nothing about a setting is written down here.
"""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parallel_envs.checks import hint
from parallel_envs.cli.outputs import RARE, AsJson, ExitCode, json_text, plain_errors, stdout_kept_clean, trusted

if TYPE_CHECKING:
    from parallel_envs.settings import Field


_NARROWEST, _WIDEST = 40, 100
_FIRST_COLUMN = 28


def train(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIG.yaml] [key=value ...]", help="A settings file, and settings that replace others."
        ),
    ] = None,
    listed: Annotated[
        bool,
        typer.Option(
            "--list",
            help="Show settings with type, default and meaning: run, env, parallel, wandb, mlflow, trackio, ppo, dqn, "
            "sac.",
        ),
    ] = False,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Resume the run in this folder.")] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            rich_help_panel=RARE,
            help="With --resume: a module whose environments and writers the run's settings.yaml may name; give the "
            "option again for more. Without it only environments of this package and of known, installed families are "
            "made from that file.",
        ),
    ] = None,
    open_report: Annotated[
        bool,
        typer.Option("--open", help="At the end write a report into the run's folder, and open it (extra `report`)."),
    ] = False,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace",
            help="Write a timeline of the last minute of the run to its folder: trace.json, for ui.perfetto.dev.",
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train independent learners as a settings file says. The results are in the run's folder.

    Examples:
      parallel-envs train env=CartPole-v1 total_steps=20000 folder=runs/cartpole
      parallel-envs train --resume runs/cartpole total_steps=40000
      parallel-envs train --list ppo
    """
    from parallel_envs.errors import EnvError, MissingExtra, RemoteTraceback, UntrustedName, WorkerDied, WorkerTimeout
    from parallel_envs.extras import require
    from parallel_envs.files import is_file

    if listed:
        with plain_errors(MissingExtra):
            require("Training", "torch")
        print_settings(words or [])
        return
    modules = trusted(trust)
    files = [word for word in words or () if "=" not in word or is_file(word)]
    if len(files) > 1:
        raise typer.BadParameter(f"{' and '.join(files)} are two settings files. Give one; overrides are key=value.")
    config, overrides = Path(files[0]) if files else None, [word for word in words or () if word not in files]
    with plain_errors(OSError):  # a name that is too long
        is_folder = config is not None and config.is_dir()
    if resume is None and is_folder:
        raise typer.BadParameter(f"{config} is a folder. Give a settings file, or resume a run: --resume {config}.")
    if resume is None and config is None and not any(word.startswith("env=") for word in overrides):
        raise typer.BadParameter(
            "Give a settings file (CONFIG.yaml), settings (env=CartPole-v1 total_steps=100000), or a run to resume "
            "(--resume DIR)."
        )
    with plain_errors(MissingExtra):
        require("Training", "torch", "safetensors")
        if open_report:
            require("--open", "matplotlib")
    from parallel_envs.learners.algorithm import Diverged, NothingLearnt
    from parallel_envs.learners.checkpoint import BadCheckpoint
    from parallel_envs.learners.config import BadSettings
    from parallel_envs.learners.run_folder import BadRun, CheckpointNotSaved
    from parallel_envs.learners.train import begin, go_on

    mistakes = BadCheckpoint, BadRun, BadSettings, Diverged, OSError, MissingExtra, UntrustedName
    failed = plain_errors(NothingLearnt, CheckpointNotSaved, exit_code=ExitCode.WENT_WRONG)
    try:
        with plain_errors(*mistakes), failed, stdout_kept_clean(wanted=as_json):
            if resume is None:
                folder = begin(config, overrides, quiet=quiet, trace=trace)
            else:
                folder = go_on(resume, config, overrides, trust=modules, quiet=quiet, trace=trace)
    except (EnvError, WorkerDied, WorkerTimeout) as error:
        # The remote traceback and output are printed. Our own frames add nothing.
        cause, texts = error.__cause__, [str(error), *getattr(error, "__notes__", ())]
        if isinstance(cause, RemoteTraceback):
            texts.insert(0, str(cause))
        elif cause is not None:
            texts.insert(0, "".join(traceback.format_exception(cause)))
        for text in texts:
            typer.echo(text.strip(), err=True)
        raise typer.Exit(ExitCode.WENT_WRONG) from None
    if as_json:
        from parallel_envs.learners.outcomes import outcome_in

        with plain_errors(BadRun, OSError):
            typer.echo(json_text(outcome_in(folder)))
    else:
        typer.echo(str(folder))
    if open_report:
        from parallel_envs.cli.report import open_report_of

        with plain_errors(BadRun, OSError, exit_code=ExitCode.WENT_WRONG):
            open_report_of(folder)


# ---- the list of settings -------------------------------------------------------------------------------------------


def print_settings(names: Sequence[str]) -> None:
    """Print these sections of settings to stdout, or all sections. Raises BadParameter for an unknown name."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from parallel_envs.settings import Field, type_text

    sections = _sections()
    for name in names:
        if name not in sections:
            known = ", ".join(sections)
            raise typer.BadParameter(f"{name!r} is no section of settings. Choose from {known}.{hint(name, sections)}")
    console = Console(width=min(max(Console().width, _NARROWEST), _WIDEST))
    for name in dict.fromkeys(names or sections):
        place, fields = sections[name]
        table = Table(box=SIMPLE_HEAD, title=Text(f"{name}: {place}"), title_justify="left", padding=(0, 1, 0, 0))
        table.add_column("setting = default, type", width=_FIRST_COLUMN, overflow="fold")
        table.add_column("meaning", overflow="fold")
        for field in fields:
            default = " (required)"
            if (value := field.default) is not Field.required:
                default = f" = {json.dumps(list(value) if isinstance(value, tuple) else value)}"
            setting = f"{field.name}{default}\n  {type_text(field.hint, none='null')}"
            table.add_row(Text(setting), Text(field.text))
        console.print(table)


def _sections() -> dict[str, tuple[str, Sequence[Field]]]:
    """Return by section where its settings are in a file, and the settings."""
    import dataclasses

    from parallel_envs.learners.agent import configs_by_name
    from parallel_envs.learners.config import WRITER_BLOCKS, EnvSettings, ParallelBlock, TrainSettings
    from parallel_envs.learners.loops.loop import LoopOptions
    from parallel_envs.settings import fields_of, texts_of

    shared = texts_of(LoopOptions)  # a run's settings include these, without a text of their own
    of_runs = [
        field if field.text else dataclasses.replace(field, text=shared.get(field.name, ""))
        for field in fields_of(TrainSettings)
        if field.name not in EnvSettings.model_fields
    ]
    return {
        "run": ("at the top of a settings file", of_runs),
        "env": ("at the top of a settings file", fields_of(EnvSettings)),
        "parallel": ("in the block `parallel`", fields_of(ParallelBlock)),
        **{name: (f"in the block `writers.{name}`", fields_of(kind)) for name, kind in WRITER_BLOCKS.items()},
        **{
            name: (f"in the block `algorithm`, with `name: {name}`", fields_of(kind))
            for name, kind in configs_by_name().items()
        },
    }
