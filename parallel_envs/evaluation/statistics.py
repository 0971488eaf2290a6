"""Statistics of scores: mean, standard error, interquartile mean with a bootstrap interval, success rate.

Scores come in strata, one for each mission. Missions differ by more than chance, so the bootstrap resamples within each
stratum, with replacement. An episode that failed has no return: it is counted, not averaged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from parallel_envs.seeding import SeedTree

if TYPE_CHECKING:
    from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult

Interval = tuple[float, float]
Statistic = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
"""A function from samples along the last axis to one number for each sample."""

LEVEL = 0.95
RESAMPLES = 2_000
_AT_ONCE = 1 << 22  # numbers held at a time
_TRIMMED = 0.25  # the share that the interquartile mean cuts off at either end
_QUIET: dict[str, Any] = {"invalid": "ignore", "over": "ignore"}
"""No warnings for infinite returns, which a file may have: their figures are NaN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Statistics of some episodes. A figure that needs more episodes is None."""

    n: int  # the number of episodes without a failure. The figures are made of these
    failed: int  # the number of episodes that failed. They count as failures in `success_rate`, and nowhere else
    mean: float | None
    standard_error: float | None
    iqm: float | None
    iqm_interval: Interval | None  # the 95 % interval of the interquartile mean, by a bootstrap within each stratum
    success_rate: float | None  # None if the environment does not tell successes
    mixed: bool = False
    """Whether agents of several policies played in some of these episodes. The figures are of the policy's own agents,
    but depend on the other policies."""
    late: int = 0  # the number of late actions that were replaced. 0 unless there was an `action_timeout`


def summarise(
    strata: Mapping[Any, Sequence[float]],
    *,
    failed: int = 0,
    successes: Iterable[bool | None] = (),
    seed: int = 0,
    **others: Any,
) -> Summary:
    """Return the statistics of scores that come in strata: by mission, a score for each episode without a failure.

    `successes` says whether each of these episodes succeeded, None where it is not known. `seed` is for the bootstrap.
    `failed` and `others` are fields of `Summary`.
    """
    pooled = np.concatenate([np.zeros(0), *(np.asarray(values, float) for values in strata.values())])
    with np.errstate(**_QUIET):
        figures: dict[str, Any] = {
            "n": len(pooled),
            "mean": float(pooled.mean()) if len(pooled) else None,
            "standard_error": standard_error(strata.values()),
            "iqm": float(interquartile_mean(pooled)) if len(pooled) else None,
            "iqm_interval": bootstrap_interval(list(strata.values()), interquartile_mean, seed=seed),
        }
    return Summary(**{**figures, "failed": failed, "success_rate": success_rate(successes, failed), **others})


def standard_error(strata: Iterable[npt.ArrayLike]) -> float | None:
    """Return the standard error of the mean of all values, from their spread within each stratum.

    The distance between strata is no uncertainty. Return None if there is no stratum, or if one has a single value.
    """
    arrays = [array for values in strata if len(array := np.asarray(values, np.float64))]
    if not arrays or any(len(array) < 2 for array in arrays):
        return None
    with np.errstate(**_QUIET):
        squares = sum(len(array) * float(array.var(ddof=1)) for array in arrays)
    return math.sqrt(squares) / sum(map(len, arrays))


def interquartile_mean(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Return the mean of the middle half along the last axis: of `n` values, `n // 4` are left out at either end."""
    array = np.asarray(values, np.float64)
    num = array.shape[-1]
    cut = int(_TRIMMED * num)
    if cut:  # no need to sort: only the outer quarters have to be out of the way
        array = np.partition(array, (cut, num - cut - 1), axis=-1)
    middle: npt.NDArray[np.float64] = array[..., cut : num - cut].mean(axis=-1)
    return middle


def success_rate(successes: Iterable[bool | None], failed: int = 0) -> float | None:
    """Return the share of successes among the episodes where it is known; failed episodes are no successes.

    Return None if it is known of no episode that was played.
    """
    given = list(successes)
    known = [success for success in given if success is not None]
    if given and not known:
        return None
    total = len(known) + failed
    return sum(known) / total if total else None


def bootstrap_interval(
    strata: Sequence[npt.ArrayLike],
    statistic: Statistic,
    *,
    level: float = LEVEL,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Interval | None:
    """Return the interval with the middle `level` of the statistic over resamples, each of the size of its stratum.

    The resamples depend on the seed and on the sizes of the strata alone. Return None if a stratum has a single value,
    because resampling it says nothing about chance.
    """
    arrays = [array for values in strata if len(array := np.asarray(values, float))]
    if not 0.0 < level < 1.0:
        raise ValueError(f"level={level} is not a share. Give a number between 0 and 1, such as 0.95.")
    if not arrays or any(len(array) < 2 for array in arrays):
        return None
    generator = SeedTree(seed).child("bootstrap").generator()
    at_once = max(1, _AT_ONCE // sum(map(len, arrays)))
    found = []
    for done in range(0, resamples, at_once):
        rows = min(at_once, resamples - done)
        drawn = [array[generator.integers(len(array), size=(rows, len(array)))] for array in arrays]
        found.append(statistic(np.concatenate(drawn, axis=-1)))
    low, high = np.quantile(np.concatenate(found), [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


# ---- statistics of an evaluation ------------------------------------------------------------------------------------


def comparable_missions(result: EvaluationResult) -> list[tuple[str, ...]]:
    """Return the missions in groups of one environment each: only their scores have a common mean.

    Missions belong together if the settings name the same environment for them, with any keyword arguments. A mission
    that was given as a function without a name of its own stands alone. If the settings do not describe the missions,
    as in a result that was put together by hand, all missions are one group.
    """
    described = result.settings.get("missions")
    groups: dict[Any, list[str]] = {}
    for mission in result.missions:
        one = described.get(mission) if isinstance(described, Mapping) else None
        env = str(one.get("env", "")) if isinstance(one, Mapping) else ""
        is_named = env and "<" not in env and env != "partial"
        group = env if is_named else ("", mission if isinstance(described, Mapping) else "")
        groups.setdefault(group, []).append(mission)
    return [tuple(group) for group in groups.values()]


def per_mission(result: EvaluationResult) -> dict[str, Summary]:
    """Return the statistics of each mission's scores, the means of the agents' returns.

    If several policies played a mission one by one, there is no mean of all of them: see `per_mission_and_policy`.
    """
    found = {}
    for name in result.missions:
        records = [record for record in result.episodes if record.mission == name]
        has_mean = len({record.alone for record in records}) < 2
        found[name] = _summary(result, records, has_mean=has_mean)
    return found


def per_policy(result: EvaluationResult) -> dict[str, Summary]:
    """Return the statistics of each policy over all missions: the mean returns of its agents.

    Missions of different environments have no common mean: then there are only counts and the success rate. An episode
    that failed counts against each policy that took part in it; if it failed before agents had policies, against all.
    """
    group_of = {mission: group for group in comparable_missions(result) for mission in group}
    found = {}
    for name in result.policies:
        if records := _episodes_of(name, result.episodes):
            has_mean = len({group_of[record.mission] for record in records}) < 2
            found[name] = _summary(result, records, name, has_mean=has_mean)
    return found


def per_mission_and_policy(result: EvaluationResult) -> dict[tuple[str, str], Summary]:
    """Return the statistics of each policy in each mission in which it took part."""
    found = {}
    for mission in result.missions:
        for policy in result.policies:
            if records := _episodes_of(policy, [one for one in result.episodes if one.mission == mission]):
                found[mission, policy] = _summary(result, records, policy)
    return found


def _episodes_of(policy: str, records: Iterable[EpisodeRecord]) -> list[EpisodeRecord]:
    """Return the episodes in which a policy played, or would have, if they failed before agents had policies."""
    return [
        one
        for one in records
        if one.alone == policy
        or (not one.alone and (policy in one.assignment.values() or (one.failure and not one.assignment)))
    ]


def _summary(
    result: EvaluationResult, records: Sequence[EpisodeRecord], policy: str | None = None, *, has_mean: bool = True
) -> Summary:
    """Return the statistics of these episodes, or of the agents of a policy in them."""
    strata: dict[str, list[float]] = {}
    for record in records:
        if (score := record.score if policy is None else record.score_of(policy)) is not None:
            strata.setdefault(record.mission, []).append(score)
    seed = result.settings.get("seed")
    unknown = {} if has_mean else dict.fromkeys(("mean", "standard_error", "iqm", "iqm_interval"))
    return summarise(
        strata,
        failed=sum(record.failure is not None for record in records),
        successes=[record.success for record in records if record.failure is None],
        seed=seed if isinstance(seed, int) else 0,
        late=sum(record.late if policy is None else record.late_of(policy) for record in records),
        mixed=any(record.mixed for record in records),
        **unknown,
    )
