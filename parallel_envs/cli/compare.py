"""`parallel-envs compare`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parallel_envs.cli.deliveries import console
from parallel_envs.cli.mistakes import plain_errors

if TYPE_CHECKING:
    from rich.table import Table

    from parallel_envs.evaluation import EvaluationResult
    from parallel_envs.evaluation.comparison import Comparison


def compare(
    first: Annotated[Path, typer.Argument(metavar="FIRST.json", help="What `eval --output` wrote.")],
    second: Annotated[Path | None, typer.Argument(metavar="SECOND.json", help="The same missions and seed.")] = None,
) -> None:
    """Compare two evaluations, episode by episode, or the policies that met in one.

    An episode that both played from the same seed is a pair: the difference is first minus second, `better` counts
    pairs that the first has won, and `p` is how often chance alone makes such a difference. Of one evaluation: the
    first policy and each other, if each played on its own; if they shared the agents (--versus), what each policy got
    beside each other, and Elo ratings from who did better than whom.

    Example: parallel-envs compare careful.json careless.json
    """
    from parallel_envs.evaluation import EvaluationResult

    with plain_errors(ValueError):
        one = EvaluationResult.from_json(first)
        if second is not None:
            other = EvaluationResult.from_json(second)
            for file, result in ((first, one), (second, other)):
                if len(named := _one_by_one(result)) > 1:
                    raise ValueError(
                        f"{file} has several policies, each on its own: {', '.join(map(repr, named))}. Give that file "
                        "alone to compare them, or evaluate one policy for each file."
                    )
            found = [_rows_table(_side_by_side(one, other))]
        elif len(policies := _one_by_one(one)) > 1:
            rows: dict[str, Comparison] = {}
            for policy in policies[1:]:
                pairs = _side_by_side(one, one, policies[0], policy)
                rows |= {f"{policies[0]} - {policy}: {name}": found for name, found in pairs.items()}
            found = [_rows_table(rows)]
        else:
            found = list(_met(one))
    for table in found:
        console().print(table)


def _one_by_one(result: EvaluationResult) -> list[str]:
    """The policies that played on their own, each beside others that did, too."""
    return list(dict.fromkeys(record.alone for record in result.episodes if record.alone))


def _side_by_side(
    first: EvaluationResult,
    second: EvaluationResult,
    first_policy: str | None = None,
    second_policy: str | None = None,
) -> dict[str, Comparison]:
    """A comparison for each mission, and one for those of an environment together."""
    from parallel_envs.evaluation.comparison import compare as compared
    from parallel_envs.evaluation.comparison import paired_scores
    from parallel_envs.evaluation.tables import like_parts

    ours, theirs = paired_scores(first, second, first_policy, second_policy)
    rows = {name: compared({name: ours[name]}, {name: theirs[name]}) for name in ours}
    for title, part in like_parts(first):
        if len(both := [name for name in part.missions if name in ours]) > 1:
            scores = ({name: one[name] for name in both} for one in (ours, theirs))
            rows[title] = compared(*scores)
    return rows


def _rows_table(rows: dict[str, Comparison]) -> Table:
    from parallel_envs.evaluation.tables import comparison_table

    return comparison_table(rows)


def _met(result: EvaluationResult) -> Iterator[Table]:
    """Cross-play and ratings; for missions of each environment by themselves, as their returns have no common mean."""
    from parallel_envs.evaluation.pairings import cross_play, elo_ratings, pairings_of
    from parallel_envs.evaluation.statistics import like_missions
    from parallel_envs.evaluation.tables import cross_play_table

    pairings = pairings_of(result)
    if all(pairing.first == pairing.second for pairing in pairings):
        raise ValueError(
            "No two policies met in this evaluation. Give a second one, or evaluate with several policies (-p, -p), "
            "which meet with --versus."
        )
    for group in like_missions(result):
        part = dataclasses.replace(result, episodes=tuple(one for one in result.episodes if one.mission in group))
        if met := pairings_of(part):
            yield cross_play_table(cross_play(met), elo_ratings(met))
