"""What an evaluation has found, as tables to read."""

from __future__ import annotations

import dataclasses
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from parallel_envs.evaluation.bootstrap import Interval
from parallel_envs.evaluation.comparison import Comparison
from parallel_envs.evaluation.pairings import CrossPlay, Rating
from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult, Failure
from parallel_envs.evaluation.statistics import (
    Summary,
    like_missions,
    per_mission,
    per_mission_and_policy,
    per_policy,
)
from parallel_envs.fitting_tables import FittingTable

_NUM_NAMES = 2  # columns: of the mission and of the policy
_COLUMNS = ("n", "return per agent", "IQM", "95 %", "success", "failed")
_MOST_HEADERS = 30  # letters of the policies' names that may head columns, together
_MOST_FAILURES = 5  # kinds of failure that are told one by one
_MOST_DECIMALS = 6
_MOST_TEXT = 200  # letters of an error's text


def tables(result: EvaluationResult) -> Iterator[RenderableType]:
    """A table with a row for each policy in each mission, and below it what failed or is missing."""
    yield _figures(result)
    yield from remarks(result)


def remarks(result: EvaluationResult) -> Iterator[Text]:
    """What is to be said below the table: what failed, was late or is missing."""
    if result.failures:
        yield _failures(result)
    if any(record.mixed for record in result.episodes):
        yield Text("mixed: several policies shared the agents; a row is what the agents of one of them got.")
    if late := sum(record.late for record in result.episodes):
        yield Text(f"{late:,} action{'s were' if late > 1 else ' was'} late, and default actions took their place.")
    if any(name != "sequential" for name in _asked_strategies(result)):
        yield Text("\n".join(_strategy_line(result, mission) for mission in result.strategies))
    if result.missing:
        played = len(result.episodes)
        yield Text(f"Not complete: {played} of {played + len(result.missing)} episodes were played.")


def _asked_strategies(result: EvaluationResult) -> list[str]:
    """Return the strategies that were asked for, for all agents and for single ones."""
    single = result.settings.get("strategy") or {}
    return [str(result.settings.get("parallel_policy", "sequential")), *map(str, single.values())]


def _strategy_line(result: EvaluationResult, mission: str) -> str:
    """Return by which strategy each agent of a mission acted, and why where that was measured."""
    by_strategy: dict[str, list[str]] = {}
    for agent, name in result.strategies[mission].items():
        by_strategy.setdefault(name, []).append(str(agent))
    told = "; ".join(f"{name}: {', '.join(agents)}" for name, agents in by_strategy.items())
    why = result.why.get(mission)
    return f"Strategies in {mission}: {told}." + (f" {why}" if why else "")


def figures_of(result: EvaluationResult) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The names of the columns, and the rows: mission, policy, figures."""
    is_late = any(record.late for record in result.episodes)
    heads = ("mission", "policy", *_COLUMNS, *(("late",) if is_late else ()))
    late = [(str(summary.late),) if is_late else () for _, _, summary, _ in _rows(result)]
    rows = [
        (mission, f"{policy} (mixed)" if policy and summary.mixed else policy, *_cells(summary))
        for mission, policy, summary, _ in _rows(result)
    ]
    return heads, [(*row, *more) for row, more in zip(rows, late, strict=True)]


def _figures(result: EvaluationResult) -> Table:
    table, (heads, rows) = FittingTable(), figures_of(result)
    for place, name in enumerate(heads):
        table.add_column(name, justify="left" if place < _NUM_NAMES else "right")
    for row, (_, _, _, ends_section) in zip(rows, _rows(result), strict=True):
        table.add_row(*map(escape, row), end_section=ends_section)
    return table


def comparison_table(comparisons: Mapping[str, Comparison]) -> Table:
    """A row for each comparison, by its name."""
    table = FittingTable()
    table.add_column("mission")
    for name in ("n", "difference", "95 %", "better", "equal", "worse", "p"):
        table.add_column(name, justify="right")
    for name, found in comparisons.items():
        table.add_row(
            escape(name),
            str(found.n),
            _mean(found.mean_difference, found.standard_error),
            _interval(found.interval),
            *map(str, (found.wins, found.ties, found.losses)),
            number(found.p_value),
        )
    return table


def cross_play_table(found: CrossPlay, ratings: Mapping[str, Rating]) -> Table:
    """What the policy of a row got beside that of a column, and the row's rating."""
    table = FittingTable()
    table.add_column("beside")
    numbers = _numbers(found.policies)
    for policy in found.policies:
        table.add_column(numbers.get(policy, escape(policy)), justify="right")
    table.add_column("Elo", justify="right")
    table.add_column("95 %", justify="right")
    for policy, returns in zip(found.policies, found.returns, strict=True):
        rating = ratings.get(policy)
        elo = ("-", "-") if rating is None else (number(rating.elo), _interval(rating.interval))
        named = f"{numbers[policy]}: {policy}" if policy in numbers else policy
        table.add_row(escape(named), *map(number, returns), *elo)
    return table


def _numbers(policies: Sequence[str]) -> dict[str, str]:
    """What columns are headed with where the policies' names are too long for that; empty where they are not."""
    if sum(map(len, policies)) <= _MOST_HEADERS:
        return {}
    return {policy: f"#{place}" for place, policy in enumerate(policies, 1)}


def _interval(interval: Interval | None) -> str:
    return "-" if interval is None else f"{number(interval[0])} to {number(interval[1])}"


def _rows(result: EvaluationResult) -> Iterator[tuple[str, str, Summary, bool]]:
    """Mission, policy, figures, and whether a line is drawn below."""
    missions, cells = per_mission(result), per_mission_and_policy(result)
    for mission in missions:
        own = [(policy, cell) for (of, policy), cell in cells.items() if of == mission]
        shown = own or [("", missions[mission])]  # nothing is known of who played
        for place, (policy, summary) in enumerate(shown):
            yield mission if place == 0 else "", policy, summary, place == len(shown) - 1
    for name, part in like_parts(result):
        for place, (policy, summary) in enumerate(per_policy(part).items()):
            yield name if place == 0 else "", policy, summary, False


def like_parts(result: EvaluationResult) -> Iterator[tuple[str, EvaluationResult]]:
    """Give the parts of a result that have a common mean, several missions each, and what tables call them."""
    groups = like_missions(result)
    for group in groups:
        if len(group) > 1:
            name = "all missions" if len(groups) == 1 else f"all of {_env_of(result, group[0])}"
            episodes = tuple(record for record in result.episodes if record.mission in group)
            missing = tuple(key for key in result.missing if key[0] in group)
            yield name, dataclasses.replace(result, episodes=episodes, missing=missing)


def _env_of(result: EvaluationResult, mission: str) -> str:
    return str(result.settings["missions"][mission]["env"])  # where there is more than one group, they are by env


def _cells(summary: Summary) -> tuple[str, ...]:
    return (
        str(summary.n),
        _mean(summary.mean, summary.standard_error),
        number(summary.iqm),
        _interval(summary.iqm_interval),
        "-" if summary.success_rate is None else f"{summary.success_rate:.0%}",
        str(summary.failed),
    )


def _mean(mean: float | None, error: float | None) -> str:
    """The mean and its error, to the second figure of the error."""
    if mean is None or error is None or not 0.0 < error < math.inf:
        return number(mean) + (" ± 0" if error == 0.0 else "")
    decimals = min(max(0, 1 - math.floor(math.log10(error))), _MOST_DECIMALS)
    return f"{mean:.{decimals}f} ± {error:.{decimals}f}"


def number(value: float | None) -> str:
    """Four figures, as many as anybody compares; a dash for what is not known."""
    if value is None:
        return "-"
    return f"{value:.0f}" if 1_000 <= abs(value) < 1e7 else f"{value:.4g}"


def _failures(result: EvaluationResult) -> Text:
    """Failures of one kind in one line, the most frequent first, with an episode to look at."""
    kinds = Counter(_kind(record) for record in result.failures)
    first = {_kind(record): record for record in reversed(result.failures)}
    lines = [_line(first[kind], count) for kind, count in kinds.most_common(_MOST_FAILURES)]
    if len(kinds) > _MOST_FAILURES:
        lines.append(f"  and {len(kinds) - _MOST_FAILURES} other kinds of failure")
    return Text("\n".join([f"{len(result.failures)} of {len(result.episodes)} episodes failed:", *lines]))


def _kind(record: EpisodeRecord) -> tuple[str, str, str]:
    """What makes failures alike: all but numbers, such as those of processes."""
    failure = _failure(record)
    return failure.kind, failure.error_type, re.sub(r"\d+", "", failure.message)


def _line(record: EpisodeRecord, count: int) -> str:
    failure = _failure(record)
    text = " ".join(failure.message.split())
    text = text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]} ..."
    others = f", and {count - 1} more" if count > 1 else ""
    place = ", ".join(part for part in (f"episode {record.episode}", failure.where) if part)
    return f"  {record.mission}, {place}{others}: {failure.error_type}: {text}"


def _failure(record: EpisodeRecord) -> Failure:
    assert record.failure is not None  # asked of failures only
    return record.failure
