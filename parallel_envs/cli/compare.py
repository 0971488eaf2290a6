"""`parallel-envs compare`: two evaluations, or the policies of one evaluation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parallel_envs.cli.outputs import console, plain_errors

if TYPE_CHECKING:
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
    from parallel_envs.evaluation.comparison import cross_play, elo_ratings, pairings_of, policies_alone
    from parallel_envs.evaluation.statistics import comparable_missions
    from parallel_envs.evaluation.tables import comparison_table, cross_play_table

    with plain_errors(ValueError):
        one, tables = EvaluationResult.from_json(first), []
        if second is not None:
            other = EvaluationResult.from_json(second)
            for file, result in ((first, one), (second, other)):
                if len(names := policies_alone(result)) > 1:
                    raise ValueError(
                        f"{file} has several policies, each on its own: {', '.join(map(repr, names))}. Give that file "
                        "alone to compare them."
                    )
            tables = [comparison_table(_comparisons(one, other))]
        elif len(policies := policies_alone(one)) > 1:
            rows: dict[str, Comparison] = {}
            for policy in policies[1:]:
                found = _comparisons(one, one, policies[0], policy)
                rows |= {f"{policies[0]} - {policy}: {name}": comparison for name, comparison in found.items()}
            tables = [comparison_table(rows)]
        elif all(pairing.first == pairing.second for pairing in pairings_of(one)):
            raise ValueError("No two policies met in this evaluation. Give a second file, or evaluate with --versus.")
        else:  # separately for each environment, because returns have no common mean
            for group in comparable_missions(one):
                episodes = tuple(record for record in one.episodes if record.mission in group)
                if met := pairings_of(dataclasses.replace(one, episodes=episodes)):
                    tables.append(cross_play_table(cross_play(met), elo_ratings(met)))
    for table in tables:
        console().print(table)


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
