"""Results of a command: a table to read, notes below the table, and a JSON file to keep.

Every JSON file is `{"schema": 1, "command": ..., "machine": {...}, "settings": {...}, "rows": [...]}`. A row has the
fields of the command's row class. A runner without figures has a row, too.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from parallel_envs.bench import machine
from parallel_envs.bench.machine import MachineRow
from parallel_envs.bench.measure import Spread
from parallel_envs.bench.step import Row
from parallel_envs.bench.suggest import Trial
from parallel_envs.fitting_tables import FittingTable

SCHEMA = 1
_LEFT = {"how", "each", "bar", "meaning"}


@dataclass(frozen=True)
class Report:
    """Results of one command. `notes` are the lines below the table: missing libraries, failures, the verdict."""

    command: str
    settings: Mapping[str, object]
    rows: Sequence[Mapping[str, Any]]
    table: Table
    notes: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """Return the content of a JSON file."""
        return {
            "schema": SCHEMA,
            "command": self.command,
            "machine": machine.facts(),
            "settings": dict(self.settings),
            "rows": [dict(row) for row in self.rows],
        }

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.document(), indent=2) + "\n", encoding="utf-8")


def step_report(rows: Sequence[Row], settings: Mapping[str, object], title: str) -> Report:
    """Report steps per second of each runner, and our rate divided by its rate."""
    table = results_table(title, "", "how", "env steps/s", "quartiles", "ours / this")
    for row in rows:
        table.add_row(row.name, row.settings, *rate_cells(row.spread, lack_of(row)), ratio_cell(row.ours_to_this))
    return Report("step", settings, records(rows), table, notes_of({row.name: row for row in rows}))


def suggest_report(trials: Sequence[Trial], settings: Mapping[str, object], title: str) -> Report:
    """Report steps per second of each setting, and its rate divided by that of the plain loop."""
    table = results_table(title, "setting", "env steps/s", "quartiles", "/ in-process")
    for trial in trials:
        table.add_row(trial.setting.name, *rate_cells(trial.spread, "failed"), ratio_cell(trial.to_in_process))
    named = {trial.setting.name: trial for trial in trials}
    rows = [{"name": name, **dataclasses.asdict(trial)} for name, trial in named.items()]
    return Report("suggest", settings, rows, table, notes_of(named))


def machine_report(rows: Sequence[MachineRow], settings: Mapping[str, object]) -> Report:
    """Report the three figures of a machine with their meaning."""
    table = results_table("this machine", "", "measured", "quartiles", "meaning")
    for row in rows:
        each, unit = row.spread, f" {row.unit}".rstrip()
        quartiles = f"{each.lower_quartile:.1f} to {each.upper_quartile:.1f}"
        table.add_row(row.name, f"{each.median:.1f}{unit}", quartiles, row.meaning)
    return Report("machine", settings, records(rows), table)


def records(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in rows]


def results_table(title: str, *columns: str) -> Table:
    table = FittingTable(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column in _LEFT else "right")
    return table


def notes_of(rows: Mapping[str, Any]) -> list[str]:
    """Return one line for each missing library and each failed row."""
    missing = {name: getattr(row, "missing", None) for name, row in rows.items()}
    lines = [f"{name} is not installed: pip install {pip}" for name, pip in missing.items() if pip]
    return [*lines, *(f"{name} failed: {row.error}" for name, row in rows.items() if row.error)]


def lack_of(row: Any) -> str:
    return "not installed" if row.missing else "failed"


def rate_cells(spread: Spread | None, otherwise: str) -> tuple[str, str]:
    if spread is None:
        return (f"[yellow]{escape(otherwise)}[/yellow]", "")
    return (f"{spread.median:,.0f}", f"{spread.lower_quartile:,.0f} to {spread.upper_quartile:,.0f}")


def ratio_cell(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.2f} x"
