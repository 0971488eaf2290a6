"""`parallel-envs compare`: two evaluations, or the policies of one evaluation."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parallel_envs.cli.outputs import AsJson, console, json_text, plain_errors

if TYPE_CHECKING:
    from parallel_envs.evaluation import EvaluationResult
    from parallel_envs.evaluation.comparison import Comparison


def compare(
    first: Annotated[Path, typer.Argument(metavar="FIRST.json", help="A file that `eval --output` wrote.")],
    second: Annotated[
        Path | None, typer.Argument(metavar="SECOND.json", help="A file with the same missions and seed.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Compare two evaluations, episode by episode, or the policies of one evaluation.

    An episode that both played from the same seed is a pair: the difference is first minus second, `better` counts
    pairs that the first has won, and `p` is how often such a difference arises by chance. Of one evaluation: the
    first policy and each other, if each played on its own; if they shared the agents (--versus), the returns of each
    policy beside each other, and Elo ratings.

    Examples:
      parallel-envs compare results.json
      parallel-envs compare results.json --json
      parallel-envs compare trained.json random.json
    """
    from parallel_envs.evaluation import EvaluationResult
    from parallel_envs.evaluation.comparison import Comparison, cross_play, elo_ratings, pairings_of, policies_alone
    from parallel_envs.evaluation.statistics import comparable_missions
    from parallel_envs.evaluation.tables import comparison_table, cross_play_table

    with plain_errors(ValueError):
        one, found, met_in = EvaluationResult.from_json(first), list[tuple[str, str, str, Comparison]](), []
        if second is not None:
            other = EvaluationResult.from_json(second)
            for file, result in ((first, one), (second, other)):
                if len(names := policies_alone(result)) > 1:
                    raise ValueError(
                        f"{file} has several policies, each on its own: {', '.join(map(repr, names))}. Give that file "
                        "alone to compare them."
                    )
            found = [(str(first), str(second), *row) for row in _comparisons(one, other).items()]
        elif len(policies := policies_alone(one)) > 1:
            for policy in policies[1:]:
                found += [(policies[0], policy, *row) for row in _comparisons(one, one, policies[0], policy).items()]
        elif all(pairing.first == pairing.second for pairing in pairings_of(one)):
            raise ValueError("No two policies met in this evaluation. Give a second file, or evaluate with --versus.")
        else:  # separately for each environment, because returns have no common mean
            for group in comparable_missions(one):
                episodes = tuple(record for record in one.episodes if record.mission in group)
                if met := pairings_of(dataclasses.replace(one, episodes=episodes)):
                    met_in.append((group, cross_play(met), elo_ratings(met)))
    if as_json:
        cross = [{"missions": group, **dataclasses.asdict(table), "ratings": elo} for group, table, elo in met_in]
        pairs = [
            {"first": ours, "second": theirs, "mission": mission, **dataclasses.asdict(figures)}
            for ours, theirs, mission, figures in found
        ]
        typer.echo(json_text({"comparisons": pairs, "cross_play": cross}))
        return
    rows = {mission if second else f"{ours} - {theirs}: {mission}": figures for ours, theirs, mission, figures in found}
    for table in [comparison_table(rows)] if rows else [cross_play_table(table, elo) for _, table, elo in met_in]:
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
