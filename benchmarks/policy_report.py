"""What `bench policies` found, as a table and as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.policies import PolicyRow
from parallel_envs.bench.measure import Spread
from parallel_envs.bench.report import Report
from parallel_envs.fitting_tables import FittingTable

_COLUMNS = ("work", "strategy", "a turn, us", "quartiles", "us an agent", "x sequential", "x the best other")


def policies_report(rows: Sequence[PolicyRow], settings: Mapping[str, object], title: str) -> Report:
    """What a turn takes, and how many times as fast as the sequential strategy that is."""
    table = FittingTable(title=title, title_justify="left", title_style="bold")
    for number, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if number < 2 else "right", no_wrap=number < 2)
    for row in rows:
        table.add_row(row.work, row.name, *_times(row), _ratio(row.to_sequential), _ratio(row.to_best))
    return Report(
        "policies", settings, [_record(row) for row in rows], table, [note for row in rows for note in _notes(row)]
    )


def _record(row: PolicyRow) -> dict[str, Any]:
    return {**dataclasses.asdict(row), "agent_microseconds": row.agent_microseconds}


def _times(row: PolicyRow) -> tuple[str, str, str]:
    if row.turn is None or row.agent_microseconds is None:
        return "[yellow]not installed[/yellow]" if row.missing else "[yellow]failed[/yellow]", "", ""
    lower, upper = row.turn.lower_quartile * 1e6, row.turn.upper_quartile * 1e6
    return f"{row.turn.median * 1e6:,.0f}", f"{lower:,.0f} to {upper:,.0f}", f"{row.agent_microseconds:,.1f}"


def _ratio(ratio: Spread | None) -> str:
    return "" if ratio is None else f"{ratio.median:.2f}"


def _notes(row: PolicyRow) -> list[str]:
    """What is to be explained: what is missing, what failed, what `auto` chose."""
    notes = [f"{row.work} needs: pip install {row.missing}"] if row.missing else []
    notes += [f"{row.work}, {row.name} failed: {row.error}"] if row.error else []
    return [*notes, *([f"{row.work}: auto chose {row.choice}"] if row.choice else [])]
