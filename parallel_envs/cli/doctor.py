"""`parallel-envs doctor`: what this machine lets workers do."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from parallel_envs.cli.deliveries import console

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.table import Table

    from parallel_envs.cli.diagnosis import Finding
    from parallel_envs.cli.machine import Machine

_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[bold red]problem[/]"}


def doctor(
    workers: Annotated[
        int | None,
        typer.Option("--workers", "-w", min=1, help="How many workers you want; one a core if not given."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print facts and findings as JSON.")] = False,
) -> None:
    """Look at this machine: what would go wrong with worker processes here, and what to set.

    Starts a few workers in each way there is. Exit code 1 if something would go wrong.

    Example: parallel-envs doctor --workers 64
    """
    from parallel_envs.cli.diagnosis import findings
    from parallel_envs.cli.machine import look
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
    shown, problems = console(), sum(finding.level == "problem" for finding in found)
    shown.print(_table(found))
    shown.print(_versions(machine), markup=False, highlight=False)
    verdict = "Nothing stands in the way of worker processes." if not problems else f"Problems: {problems}."
    shown.print(verdict, markup=False, highlight=False)


def _table(found: Sequence[Finding]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in found:
        advice = f"\n[bold]{escape(finding.advice)}[/]" if finding.advice else ""
        table.add_row(_MARKS[finding.level], escape(finding.subject), escape(finding.fact) + advice)
    return table


def _versions(machine: Machine) -> str:
    there = [f"{name}=={version}" for name, version in machine.versions.items() if version is not None]
    absent = [name for name, version in machine.versions.items() if version is None]
    return f"installed: {', '.join(there)}" + (f"\nnot installed: {', '.join(absent)}" if absent else "")
