"""Reports of the benchmarks: one table, its notes and its JSON rows for each command."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.memory import Point
from benchmarks.rollouts import RolloutRow
from benchmarks.soak.model import Disturbance, Where
from benchmarks.soak.tally import RSS_BYTES_ALLOWED, Tally
from benchmarks.startup import StartRow
from benchmarks.syscalls import CallRow
from benchmarks.targets import Verdict
from benchmarks.zoo import OURS_EACH, OURS_FEW, ZooRow
from parallel_envs.bench.cli import Report, lack_of, notes_of, rate_cells, ratio_cell, records, results_table
from parallel_envs.bench.measure import Quartiles
from parallel_envs.testing.scripted import Fault

_COLOURS = {"PASS": "green", "FAIL": "bold red", "SKIP": "yellow"}


def rollouts_report(rows: Sequence[RolloutRow], settings: Mapping[str, object], title: str) -> Report:
    """Return the steps per second of each collector, and their ratio to the plain loop."""
    table = results_table(title, "work", "how", "collector", "env steps/s", "quartiles", "/ sequential")
    for row in rows:
        otherwise = "not installed" if row.missing else "failed"
        rates = rate_cells(row.spread, otherwise)
        table.add_row(row.work, row.settings, row.name, *rates, ratio_cell(row.to_sequential))
    return Report(
        "rollouts", settings, records(rows), table, notes_of({f"{row.work}, {row.name}": row for row in rows})
    )


def zoo_report(rows: Sequence[ZooRow], settings: Mapping[str, object], title: str) -> Report:
    """Return joint steps per second, the load of the calling process, and the ratio of our runners to each row."""
    ours = [name for name in (OURS_FEW, OURS_EACH) if any(row.name == name for row in rows)]
    over = [f"{row.settings} / this" for name in ours for row in rows if row.name == name]
    table = results_table(title, "", "how", "joint steps/s", "quartiles", "caller busy", *over)
    for row in rows:
        busy = "" if row.parent_share is None else f"{row.parent_share.median:.0%}"
        ratios = [ratio_cell(row.ours_to_this.get(name)) for name in ours]
        table.add_row(row.name, row.settings, *rate_cells(row.spread, lack_of(row)), busy, *ratios)
    notes = [f"{row.name}: dicts by agent take {row.batching.median:.1%} of the step" for row in rows if row.batching]
    return Report("zoo", settings, records(rows), table, [*notes, *notes_of({row.name: row for row in rows})])


def startup_report(rows: Sequence[StartRow], settings: Mapping[str, object], title: str) -> Report:
    """Return the milliseconds to open and to close."""
    table = results_table(title, "", "make and reset, ms", "quartiles", "close, ms", "/ gymnasium, fork")
    for row in rows:
        closed = "" if row.close_seconds is None else _milliseconds(row.close_seconds.median)
        ratio = "" if row.to_gymnasium is None else f"{row.to_gymnasium:.2f} x"
        table.add_row(row.name, *_time_cells(row.open_seconds), closed, ratio)
    return Report("startup", settings, records(rows), table, notes_of({row.name: row for row in rows}))


def syscalls_report(rows: Sequence[CallRow], settings: Mapping[str, object], title: str) -> Report:
    """Return the system calls per environment step."""
    table = results_table(title, "", "read and write", "poll, futex, ...", "each")
    for row in rows:
        each = ", ".join(f"{call} {count:.2f}" for call, count in row.by_name.items() if count >= 0.005)
        table.add_row(row.name, _count(row.read_write), _count(row.waiting), each)
    return Report("syscalls", settings, records(rows), table, notes_of({row.name: row for row in rows}))


def memory_report(points: Sequence[Point], settings: Mapping[str, object], title: str, verdict: str) -> Report:
    """Return the points and the verdict on their growth."""
    table = results_table(title, "env steps", "parent RSS, MiB", "open descriptors")
    for point in points:
        table.add_row(f"{point.steps:,}", f"{point.rss_bytes / 2**20:.2f}", str(point.num_descriptors))
    return Report("memory", settings, records(points), table, [verdict])


def bars_report(verdicts: Sequence[Verdict], settings: Mapping[str, object]) -> Report:
    """Return every bar with its measured figure."""
    table = results_table("bars", "work", "measured", "bar", "")
    for verdict in verdicts:
        bar, colour = verdict.bar, _COLOURS[verdict.outcome]
        outcome = f"[{colour}]{verdict.outcome}[/{colour}]"
        table.add_row(bar.work, _count(verdict.value), bar.aim, outcome)
    notes = [f"{verdict.bar.work}: {verdict.note}" for verdict in verdicts if verdict.note]
    return Report("bars", settings, [_verdict_record(verdict) for verdict in verdicts], table, notes)


def verdict_line(verdict: Verdict) -> str:
    """Return the line that is printed as soon as a verdict is known."""
    found = verdict.note or f"{_count(verdict.value)}, {verdict.bar.aim}"
    return f"{verdict.outcome}  {verdict.bar.work}: {found}"


def soak_report(tally: Tally, settings: Mapping[str, object]) -> Report:
    """Return the number of faults by kind and moment, and their consequences."""
    table = results_table("faults injected", "", *(where.value for where in Where), "all")
    kinds: list[Fault | Disturbance] = [*Fault, *Disturbance]
    rows = [_fault_record(tally, kind) for kind in kinds if any(tally.injected[where, kind] for where in Where)]
    for row in rows:
        table.add_row(*(str(cell or "") for cell in row.values()))
    return Report("soak", {**settings, "outcome": tally.outcome()}, rows, table, _soak_notes(tally))


def _fault_record(tally: Tally, fault: Fault | Disturbance) -> dict[str, Any]:
    """Return how often a fault was injected at each moment."""
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
    """Return a bar and its verdict as a flat dict."""
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


def _time_cells(spread: Quartiles | None) -> tuple[str, str]:
    if spread is None:
        return ("[yellow]failed[/yellow]", "")
    quartiles = f"{_milliseconds(spread.lower_quartile)} to {_milliseconds(spread.upper_quartile)}"
    return (_milliseconds(spread.median), quartiles)


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:,.0f}"


def _count(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
