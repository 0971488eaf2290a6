"""What a command found, as a table to read and as JSON to keep.

Every JSON file is `{"schema": 1, "command": ..., "machine": {...}, "settings": {...}, "rows": [...]}`. A row
has the fields of the command's row class, and a contestant without figures has a row all the same.
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
from parallel_envs.bench.bars import Verdict
from parallel_envs.bench.measure import Spread
from parallel_envs.bench.memory import Point
from parallel_envs.bench.rollouts import RolloutRow
from parallel_envs.bench.soak_replay import Disturbance, Where
from parallel_envs.bench.soak_tally import RSS_BYTES_ALLOWED, Tally
from parallel_envs.bench.startup import StartRow
from parallel_envs.bench.step import Row
from parallel_envs.bench.suggest import Trial
from parallel_envs.bench.syscalls import CallRow
from parallel_envs.bench.zoo import OURS_EACH, OURS_FEW, ZooRow
from parallel_envs.fitting_tables import FittingTable
from parallel_envs.testing.scripted import Fault

SCHEMA = 1
_LEFT = {"how", "each", "bar"}
_COLOURS = {"PASS": "green", "FAIL": "bold red", "SKIP": "yellow"}


@dataclass(frozen=True)
class Report:
    """One command's findings. `notes` stand under the table: what is missing, what failed, the verdict."""

    command: str
    settings: Mapping[str, object]
    rows: Sequence[Mapping[str, Any]]
    table: Table
    notes: Sequence[str] = ()

    def document(self) -> dict[str, Any]:
        """What goes into a JSON file."""
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
    """Steps per second, and ours over each."""
    table = _table(title, "", "how", "env steps/s", "quartiles", "ours / this")
    for row in rows:
        table.add_row(row.name, row.settings, *_rate_cells(row.spread, _lack(row)), _ratio(row.ours_to_this))
    return Report("step", settings, _records(rows), table, _notes({row.name: row for row in rows}))


def rollouts_report(rows: Sequence[RolloutRow], settings: Mapping[str, object], title: str) -> Report:
    """Steps per second of each collector, and over the plain loop."""
    table = _table(title, "work", "how", "collector", "env steps/s", "quartiles", "/ sequential")
    for row in rows:
        otherwise = "not installed" if row.missing else "failed"
        rates = _rate_cells(row.spread, otherwise)
        table.add_row(row.work, row.settings, row.name, *rates, _ratio(row.to_sequential))
    return Report("rollouts", settings, _records(rows), table, _notes({f"{row.work}, {row.name}": row for row in rows}))


def zoo_report(rows: Sequence[ZooRow], settings: Mapping[str, object], title: str) -> Report:
    """Joint steps per second, how busy the calling process was, and each of ours over this one."""
    ours = [name for name in (OURS_FEW, OURS_EACH) if any(row.name == name for row in rows)]
    over = [f"{row.settings} / this" for name in ours for row in rows if row.name == name]
    table = _table(title, "", "how", "joint steps/s", "quartiles", "caller busy", *over)
    for row in rows:
        busy = "" if row.parent_share is None else f"{row.parent_share.median:.0%}"
        ratios = [_ratio(row.ours_to_this.get(name)) for name in ours]
        table.add_row(row.name, row.settings, *_rate_cells(row.spread, _lack(row)), busy, *ratios)
    notes = [f"{row.name}: dicts by agent take {row.batching.median:.1%} of the step" for row in rows if row.batching]
    return Report("zoo", settings, _records(rows), table, [*notes, *_notes({row.name: row for row in rows})])


def suggest_report(trials: Sequence[Trial], settings: Mapping[str, object], title: str) -> Report:
    """Steps per second of each setting."""
    table = _table(title, "setting", "env steps/s", "quartiles", "/ in-process")
    for trial in trials:
        table.add_row(trial.setting.name, *_rate_cells(trial.spread, "failed"), _ratio(trial.to_in_process))
    named = {trial.setting.name: trial for trial in trials}
    rows = [{"name": name, **dataclasses.asdict(trial)} for name, trial in named.items()]
    return Report("suggest", settings, rows, table, _notes(named))


def startup_report(rows: Sequence[StartRow], settings: Mapping[str, object], title: str) -> Report:
    """Milliseconds to open and to close."""
    table = _table(title, "", "make and reset, ms", "quartiles", "close, ms", "/ gymnasium, fork")
    for row in rows:
        closed = "" if row.close_seconds is None else _milliseconds(row.close_seconds.median)
        ratio = "" if row.to_gymnasium is None else f"{row.to_gymnasium:.2f} x"
        table.add_row(row.name, *_time_cells(row.open_seconds), closed, ratio)
    return Report("startup", settings, _records(rows), table, _notes({row.name: row for row in rows}))


def syscalls_report(rows: Sequence[CallRow], settings: Mapping[str, object], title: str) -> Report:
    """Calls per environment step."""
    table = _table(title, "", "read and write", "poll, futex, ...", "each")
    for row in rows:
        each = ", ".join(f"{call} {count:.2f}" for call, count in row.by_name.items() if count >= 0.005)
        table.add_row(row.name, _count(row.read_write), _count(row.waiting), each)
    return Report("syscalls", settings, _records(rows), table, _notes({row.name: row for row in rows}))


def memory_report(points: Sequence[Point], settings: Mapping[str, object], title: str, verdict: str) -> Report:
    """The points, and whether they are flat."""
    table = _table(title, "env steps", "parent RSS, MiB", "open descriptors")
    for point in points:
        table.add_row(f"{point.steps:,}", f"{point.rss_bytes / 2**20:.2f}", str(point.num_descriptors))
    return Report("memory", settings, _records(points), table, [verdict])


def bars_report(verdicts: Sequence[Verdict], settings: Mapping[str, object]) -> Report:
    """Every bar with its measured figure."""
    table = _table("bars", "work", "measured", "bar", "")
    for verdict in verdicts:
        bar, colour = verdict.bar, _COLOURS[verdict.outcome]
        outcome = f"[{colour}]{verdict.outcome}[/{colour}]"
        table.add_row(bar.work, _count(verdict.value), bar.aim, outcome)
    notes = [f"{verdict.bar.work}: {verdict.note}" for verdict in verdicts if verdict.note]
    return Report("bars", settings, [_verdict_record(verdict) for verdict in verdicts], table, notes)


def verdict_line(verdict: Verdict) -> str:
    """A verdict as soon as it is there."""
    found = verdict.note or f"{_count(verdict.value)}, {verdict.bar.aim}"
    return f"{verdict.outcome}  {verdict.bar.work}: {found}"


def soak_report(tally: Tally, settings: Mapping[str, object]) -> Report:
    """The faults by kind and moment, and what came of them."""
    table = _table("faults injected", "", *(where.value for where in Where), "all")
    kinds: list[Fault | Disturbance] = [*Fault, *Disturbance]
    rows = [_fault_record(tally, kind) for kind in kinds if any(tally.injected[where, kind] for where in Where)]
    for row in rows:
        table.add_row(*(str(cell or "") for cell in row.values()))
    return Report("soak", {**settings, "outcome": tally.outcome()}, rows, table, _soak_notes(tally))


def _fault_record(tally: Tally, fault: Fault | Disturbance) -> dict[str, Any]:
    """How often a fault was injected at each moment."""
    counts = {where.value: tally.injected[where, fault] for where in Where}
    return {"fault": fault.value, **counts, "all": sum(counts.values())}


def _soak_notes(tally: Tally) -> list[str]:
    slowest, leaked = tally.slowest, ", ".join(f"{count} {name}" for name, count in tally.leaked.items())
    length = f"{tally.seconds:.0f} s{', then interrupted' if tally.interrupted else ''}"
    nearest = f"{slowest.name}, {slowest.seconds:.2f} s of {slowest.allowed:.2f} s"
    return [
        *tally.complaints,
        f"{length}: {tally.steps:,} rows in {tally.calls:,} calls of {tally.legs + tally.bad_legs} managers",
        f"faults injected: {tally.num_injected}, survived: {tally.survived}, restarts: {tally.restarts}",
        f"wrong rows: {tally.wrong}",
        f"calls that raised or hung: {tally.errors}",
        f"calls over their deadline: {tally.overdue} (nearest to it: {nearest})",
        f"late without a fault, on a busy machine: {tally.stalls} workers",
        f"left behind: {leaked or 'no process, thread, descriptor or shared memory'}",
        f"memory gained: {tally.rss_growth / 2**20:+.2f} MiB (allowed: {RSS_BYTES_ALLOWED / 2**20:g} MiB)",
        f"verdict: {'PASS' if tally.good else 'FAIL'}",
    ]


def _verdict_record(verdict: Verdict) -> dict[str, Any]:
    """A bar and what came of it, flat."""
    bar = verdict.bar
    return {
        "work": bar.work,
        "unit": bar.unit,
        "sense": bar.sense,
        "limit": bar.limit,
        "value": verdict.value,
        "outcome": verdict.outcome,
        "note": verdict.note,
    }


def _records(rows: Sequence[Any]) -> list[dict[str, Any]]:
    return [dataclasses.asdict(row) for row in rows]


def _table(title: str, *columns: str) -> Table:
    table = FittingTable(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 or column in _LEFT else "right")
    return table


def _notes(rows: Mapping[str, Any]) -> list[str]:
    """A line for each row that has something to explain."""
    missing = {name: getattr(row, "missing", None) for name, row in rows.items()}
    lines = [f"{name} is not installed: pip install {pip}" for name, pip in missing.items() if pip]
    return [*lines, *(f"{name} failed: {row.error}" for name, row in rows.items() if row.error)]


def _lack(row: Row | ZooRow) -> str:
    return "not installed" if row.missing else "failed"


def _rate_cells(spread: Spread | None, otherwise: str) -> tuple[str, str]:
    if spread is None:
        return (f"[yellow]{escape(otherwise)}[/yellow]", "")
    return (f"{spread.median:,.0f}", f"{spread.lower_quartile:,.0f} to {spread.upper_quartile:,.0f}")


def _time_cells(spread: Spread | None) -> tuple[str, str]:
    if spread is None:
        return ("[yellow]failed[/yellow]", "")
    quartiles = f"{_milliseconds(spread.lower_quartile)} to {_milliseconds(spread.upper_quartile)}"
    return (_milliseconds(spread.median), quartiles)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}"


def _ratio(spread: Spread | None) -> str:
    return "" if spread is None else f"{spread.median:.2f} x"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
