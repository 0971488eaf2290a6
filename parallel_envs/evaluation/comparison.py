"""Comparison of policies: paired differences with a p-value, the cross-play matrix, and Elo ratings.

An episode that both policies played from the same seed is a pair. An episode that is harder than others lowers both
of its scores and not their difference, so pairs need far fewer episodes than a comparison of two averages.

A pairing is two policies that share an episode. Where agents work together, it shows how well the two cooperate; where
they play against one another, which one won.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.checks import hint, is_one_of, suggests_keywords
from parallel_envs.evaluation.records import EvaluationResult, plain
from parallel_envs.evaluation.statistics import LEVEL, Interval, bootstrap_interval, comparable_missions, standard_error
from parallel_envs.seeding import SeedTree

Array = npt.NDArray[Any]

_MOST_EXACT = 12  # up to so many pairs, all choices of signs are counted: 4,096
_FLIPS = 9_999  # random choices of signs, if there are more pairs
_ROUNDING = 1e-12  # relative: sums of the same numbers in another order count as equal
_ADVICE = "Evaluate both with equal missions and max_steps."


# ---- paired differences ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The first policy beside the second, episode by episode: differences are first minus second."""

    n: int
    mean_difference: float | None
    standard_error: float | None
    interval: Interval | None  # the 95 % interval of the mean difference, by a bootstrap within each mission
    wins: int
    ties: int
    losses: int
    p_value: float | None
    """How often a difference this large arises by chance, if either policy could have had either score of a pair."""


@np.errstate(invalid="ignore", over="ignore")  # a file may have infinite returns; their figures are NaN
def compare(
    first: Mapping[Any, Sequence[float]], second: Mapping[Any, Sequence[float]], *, seed: int = 0
) -> Comparison:
    """Compare scores by mission; scores with equal indices belong to one episode.

    Raises ValueError if there is no common mission, or if a mission has different numbers of scores.
    """
    strata = []
    for mission in (mission for mission in first if mission in second):
        ours, theirs = np.asarray(first[mission], float), np.asarray(second[mission], float)
        if len(ours) != len(theirs):
            raise ValueError(f"Mission {mission!r} has {len(ours)} episodes of the first, {len(theirs)} of the second.")
        strata.append(ours - theirs)
    if not strata and (first or second):
        names = (", ".join(map(str, one)) or "none" for one in (first, second))
        raise ValueError(f"The two have no mission in common: {' beside '.join(names)}. {_ADVICE}")
    pooled = np.concatenate([np.zeros(0), *strata])
    return Comparison(
        n=len(pooled),
        mean_difference=float(pooled.mean()) if len(pooled) else None,
        standard_error=standard_error(strata),
        interval=bootstrap_interval(strata, lambda samples: np.asarray(samples.mean(axis=-1)), seed=seed),
        wins=int((pooled > 0).sum()),
        ties=int((pooled == 0).sum()),
        losses=int((pooled < 0).sum()),
        p_value=sign_flip_p_value(pooled, seed=seed) if len(pooled) else None,
    )


def sign_flip_p_value(differences: npt.ArrayLike, *, seed: int = 0) -> float:
    """Return the two-sided p-value of a mean difference among all choices of the differences' signs.

    Exact for up to 12 differences. For more, 9,999 choices are drawn, and the observed one is counted with them.
    """
    array = np.asarray(differences, float)
    is_drawn = len(array) > _MOST_EXACT
    if is_drawn:
        generator = SeedTree(seed).child("sign flips").generator()
        signs = np.asarray(1.0 - 2.0 * generator.integers(2, size=(_FLIPS, len(array))))
    else:
        numbers = np.arange(1 << len(array))[:, None]
        signs = np.asarray(1.0 - 2.0 * ((numbers >> np.arange(len(array))) & 1))
    sums = np.abs(signs @ array)
    at_least = sums >= abs(array.sum()) * (1 - _ROUNDING)
    return float((at_least.sum() + is_drawn) / (len(sums) + is_drawn))


@suggests_keywords
def compare_results(
    first: EvaluationResult,
    second: EvaluationResult,
    *,
    first_policy: str | None = None,
    second_policy: str | None = None,
    seed: int = 0,
) -> Comparison:
    """Compare two evaluations by the episodes that both played to the end from the same seed.

    With `first_policy` or `second_policy`, the returns of that policy's agents are compared; otherwise the returns of
    all agents. Both may be one evaluation, in which two policies met, or which has several policies, each on its own.

    Missions of different environments have no common mean difference: then there are only counts.
    """
    ours, theirs = paired_scores(first, second, first_policy, second_policy)
    found = compare(ours, theirs, seed=seed)
    common = [group for group in comparable_missions(first) if set(group) & ours.keys()]
    if len(common) < 2:
        return found
    return dataclasses.replace(found, mean_difference=None, standard_error=None, interval=None, p_value=None)


def paired_scores(
    first: EvaluationResult, second: EvaluationResult, first_policy: str | None = None, second_policy: str | None = None
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Return the arguments of `compare`: by mission the scores of both, episode by episode.

    Raises ValueError if there is no pair, or if a name stands for two missions, or if episodes had different lengths.
    """
    ours, theirs = _scores("first", first, first_policy), _scores("second", second, second_policy)
    common = [key for key in ours if key in theirs]
    if not common:
        raise ValueError(
            "No episode was played to its end by both from the same seed. Give the same missions and seed."
        )
    missions = dict.fromkeys(mission for mission, _ in common)
    settings = [plain(result.settings) for result in (first, second)]
    for name in missions:
        one, other = (each.get("missions", {}).get(name) for each in settings)
        if None not in (one, other) and one != other:
            raise ValueError(f"The mission {name!r} is {one} in the first and {other} in the second. {_ADVICE}")
    one, other = (each.get("max_steps") for each in settings)
    if None not in (one, other) and one != other:
        raise ValueError(f"Episodes have up to {one} steps in the first and {other} in the second. {_ADVICE}")
    by_mission = [
        {name: [scores[key] for key in common if key[0] == name] for name in missions} for scores in (ours, theirs)
    ]
    return by_mission[0], by_mission[1]


def policies_alone(result: EvaluationResult) -> list[str]:
    """Return the policies that each played on its own."""
    return list(dict.fromkeys(record.alone for record in result.episodes if record.alone))


def _scores(name: str, result: Any, policy: Any) -> dict[tuple[str, int], float]:
    """Return the scores of the episodes that did not fail, by mission and seed. `name`: the argument in errors."""
    if not isinstance(result, EvaluationResult):
        raise TypeError(f"{name}={result!r} is not an EvaluationResult. Give what `evaluate` returned.")
    alone = policies_alone(result)
    if policy is None and len(alone) > 1:
        raise ValueError(f"{name} has several policies, each on its own: {', '.join(alone)}. Give {name}_policy=...")
    known = {one for record in result.episodes for one in record.assignment.values()}
    if policy is not None and not is_one_of(policy, known):
        raise ValueError(f"{name}_policy={policy!r} played in no episode of {sorted(known)}.{hint(policy, known)}")
    found = {}
    for record in result.episodes:
        score = record.score if policy is None else record.score_of(policy)
        if score is not None:  # policies that played on their own have an episode each from the same seed
            found[record.mission, record.seed] = score
    return found


# ---- cross-play -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Pairing:
    """Two policies in one episode, and the return of each."""

    first: str
    second: str
    first_return: float
    second_return: float

    @property
    def score(self) -> float:
        """The score of the first: 1 for a win, a half for a draw, 0 for a loss."""
        return 0.5 + 0.5 * ((self.first_return > self.second_return) - (self.first_return < self.second_return))


def pairings_of(result: EvaluationResult) -> list[Pairing]:
    """Return all pairs of policies in the episodes that did not fail, with the mean return of each policy's agents.

    If all agents had one policy, the policy is paired with itself.
    """
    found = []
    for record in result.episodes:
        names = dict.fromkeys(record.assignment.values())
        scores = {name: score for name in names if (score := record.score_of(name)) is not None}
        if len(scores) == 1 and len(record.assignment) > 1:
            found += [Pairing(name, name, score, score) for name, score in scores.items()]
        else:
            found += [Pairing(one, other, scores[one], scores[other]) for one, other in combinations(scores, 2)]
    return found


@dataclass(frozen=True, slots=True)
class CrossPlay:
    """A square table: `returns[row][column]` is the mean return of policy `row` beside policy `column`."""

    policies: tuple[str, ...]
    returns: tuple[tuple[float | None, ...], ...]  # None where the two never met
    counts: tuple[tuple[int, ...], ...]


@np.errstate(invalid="ignore", over="ignore")  # a file may have infinite returns; their figures are NaN
def cross_play(pairings: Iterable[Pairing]) -> CrossPlay:
    """Return the cross-play matrix. A policy beside itself is on the diagonal."""
    met = list(pairings)
    policies = _policies(met)
    cells: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for pairing in met:
        one, other = pairing.first_return, pairing.second_return
        if pairing.first == pairing.second:
            cells[pairing.first, pairing.first].append((one + other) / 2)
        else:
            cells[pairing.first, pairing.second].append(one)
            cells[pairing.second, pairing.first].append(other)
    found = [[cells[row, column] for column in policies] for row in policies]
    return CrossPlay(
        policies,
        tuple(tuple(float(np.mean(cell)) if cell else None for cell in row) for row in found),
        tuple(tuple(map(len, row)) for row in found),
    )


def _policies(pairings: Iterable[Pairing]) -> tuple[str, ...]:
    return tuple(sorted({name for pairing in pairings for name in (pairing.first, pairing.second)}))


# ---- Elo ratings ----------------------------------------------------------------------------------------------------

AVERAGE = 1_000.0  # the mean of all ratings
_SCALE = 400.0  # rating points that make the odds of winning ten times as high
_MAX_ITERATIONS, _TOLERANCE = 100, 1e-9
_RESAMPLES = 500


@dataclass(frozen=True, slots=True)
class Rating:
    """The strength of a policy: 400 points more make the odds of doing better ten times as high."""

    elo: float
    interval: Interval | None  # the 95 % interval, by resampling the pairings
    games: int


@np.errstate(invalid="ignore", over="ignore")  # a file may have infinite returns; their figures are NaN
def elo_ratings(pairings: Iterable[Pairing], *, prior: float = 1.0, seed: int = 0) -> Mapping[str, Rating]:
    """Return ratings from who did better than whom, the best first.

    They are the most likely ratings given all results at once, so the order of the games does not matter, unlike with
    ratings that change after each game. A policy beside itself says nothing and is left out.

    Args:
        pairings: The games.
        prior: A number of games that each policy is taken to have drawn against an average one. They keep the rating of
            a policy that has never lost finite.
        seed: The seed of the interval.
    """
    if not prior > 0.0:
        raise ValueError(f"prior={prior} is not a number of games above 0.")
    games = [pairing for pairing in pairings if pairing.first != pairing.second]
    policies = _policies(games)
    place = {name: index for index, name in enumerate(policies)}
    first = np.array([place[pairing.first] for pairing in games], int)
    second = np.array([place[pairing.second] for pairing in games], int)
    scores = np.array([pairing.score for pairing in games], float)

    def points_in(drawn: Array | slice = slice(None)) -> Array:
        """Return a matrix whose entry `[a, b]` is what `a` has won against `b` in these games."""
        points = np.zeros((len(policies), len(policies)))
        np.add.at(points, (first[drawn], second[drawn]), scores[drawn])
        np.add.at(points, (second[drawn], first[drawn]), 1 - scores[drawn])
        return points

    points = points_in()
    (ratings,) = _fitted(points[None], prior)
    intervals: list[Interval | None] = [None] * len(policies)
    if len(games) >= 2:
        generator = SeedTree(seed).child("elo").generator()
        draws = generator.integers(len(games), size=(_RESAMPLES, len(games)))
        drawn = _fitted(np.stack([points_in(draw) for draw in draws]), prior)
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
        intervals = [(float(one), float(other)) for one, other in zip(low, high, strict=True)]
    played = (points + points.T).sum(axis=1)
    order = sorted(range(len(ratings)), key=lambda i: (-ratings[i], policies[i]))
    return {policies[i]: Rating(float(ratings[i]), intervals[i], round(float(played[i]))) for i in order}


def _fitted(points: Array, prior: float) -> Array:
    """Return the most likely ratings (Bradley and Terry's model) for each matrix of points, by Newton's method.

    The prior is games against an imagined player of strength 0.
    """
    games, won = points + points.swapaxes(-1, -2), points.sum(axis=-1) + prior / 2
    strength = np.zeros(won.shape)  # the logarithm of the odds
    going = np.ones(len(points), bool)
    for _ in range(_MAX_ITERATIONS):
        own = strength[going]
        beaten = 1.0 / (1.0 + np.exp(own[:, None, :] - own[:, :, None]))
        beats_average = 1.0 / (1.0 + np.exp(-own))
        missing = won[going] - (games[going] * beaten).sum(axis=-1) - prior * beats_average
        weights = games[going] * beaten * (1 - beaten)
        diagonal = weights.sum(axis=-1) + prior * beats_average * (1 - beats_average)
        curvature = diagonal[:, :, None] * np.eye(own.shape[-1]) - weights
        step = np.linalg.solve(curvature, missing[..., None])[..., 0].clip(-1.0, 1.0)
        strength[going] += step
        going[going] = (np.abs(step) >= _TOLERANCE).any(axis=-1)
        if not going.any():
            break
    centred = strength - (strength.mean(axis=-1, keepdims=True) if strength.size else 0.0)
    return np.asarray(AVERAGE + _SCALE / np.log(10) * centred)
