"""Two policies on the same episodes: is one better, and how sure is that?

    compare({"easy": [3.0, 4.0]}, {"easy": [2.0, 4.0]}, seed=7)

An episode that both played from the same seed is a pair. What makes one episode harder than another is in both of its
numbers and not in their difference, so pairs tell with far fewer episodes than two separate averages would.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from parallel_envs.evaluation.bootstrap import Interval, bootstrap_interval
from parallel_envs.evaluation.documents import plain
from parallel_envs.evaluation.records import EvaluationResult
from parallel_envs.evaluation.statistics import like_missions, standard_error
from parallel_envs.seeding import SeedTree
from parallel_envs.spelling import hint, is_one_of, suggests_keywords

_MOST_EXACT = 12  # pairs: up to so many every choice of signs is looked at, 4,096 of them
_FLIPS = 9_999  # choices of signs that are drawn where there are more
_ADVICE = "Evaluate both on the same."
_ROUNDING = 1e-12  # relative: sums of the same numbers in another order count as equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The first policy beside the second, episode by episode: differences are first minus second."""

    n: int
    mean_difference: float | None
    standard_error: float | None
    interval: Interval | None
    """Within which the mean difference lies with 95 %, by a bootstrap within each mission."""
    wins: int
    ties: int
    losses: int
    p_value: float | None
    """How often chance alone, which gives either policy either number of a pair, makes a difference this large."""


@np.errstate(invalid="ignore", over="ignore")  # of infinite returns, which a file may have, nothing is a number
def compare(
    first: Mapping[Any, Sequence[float]], second: Mapping[Any, Sequence[float]], *, seed: int = 0
) -> Comparison:
    """Compare by mission, where the numbers at one place belong to one episode. Raises ValueError if none does."""
    strata = [_differences(mission, first[mission], second[mission]) for mission in first if mission in second]
    if not strata and (first or second):
        raise ValueError(f"The two have no mission in common: {_named(first)} beside {_named(second)}. {_ADVICE}")
    pooled = np.concatenate([np.zeros(0), *strata])
    return Comparison(
        n=len(pooled),
        mean_difference=float(pooled.mean()) if len(pooled) else None,
        standard_error=standard_error(strata),
        interval=bootstrap_interval(strata, _mean, seed=seed),
        wins=int((pooled > 0).sum()),
        ties=int((pooled == 0).sum()),
        losses=int((pooled < 0).sum()),
        p_value=sign_flip_p_value(pooled, seed=seed) if len(pooled) else None,
    )


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

    With `first_policy` or `second_policy`, what the agents of that policy got; otherwise what all agents got. Both may
    be one evaluation, in which two policies met, or that has several, each on its own.

    Missions of different environments have no common mean difference: then only counts are told.
    """
    found = compare(*(both := paired_scores(first, second, first_policy, second_policy)), seed=seed)
    common = [group for group in like_missions(first) if set(group) & both[0].keys()]
    if len(common) < 2:
        return found
    return dataclasses.replace(found, mean_difference=None, standard_error=None, interval=None, p_value=None)


def paired_scores(
    first: EvaluationResult,
    second: EvaluationResult,
    first_policy: str | None = None,
    second_policy: str | None = None,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """What `compare` takes: by mission the scores of both, episode by episode. ValueError if there is no pair, or no
    fair one."""
    for name, result, policy in (("first", first, first_policy), ("second", second, second_policy)):
        _check_played(name, result, policy)
    ours, theirs = _scores(first, first_policy), _scores(second, second_policy)
    common = [key for key in ours if key in theirs]
    if not common:
        raise ValueError(
            "No episode was played to its end by both from the same seed. Give both the same missions and seed."
        )
    missions = dict.fromkeys(mission for mission, _ in common)
    _check_same(first, second, missions)
    pairs = {name: [key for key in common if key[0] == name] for name in missions}
    first_scores, second_scores = (
        {name: [scores[key] for key in keys] for name, keys in pairs.items()} for scores in (ours, theirs)
    )
    return first_scores, second_scores


def _check_played(name: str, result: Any, policy: Any) -> None:
    if not isinstance(result, EvaluationResult):
        raise TypeError(f"{name}={result!r} is not an EvaluationResult. Give what `evaluate` returned.")
    alone = list(dict.fromkeys(record.alone for record in result.episodes if record.alone))
    if policy is None and len(alone) > 1:
        raise ValueError(
            f"{name} has several policies, each on its own: {', '.join(map(repr, alone))}. Say which one is compared: "
            f"{name}_policy=..."
        )
    known = {one for record in result.episodes for one in record.assignment.values()}
    if policy is not None and not is_one_of(policy, known):
        raise ValueError(
            f"{name}_policy={policy!r} played in no episode. Those are {sorted(known)}.{hint(policy, known)}"
        )


def _check_same(first: EvaluationResult, second: EvaluationResult, missions: Iterable[str]) -> None:
    """Raise ValueError if a name stands for two missions, or episodes were cut off elsewhere. Seeds do not tell."""
    ours, theirs = plain(first.settings), plain(second.settings)
    for name in missions:
        one, other = (settings.get("missions", {}).get(name) for settings in (ours, theirs))
        if one is not None and other is not None and one != other:
            raise ValueError(f"The mission {name!r} is {one} in the first and {other} in the second. {_ADVICE}")
    one, other = (settings.get("max_steps") for settings in (ours, theirs))
    if one is not None and other is not None and one != other:
        raise ValueError(f"Episodes have up to {one} steps in the first and {other} in the second. {_ADVICE}")


def _scores(result: EvaluationResult, policy: str | None) -> dict[tuple[str, int], float]:
    """By mission and seed, the scores of the episodes that did not fail."""

    found = {}
    for record in result.episodes:
        score = record.score if policy is None else record.score_of(policy)
        if score is not None:  # policies that played one by one have an episode each from the same seed
            found[record.mission, record.seed] = score
    return found


def sign_flip_p_value(differences: npt.ArrayLike, *, seed: int = 0) -> float:
    """The two-sided p-value of a mean difference among all ways to choose the signs of the differences.

    Exact for up to 12 differences; above, 9,999 ways are drawn and the one that was seen is counted with them.
    """
    array = np.asarray(differences, float)
    seen = abs(array.sum())
    sums = np.abs(_signs(len(array), seed) @ array)
    at_least = sums >= seen * (1 - _ROUNDING)
    drawn = len(array) > _MOST_EXACT
    return float((at_least.sum() + drawn) / (len(sums) + drawn))


def _signs(num_pairs: int, seed: int) -> npt.NDArray[Any]:
    """Choices of signs as rows."""
    if num_pairs <= _MOST_EXACT:
        numbers = np.arange(1 << num_pairs)[:, None]
        return np.asarray(1.0 - 2.0 * ((numbers >> np.arange(num_pairs)) & 1))
    generator = SeedTree(seed).child("sign flips").generator()
    return np.asarray(1.0 - 2.0 * generator.integers(2, size=(_FLIPS, num_pairs)))


def _differences(mission: Hashable, first: Sequence[float], second: Sequence[float]) -> npt.NDArray[Any]:
    if len(first) != len(second):
        raise ValueError(
            f"Mission {mission!r} has {len(first)} episodes of the first and {len(second)} of the second. Give pairs: "
            "both numbers of each episode."
        )
    differences: npt.NDArray[Any] = np.subtract(np.asarray(first, float), np.asarray(second, float))
    return differences


def _mean(samples: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return np.asarray(samples.mean(axis=-1))


def _named(missions: Mapping[Any, Any]) -> str:
    return ", ".join(map(str, missions)) or "none"
