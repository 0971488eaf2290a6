"""`parallel-envs compare`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parallel_envs.cli.deliveries import console
from parallel_envs.cli.mistakes import plain_errors

if TYPE_CHECKING:
    from rich.table import Table

    from parallel_envs.evaluation import EvaluationResult

_ALL = "all missions"


def compare(
    first: Annotated[Path, typer.Argument(metavar="FIRST.json", help="What `eval --output` wrote.")],
    second: Annotated[Path | None, typer.Argument(metavar="SECOND.json", help="The same missions and seed.")] = None,
) -> None:
    """Compare two evaluations, episode by episode, or the policies that met in one.

    An episode that both played from the same seed is a pair: the difference is first minus second, `better` counts
    pairs that the first has won, and `p` is how often chance alone makes such a difference. Of one evaluation: what
    each policy got beside each other, and Elo ratings from who did better than whom.

    Example: parallel-envs compare careful.json careless.json
    """
    from parallel_envs.evaluation import EvaluationResult

    with plain_errors(ValueError):
        one = EvaluationResult.from_json(first)
        found = _met(one) if second is None else _side_by_side(one, EvaluationResult.from_json(second))
    console().print(found)


def _side_by_side(first: EvaluationResult, second: EvaluationResult) -> Table:
    from parallel_envs.evaluation.comparison import compare as compared
    from parallel_envs.evaluation.comparison import paired_scores
    from parallel_envs.evaluation.tables import comparison_table

    ours, theirs = paired_scores(first, second)
    rows = {name: compared({name: ours[name]}, {name: theirs[name]}) for name in ours}
    return comparison_table({**rows, _ALL: compared(ours, theirs)} if len(rows) > 1 else rows)


def _met(result: EvaluationResult) -> Table:
    from parallel_envs.evaluation.pairings import cross_play, elo_ratings, pairings_of
    from parallel_envs.evaluation.tables import cross_play_table

    pairings = pairings_of(result)
    if all(pairing.first == pairing.second for pairing in pairings):
        raise ValueError(
            "No two policies met in this evaluation. Give a second one, or evaluate with several policies (-p, -p)."
        )
    return cross_play_table(cross_play(pairings), elo_ratings(pairings))
