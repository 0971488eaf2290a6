"""Who met whom, and how it went: the cross-play matrix and Elo ratings.

    pairings = [Pairing("careful", "random", 3.0, 1.0), Pairing("random", "careful", 2.0, 2.0)]
    cross_play(pairings).returns      # how well each does beside each
    elo_ratings(pairings)             # one number each, from who did better than whom

A pairing is two policies in one episode. Where agents work together it tells how well two get on; where they play
against one another, who won.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from parallel_envs.evaluation.bootstrap import LEVEL, Interval
from parallel_envs.seeding import SeedTree

if TYPE_CHECKING:
    from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult

Array = npt.NDArray[Any]

AVERAGE = 1_000.0
"""The mean of all ratings."""
_SCALE = 400.0  # rating points that make the odds of winning ten times as high
_ITERATIONS, _SETTLED = 100, 1e-9
_RESAMPLES = 500


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two policies in one episode, and what each got."""

    first: str
    second: str
    first_return: float
    second_return: float

    @property
    def score(self) -> float:
        """Of the first: 1 for a win, a half for a draw, 0 for a loss."""
        return 0.5 + 0.5 * ((self.first_return > self.second_return) - (self.first_return < self.second_return))


def pairings_of(result: EvaluationResult) -> list[Pairing]:
    """All pairs of policies that met in the episodes that did not fail, with the mean return of each one's agents.

    Where all agents had one policy, it met itself.
    """
    return [pairing for record in result.episodes for pairing in _met_in(record)]


def _met_in(record: EpisodeRecord) -> list[Pairing]:
    names = dict.fromkeys(record.assignment.values())
    scores = {name: score for name in names if (score := record.score_of(name)) is not None}
    if len(scores) == 1 and len(record.assignment) > 1:
        return [Pairing(name, name, score, score) for name, score in scores.items()]
    return [Pairing(one, other, scores[one], scores[other]) for one, other in combinations(scores, 2)]


@dataclass(frozen=True, slots=True)
class CrossPlay:
    """A square table: `returns[row][column]` is the mean of what policy `row` got beside policy `column`."""

    policies: tuple[str, ...]
    returns: tuple[tuple[float | None, ...], ...]
    """None where the two never met."""
    counts: tuple[tuple[int, ...], ...]


@np.errstate(invalid="ignore", over="ignore")  # of infinite returns, which a file may have, nothing is a number
def cross_play(pairings: Iterable[Pairing]) -> CrossPlay:
    """The cross-play matrix. A policy beside itself stands on the diagonal."""
    met = list(pairings)
    policies = _policies(met)
    cells: dict[tuple[str, str], list[float]] = {}
    for pairing in met:
        both = pairing.first_return, pairing.second_return
        if pairing.first == pairing.second:
            cells.setdefault((pairing.first, pairing.first), []).append(sum(both) / 2)
        else:
            cells.setdefault((pairing.first, pairing.second), []).append(both[0])
            cells.setdefault((pairing.second, pairing.first), []).append(both[1])
    found = [[cells.get((row, column), []) for column in policies] for row in policies]
    return CrossPlay(
        policies,
        tuple(tuple(float(np.mean(cell)) if cell else None for cell in row) for row in found),
        tuple(tuple(map(len, row)) for row in found),
    )


@dataclass(frozen=True, slots=True)
class Rating:
    """A policy's strength: 400 points more make the odds of doing better ten times as high."""

    elo: float
    interval: Interval | None
    """95 %, by drawing the pairings anew."""
    games: int


@np.errstate(invalid="ignore", over="ignore")  # likewise
def elo_ratings(pairings: Iterable[Pairing], *, prior: float = 1.0, seed: int = 0) -> Mapping[str, Rating]:
    """Ratings from who did better than whom, the best first.

    They are the most likely ones given all results at once, so the order of the games does not matter, unlike with
    ratings that move after each game. A policy beside itself says nothing and is left out.

    Args:
        pairings: The games.
        prior: So many games that each policy is taken to have drawn against an average one: they keep the rating of
            one that has never lost finite. 0 for none, if nobody has won or lost everything.
        seed: Of the interval.
    """
    if not prior >= 0.0:
        raise ValueError(f"prior={prior} is not a number of games. Give 0 or more.")
    games = _Games.of([pairing for pairing in pairings if pairing.first != pairing.second])
    points = games.points()
    if prior == 0 and not _all_lost_to_all(points > 0):
        raise ValueError(
            "Some policies won or lost all their games against the others, so their ratings have no end. Give a prior "
            "above 0."
        )
    ratings = _fitted(points, prior)
    intervals = _intervals(games, prior, seed)
    played = (points + points.T).sum(axis=1)
    order = sorted(range(len(ratings)), key=lambda place: (-ratings[place], games.policies[place]))
    return {games.policies[i]: Rating(float(ratings[i]), intervals[i], round(float(played[i]))) for i in order}


def _policies(pairings: Sequence[Pairing]) -> tuple[str, ...]:
    return tuple(sorted({name for pairing in pairings for name in (pairing.first, pairing.second)}))


@dataclass(frozen=True, slots=True)
class _Games:
    """Pairings as columns: places in the list of policies, and scores of the first."""

    policies: tuple[str, ...]
    first: Array
    second: Array
    scores: Array

    @classmethod
    def of(cls, pairings: Sequence[Pairing]) -> _Games:
        policies = _policies(pairings)
        place = {name: index for index, name in enumerate(policies)}
        first = np.array([place[pairing.first] for pairing in pairings], int)
        second = np.array([place[pairing.second] for pairing in pairings], int)
        return cls(policies, first, second, np.array([pairing.score for pairing in pairings], float))

    def points(self, drawn: Array | slice = slice(None)) -> Array:
        """`points[a, b]`: what `a` has won against `b` in these games."""
        points = np.zeros((len(self.policies), len(self.policies)))
        np.add.at(points, (self.first[drawn], self.second[drawn]), self.scores[drawn])
        np.add.at(points, (self.second[drawn], self.first[drawn]), 1 - self.scores[drawn])
        return points


def _all_lost_to_all(beat: Array) -> bool:
    """Whether everybody lost to everybody, directly or through others: exactly then all ratings are finite."""
    reached = beat | np.eye(len(beat), dtype=bool)
    for middle in range(len(beat)):
        reached |= reached[:, middle, None] & reached[None, middle, :]
    return bool(reached.all())


def _fitted(points: Array, prior: float) -> Array:
    """The most likely ratings (Bradley and Terry's model), by Newton's method.

    A prior is games against an imagined player of strength 0. Without one only differences mean anything, which
    `anchor` says to the equations.
    """
    games, won = points + points.T, points.sum(axis=1) + prior / 2
    anchor = 0.0 if prior > 0 else 1.0
    strength = np.zeros(len(points))  # the logarithm of the odds
    for _ in range(_ITERATIONS):
        beaten, beats_average = _odds(strength[:, None] - strength[None, :]), _odds(strength)
        missing = won - (games * beaten).sum(axis=1) - prior * beats_average
        weights = games * beaten * (1 - beaten)
        curvature = np.diag(weights.sum(axis=1) + prior * beats_average * (1 - beats_average)) - weights + anchor
        step = np.linalg.solve(curvature, missing).clip(-1.0, 1.0)
        strength = strength + step
        if (np.abs(step) < _SETTLED).all():
            break
    centred = strength - (strength.mean() if len(strength) else 0.0)
    return np.asarray(AVERAGE + _SCALE / np.log(10) * centred)


def _odds(difference: Array) -> Array:
    """How likely a win is."""
    return np.asarray(1.0 / (1.0 + np.exp(-difference)))


def _intervals(games: _Games, prior: float, seed: int) -> list[Interval | None]:
    """None without a prior: among the draws are some in which somebody loses everything."""
    if prior == 0 or len(games.scores) < 2:
        return [None] * len(games.policies)
    generator = SeedTree(seed).child("elo").generator()
    draws = generator.integers(len(games.scores), size=(_RESAMPLES, len(games.scores)))
    drawn = np.stack([_fitted(games.points(draw), prior) for draw in draws])
    low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    return [(float(one), float(other)) for one, other in zip(low, high, strict=True)]
