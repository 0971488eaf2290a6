"""Tables of an evaluation, a comparison and cross-play, for terminals and text files."""

from __future__ import annotations

import dataclasses
import io
import math
import re
from collections.abc import Iterator, Mapping

from rich.console import Console, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from parallel_envs.evaluation.comparison import Comparison, CrossPlay, Rating
from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult, Failure
from parallel_envs.evaluation.statistics import (
    Interval,
    comparable_missions,
    per_mission,
    per_mission_and_policy,
    per_policy,
)
from parallel_envs.terminal import FittingTable

_COLUMNS = ("n", "return per agent", "IQM", "95 %", "success", "failed")
_MAX_HEADERS = 30  # letters of the policies' names in the heads of columns, together
_MAX_FAILURES = 5  # kinds of failure that have a line each
_MAX_DECIMALS = 6
_MAX_TEXT = 200  # letters of an error's text


# ---- an evaluation --------------------------------------------------------------------------------------------------


def tables(result: EvaluationResult) -> Iterator[RenderableType]:
    """Yield a table with a row for each policy in each mission, then texts on failures and missing episodes."""
    cells = per_mission_and_policy(result)
    sections = []  # each with its name, its rows, and whether a line is drawn below
    for mission, total in per_mission(result).items():
        rows = [(policy, cell) for (of, policy), cell in cells.items() if of == mission]
        sections.append((mission, rows or [("", total)], True))  # the policies may not be known
    sections += [(name, list(per_policy(part).items()), False) for name, part in comparable_parts(result)]
    is_late = any(record.late for record in result.episodes)
    table = FittingTable()
    for name in ("mission", "policy", *_COLUMNS, *(["late"] if is_late else [])):
        table.add_column(name, justify="left" if name in ("mission", "policy") else "right")
    for name, rows, ends_section in sections:
        for place, (policy, summary) in enumerate(rows):
            table.add_row(
                escape(name if place == 0 else ""),
                escape(f"{policy} (mixed)" if policy and summary.mixed else policy),
                str(summary.n),
                _mean_text(summary.mean, summary.standard_error),
                number(summary.iqm),
                _interval_text(summary.iqm_interval),
                "-" if summary.success_rate is None else f"{summary.success_rate:.0%}",
                str(summary.failed),
                *([str(summary.late)] if is_late else []),
                end_section=ends_section and place == len(rows) - 1,
            )
    yield table
    yield from _remarks(result)


def text_table(result: EvaluationResult, width: int) -> str:
    """Return the tables as plain text of at most `width` columns."""
    console = Console(file=io.StringIO(), width=width, color_system=None)
    with console.capture() as captured:
        console.print(*tables(result), sep="\n")
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def comparable_parts(result: EvaluationResult) -> Iterator[tuple[str, EvaluationResult]]:
    """Yield the parts of a result that have a common mean, several missions each, and their names in tables."""
    groups = comparable_missions(result)
    for group in groups:
        if len(group) > 1:
            name = "all missions"
            if len(groups) > 1:  # then the groups are by environment
                name = f"all of {result.settings['missions'][group[0]]['env']}"
            episodes = tuple(record for record in result.episodes if record.mission in group)
            missing = tuple(key for key in result.missing if key[0] in group)
            yield name, dataclasses.replace(result, episodes=episodes, missing=missing)


def _remarks(result: EvaluationResult) -> Iterator[Text]:
    """Yield the texts below the table: failures, mixed rows, late actions, strategies, missing episodes."""
    if result.failures:
        yield _failures_text(result)
    if any(record.mixed for record in result.episodes):
        yield Text("mixed: several policies shared the agents; a row is what the agents of one of them got.")
    if late := sum(record.late for record in result.episodes):
        yield Text(f"{late:,} action{'s were' if late > 1 else ' was'} late, and default actions took their place.")
    single = result.settings.get("strategy") or {}
    requested = [str(result.settings.get("parallel_policy", "sequential")), *map(str, single.values())]
    if any(name != "sequential" for name in requested):
        lines = []
        for mission, strategies in result.strategies.items():
            agents_by: dict[str, list[str]] = {}
            for agent, name in strategies.items():
                agents_by.setdefault(name, []).append(str(agent))
            text = "; ".join(f"{name}: {', '.join(agents)}" for name, agents in agents_by.items())
            why = result.why.get(mission)
            lines.append(f"Strategies in {mission}: {text}." + (f" {why}" if why else ""))
        yield Text("\n".join(lines))
    if result.missing:
        played = len(result.episodes)
        yield Text(f"Not complete: {played} of {played + len(result.missing)} episodes were played.")


def _failures_text(result: EvaluationResult) -> Text:
    """Return a line for each kind of failure, the most frequent first, with one of its episodes."""
    kinds: dict[tuple[str, str, str], list[tuple[EpisodeRecord, Failure]]] = {}
    for record in result.failures:
        if (failure := record.failure) is not None:
            # Failures are alike if they differ in numbers only, such as those of processes.
            kind = failure.kind, failure.error_type, re.sub(r"\d+", "", failure.message)
            kinds.setdefault(kind, []).append((record, failure))
    lines = [f"{len(result.failures)} of {len(result.episodes)} episodes failed:"]
    for alike in sorted(kinds.values(), key=len, reverse=True)[:_MAX_FAILURES]:
        record, failure = alike[0]
        text = " ".join(failure.message.split())
        text = text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} ..."
        others = f", and {len(alike) - 1} more" if len(alike) > 1 else ""
        place = ", ".join(part for part in (f"episode {record.episode}", failure.where) if part)
        lines.append(f"  {record.mission}, {place}{others}: {failure.error_type}: {text}")
    if len(kinds) > _MAX_FAILURES:
        lines.append(f"  and {len(kinds) - _MAX_FAILURES} other kinds of failure")
    return Text("\n".join(lines))


# ---- comparisons ----------------------------------------------------------------------------------------------------


def comparison_table(comparisons: Mapping[str, Comparison]) -> Table:
    """Return a table with a row for each comparison, by its name."""
    table = FittingTable()
    table.add_column("mission")
    for name in ("n", "difference", "95 %", "better", "equal", "worse", "p"):
        table.add_column(name, justify="right")
    for name, found in comparisons.items():
        table.add_row(
            escape(name),
            str(found.n),
            _mean_text(found.mean_difference, found.standard_error),
            _interval_text(found.interval),
            *map(str, (found.wins, found.ties, found.losses)),
            number(found.p_value),
        )
    return table


def cross_play_table(found: CrossPlay, ratings: Mapping[str, Rating]) -> Table:
    """Return a table of the mean return of each row's policy beside each column's policy, and of the row's rating."""
    table = FittingTable()
    table.add_column("beside")
    short: dict[str, str] = {}  # columns have numbers where the names are too long
    if sum(map(len, found.policies)) > _MAX_HEADERS:
        short = {policy: f"#{place}" for place, policy in enumerate(found.policies, 1)}
    for policy in found.policies:
        table.add_column(short.get(policy, escape(policy)), justify="right")
    table.add_column("Elo", justify="right")
    table.add_column("95 %", justify="right")
    for policy, returns in zip(found.policies, found.returns, strict=True):
        rating = ratings.get(policy)
        elo = ("-", "-") if rating is None else (number(rating.elo), _interval_text(rating.interval))
        name = f"{short[policy]}: {policy}" if policy in short else policy
        table.add_row(escape(name), *map(number, returns), *elo)
    return table


# ---- numbers --------------------------------------------------------------------------------------------------------


def number(value: float | None) -> str:
    """Return a number with four digits, or a dash if it is not known."""
    if value is None:
        return "-"
    return f"{value:.0f}" if 1_000 <= abs(value) < 1e7 else f"{value:.4g}"


def _interval_text(interval: Interval | None) -> str:
    return "-" if interval is None else f"{number(interval[0])} to {number(interval[1])}"


def _mean_text(mean: float | None, error: float | None) -> str:
    """Return a mean and its standard error, to the second digit of the error."""
    if mean is None or error is None or not 0.0 < error < math.inf:
        return number(mean) + (" ± 0" if error == 0.0 else "")
    decimals = min(max(0, 1 - math.floor(math.log10(error))), _MAX_DECIMALS)
    return f"{mean:.{decimals}f} ± {error:.{decimals}f}"
