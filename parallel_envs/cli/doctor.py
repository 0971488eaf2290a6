"""`parallel-envs doctor`: what would go wrong with worker processes on this machine."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from parallel_envs.cli.outputs import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parallel_envs.cli.machine import Finding, Machine

_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[bold red]problem[/]"}


def doctor(
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, help="The number of workers that you want. Default: one for each core."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print facts and findings as JSON.")] = False,
) -> None:
    """Look at this machine: what would go wrong with worker processes here, and what to set.

    Starts a few workers by each start method. Exit code 1 if something would go wrong.

    Example: parallel-envs doctor --workers 64
    """
    from parallel_envs.cli.machine import findings, look
    from parallel_envs.engine import START_METHODS

    machine = look(START_METHODS)
    found = findings(machine, workers or machine.usable_cores)
    if as_json:
        document = {"findings": list(map(dataclasses.asdict, found)), "machine": dataclasses.asdict(machine)}
        typer.echo(json.dumps(document, indent=2))
    else:
        _show(machine, found)
    if any(finding.level == "problem" for finding in found):
        raise typer.Exit(1)


def _show(machine: Machine, found: Sequence[Finding]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in found:
        advice = f"\n[bold]{escape(finding.advice)}[/]" if finding.advice else ""
        table.add_row(_MARKS[finding.level], escape(finding.subject), escape(finding.fact) + advice)
    shown, problems = console(), sum(finding.level == "problem" for finding in found)
    shown.print(table)
    installed = [f"{name}=={version}" for name, version in machine.versions.items() if version is not None]
    missing = [name for name, version in machine.versions.items() if version is None]
    lines = [f"installed: {', '.join(installed)}", *([f"not installed: {', '.join(missing)}"] if missing else [])]
    lines.append("Worker processes work here." if not problems else f"Problems: {problems}.")
    for line in lines:
        shown.print(line, markup=False, highlight=False)
