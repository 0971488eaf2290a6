"""`parallel-envs compare`: two evaluations, or the policies of one evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parallel_envs.cli.outputs import console, plain_errors

if TYPE_CHECKING:
    from rich.table import Table

    from parallel_envs.evaluation import EvaluationResult
    from parallel_envs.evaluation.comparison import Comparison


def compare(
    first: Annotated[Path, typer.Argument(metavar="FIRST.json", help="A file that `eval --output` wrote.")],
    second: Annotated[
        Path | None, typer.Argument(metavar="SECOND.json", help="A file with the same missions and seed.")
    ] = None,
) -> None:
    """Compare two evaluations, episode by episode, or the policies of one evaluation.

    An episode that both played from the same seed is a pair: the difference is first minus second, `better` counts
    pairs that the first has won, and `p` is how often such a difference arises by chance. Of one evaluation: the
    first policy and each other, if each played on its own; if they shared the agents (--versus), the returns of each
    policy beside each other, and Elo ratings from who did better than whom.

    Example: parallel-envs compare careful.json careless.json
    """
    from parallel_envs.evaluation import EvaluationResult
    from parallel_envs.evaluation.tables import comparison_table

    with plain_errors(ValueError):
        one = EvaluationResult.from_json(first)
        if second is not None:
            other = EvaluationResult.from_json(second)
            for file, result in ((first, one), (second, other)):
                if len(names := _policies_alone(result)) > 1:
                    raise ValueError(
                        f"{file} has several policies, each on its own: {', '.join(map(repr, names))}. Give that file "
                        "alone to compare them."
                    )
            tables = [comparison_table(_comparisons(one, other))]
        elif len(policies := _policies_alone(one)) > 1:
            rows: dict[str, Comparison] = {}
            for policy in policies[1:]:
                found = _comparisons(one, one, policies[0], policy)
                rows |= {f"{policies[0]} - {policy}: {name}": comparison for name, comparison in found.items()}
            tables = [comparison_table(rows)]
        else:
            tables = list(_cross_play_tables(one))
    for table in tables:
        console().print(table)


def _policies_alone(result: EvaluationResult) -> list[str]:
    """Return the policies that each played on its own."""
    return list(dict.fromkeys(record.alone for record in result.episodes if record.alone))


def _comparisons(
    first: EvaluationResult, second: EvaluationResult, first_policy: str | None = None, second_policy: str | None = None
) -> dict[str, Comparison]:
    """Return a comparison for each mission, and one for all missions of an environment."""
    from parallel_envs.evaluation.comparison import compare as compare_scores
    from parallel_envs.evaluation.comparison import paired_scores
    from parallel_envs.evaluation.tables import comparable_parts

    ours, theirs = paired_scores(first, second, first_policy, second_policy)
    rows = {name: compare_scores({name: ours[name]}, {name: theirs[name]}) for name in ours}
    for title, part in comparable_parts(first):
        if len(both := [name for name in part.missions if name in ours]) > 1:
            scores = ({name: one[name] for name in both} for one in (ours, theirs))
            rows[title] = compare_scores(*scores)
    return rows


def _cross_play_tables(result: EvaluationResult) -> Iterator[Table]:
    """Yield cross-play and ratings, separately for each environment, because returns have no common mean."""
    from parallel_envs.evaluation.comparison import cross_play, elo_ratings, pairings_of
    from parallel_envs.evaluation.statistics import comparable_missions
    from parallel_envs.evaluation.tables import cross_play_table

    if all(pairing.first == pairing.second for pairing in pairings_of(result)):
        raise ValueError("No two policies met in this evaluation. Give a second file, or evaluate with --versus.")
    for group in comparable_missions(result):
        part = dataclasses.replace(result, episodes=tuple(one for one in result.episodes if one.mission in group))
        if met := pairings_of(part):
            yield cross_play_table(cross_play(met), elo_ratings(met))
