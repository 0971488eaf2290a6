"""`parallel-envs sweep`: search for good settings, as a table, as JSON, and as sections of a report's page."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast, get_args

import typer

from parallel_envs.cli.outputs import RARE, AsJson

if TYPE_CHECKING:
    from parallel_envs.cli.report_page import Section
    from parallel_envs.learners.sweep import SweepResult

_MOST_ROWS = 20  # of the table on the terminal
_NUMBERS = int | float


def sweep(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG.yaml key=low..high ...",
            help="A settings file and what to search: low..high, log:low..high or a,b,c. `key=value`: a setting that "
            "all trials share.",
        ),
    ] = None,
    trials: Annotated[int | None, typer.Option(metavar="N", help="The number of trials, all in all.")] = None,
    metric: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The metric at the end of a run. `return` (the mean over agents; the default), `return/AGENT`, "
            "`loss/AGENT`, `evaluation/total` (the default for meta-RL runs), ...",
        ),
    ] = None,
    minimize: Annotated[bool, typer.Option("--minimize", help="Search for a low value of the metric.")] = False,
    jobs: Annotated[
        int, typer.Option(metavar="J", help="Trials at a time. They share the cores, and the workers.")
    ] = 1,
    seeds: Annotated[int, typer.Option(metavar="K", help="Runs of each trial, with seeds of their own.")] = 1,
    folder: Annotated[Path | None, typer.Option(metavar="DIR", help="The folder of the sweep.")] = None,
    resume: Annotated[Path | None, typer.Option(metavar="DIR", help="Continue the sweep in this folder.")] = None,
    sampler: Annotated[
        str, typer.Option(metavar="NAME", rich_help_panel=RARE, help="How settings are chosen: tpe or random.")
    ] = "tpe",
    pruner: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            rich_help_panel=RARE,
            help="Which trials end early: median (behind half of the others) or none.",
        ),
    ] = "median",
    as_json: AsJson = False,
    output: Annotated[
        Path | None, typer.Option(metavar="FILE.html", help="Write a page with trials and curves (extra `report`).")
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="MODULE",
            rich_help_panel=RARE,
            help="With --resume: a module whose environments the sweep's folder may name.",
        ),
    ] = None,
) -> None:
    """Search for good settings: train many times, with settings that Optuna chooses.

    Examples:
      parallel-envs sweep examples/cartpole.yaml algorithm.learning_rate=log:1e-4..1e-2 --trials 20
      parallel-envs sweep examples/cartpole.yaml algorithm.activation=tanh,relu --trials 6 --jobs 2
      parallel-envs sweep --resume runs/cartpole_sweep --trials 40
    """
    from parallel_envs.checks import choice
    from parallel_envs.cli.outputs import ExitCode, json_text, plain_errors, trusted
    from parallel_envs.errors import MissingExtra, UntrustedName
    from parallel_envs.evaluation.evaluate import check_writable
    from parallel_envs.evaluation.records import BadEvaluation
    from parallel_envs.extras import as_argument, require, shell_command
    from parallel_envs.files import is_file, write_text

    modules = trusted(trust)
    files = [word for word in words or () if "=" not in word or is_file(word)]
    with plain_errors(MissingExtra, BadEvaluation):
        require("A search of settings", "optuna", "torch", "safetensors")
        if output is not None:
            require("A report as a page", "matplotlib")
            check_writable(output)
    from parallel_envs.learners.config import BadSettings
    from parallel_envs.learners.meta.config import is_meta
    from parallel_envs.learners.run_folder import BadRun
    from parallel_envs.learners.sweep import (
        BEST,
        PrunerName,
        SamplerName,
        Sweep,
        SweepSettings,
        begin_sweep,
        check_trust,
        is_sweep,
    )
    from parallel_envs.settings import settings_in

    for name, number in (("--trials", trials), ("--jobs", jobs), ("--seeds", seeds)):
        if number is not None and number < 1:
            raise typer.BadParameter(f"{name} {number} is too small. Give at least 1.")
    with plain_errors(ValueError, words={"sampler": "--sampler", "pruner": "--pruner"}):
        choice("sampler", sampler, get_args(SamplerName))
        choice("pruner", pruner, get_args(PrunerName))
    with plain_errors(BadSettings, BadRun, MissingExtra, OSError, UntrustedName):
        if resume is not None:
            if words or metric or minimize or folder or seeds != 1:
                raise typer.BadParameter("With --resume the sweep has its settings: only --trials, --jobs may change.")
            if not is_sweep(resume):
                raise BadRun(f"{resume} holds no sweep: there is no file sweep.yaml in it.")
            check_trust(resume, modules)
            place, again = resume, True
        else:
            if len(files) != 1 or trials is None:
                raise typer.BadParameter("Give one settings file (CONFIG.yaml) and --trials N, or --resume DIR.")
            kind = is_meta(settings_in(files[0], BadSettings))
            wanted = SweepSettings(
                words=tuple(word for word in words or () if word not in files),
                metric=metric or ("evaluation/total" if kind else "return"),
                minimize=minimize,
                trials=trials,
                seeds=seeds,
                sampler=cast(SamplerName, sampler),
                pruner=cast(PrunerName, pruner),
            )
            place, again = begin_sweep(files[0], wanted, folder)
        search = Sweep(place, jobs, lambda text: typer.echo(text, err=True), trials)
        go_on = shell_command("parallel-envs", "parallel_envs", f"sweep --resume {as_argument(place)} --jobs {jobs}")
        typer.echo(f"{'Going on with the sweep' if again else 'Sweep'} in {place}; if it is ended: {go_on}", err=True)
        try:
            result = search.run()
        except KeyboardInterrupt:
            typer.echo(f"Ended by Ctrl-C. Trials that were running go on from their checkpoints: {go_on}", err=True)
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        if output is not None:
            from parallel_envs.cli.report import page

            write_text(output, page([place]))
    if as_json:
        typer.echo(json_text(result.described()))
    else:
        print_trials(result)
    if not result.ranked:
        typer.echo("No trial has ended with a value: see the reasons above, and the logs in the folder.", err=True)
        raise typer.Exit(ExitCode.WENT_WRONG)
    train = shell_command("parallel-envs", "parallel_envs", f"train {as_argument(place / BEST)}")
    typer.echo(f"Best settings: {place / BEST}\nNext:\n  {train}", err=True)
    if output is not None:
        typer.echo(f"Written: {output}", err=True)


def print_trials(result: SweepResult) -> None:
    """Print the trials, the best one first."""
    from rich.text import Text

    from parallel_envs.cli.outputs import console
    from parallel_envs.terminal import FittingTable

    order = "lowest" if result.settings.minimize else "highest"
    table = FittingTable("state", title=f"{result.settings.metric}, {order} first", title_justify="left")
    table.add_column("trial", justify="right")
    table.add_column(result.settings.metric, justify="right")
    for space in result.spaces:
        table.add_column(space.key, justify="right")
    table.add_column("seconds", justify="right")
    rest = [one for one in result.trials if one not in result.ranked]
    for one in [*result.ranked, *rest][:_MOST_ROWS]:
        cells = [str(one.number), _cell(one.value), *(_cell(one.settings.get(space.key)) for space in result.spaces)]
        table.add_row(Text(one.state), *(Text(cell) for cell in cells), _cell(one.seconds))
    shown = console()
    shown.print(table)
    if (more := len(result.trials) - _MOST_ROWS) > 0:
        shown.print(f"and {more} more trials", markup=False, highlight=False)
    for one in rest:
        if one.state == "failed":
            shown.print(f"trial {one.number} failed: {one.reason}", markup=False, highlight=False, soft_wrap=True)


def _cell(value: Any) -> str:
    return "-" if value is None else f"{value:.4g}" if isinstance(value, float) else str(value)


# ---- sections of a page ----------------------------------------------------------------------------------------------


def sweep_sections(result: SweepResult, name: str) -> Iterator[Section]:
    """Yield the headings and contents of a sweep in the page of `parallel-envs report`."""
    from parallel_envs.cli.report_page import COLOURS, Section, literal, new_figure, picture, table

    metric, keys = result.settings.metric, [space.key for space in result.spaces]
    heads = ["trial", "state", metric, *keys, "seconds", "reason"]
    ordered = [*result.ranked, *(one for one in result.trials if one not in result.ranked)]
    rows = [
        [
            f"{one.number}",
            one.state,
            one.value,
            *(_plain(one.settings.get(key)) for key in keys),
            one.seconds,
            one.reason,
        ]
        for one in ordered
    ]
    trials = table(f"{name}: trials, the best first", heads, rows)
    shown = [one for one in result.trials if one.value is not None]
    if not shown:
        yield Section(f"Sweep: {name}", trials)
        return
    colours = {"complete": COLOURS[0], "pruned": COLOURS[1]}

    def points(axes: Any, place: dict[int, float]) -> None:
        for state, colour in colours.items():
            own = [one for one in shown if one.state == state]
            axes.plot([place[one.number] for one in own], [one.value for one in own], "o", color=colour, alpha=0.7,
                      label=state if own else None)  # fmt: skip
        axes.set_ylabel(literal(metric))

    figure, axes = new_figure()
    points(axes, {one.number: one.number for one in shown})
    best: list[float] = []
    done = [one for one in shown if one.state == "complete"]
    for one in done:
        pick = min if result.settings.minimize else max
        best.append(pick([*best[-1:], float(one.value or 0.0)]))
    axes.step([one.number for one in done], best, where="post", color=COLOURS[2], label="best so far")
    axes.set_xlabel("trial")
    axes.locator_params(axis="x", integer=True)
    axes.legend(frameon=False, fontsize=8, labelcolor=axes.xaxis.label.get_color())
    text = f"best {best[-1]:.4g}" if best else "no complete trial"
    yield Section(f"Sweep: {name}", picture(figure, f"{metric} by trial", text) + trials)
    pictures = []
    for space in result.spaces:
        figure, axes = new_figure()
        if space.choices:
            labels = [literal(str(_plain(one))) for one in space.choices]
            where = {one.number: float(space.choices.index(one.settings[space.key])) for one in shown}
            axes.set_xticks(range(len(labels)), labels)
        else:
            where = {one.number: float(one.settings[space.key]) for one in shown}
            axes.set_xscale("log" if space.log else "linear")
            if space.whole and not space.log:
                axes.locator_params(axis="x", integer=True)
        points(axes, where)
        axes.set_xlabel(literal(space.key))
        values = [float(one.value or 0.0) for one in done]
        text = f"{len(shown)} trials" + (f", median {statistics.median(values):.4g}" if values else "")
        pictures.append(picture(figure, f"{metric} by {space.key}", text))
    yield Section(f"{name}: {metric} by setting", "".join(pictures))


def _plain(value: Any) -> Any:
    """Return a value as a cell of a table shows it."""
    return value if isinstance(value, _NUMBERS) and not isinstance(value, bool) else json.dumps(value).strip('"')
