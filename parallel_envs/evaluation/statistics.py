"""What many numbers come to: mean, standard error, interquartile mean with an interval, share of successes.

    summarise({"easy": [3.0, 4.0], "hard": [1.0, 0.0]}, failed=1, seed=7)

Numbers come in strata, one for each mission: missions differ by more than chance, so an interval draws within each of
them and never exchanges one for another. An episode that failed has no return. It is counted, not averaged.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from parallel_envs.evaluation.bootstrap import Interval, bootstrap_interval

if TYPE_CHECKING:
    from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult

_LIKE_FLOATS: dict[str, Any] = {"invalid": "ignore", "over": "ignore"}
"""Figures of infinite returns, which a file may have, are not numbers, and no warning says so."""
_TRIMMED = 0.25  # cut off at either end by the interquartile mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Statistics of some episodes. What cannot be said of so few is None."""

    n: int
    """Episodes that were played to their end: those that the figures are made of."""
    failed: int
    """Episodes that were not; they count as failures in `success_rate` and nowhere else."""
    mean: float | None
    standard_error: float | None
    iqm: float | None
    iqm_interval: Interval | None
    """Within which the interquartile mean lies with 95 %, by a bootstrap within each stratum."""
    success_rate: float | None
    """None where the environment does not tell."""
    mixed: bool = False
    """Whether agents of several policies played in some of these episodes: the figures are of the policy's own agents,
    but depend on the other policies."""
    late: int = 0
    """Actions that were late and were replaced, in all of these episodes: 0 unless there was an `action_timeout`."""


def summarise(
    strata: Mapping[Any, Sequence[float]],
    *,
    failed: int = 0,
    successes: Iterable[bool | None] = (),
    late: int = 0,
    seed: int = 0,
    mixed: bool = False,
) -> Summary:
    """The statistics of numbers that come in strata.

    Args:
        strata: By mission, a number for each episode that was played to its end.
        failed: How many were not.
        successes: Of those that were, whether they succeeded; None where nobody can say.
        late: How many actions were late.
        seed: Of the bootstrap.
        mixed: Whether agents of several policies played in some of them.
    """
    pooled = np.concatenate([np.zeros(0), *(np.asarray(values, float) for values in strata.values())])
    with np.errstate(**_LIKE_FLOATS):
        mean = float(pooled.mean()) if len(pooled) else None
        iqm = float(interquartile_mean(pooled)) if len(pooled) else None
        interval = bootstrap_interval(list(strata.values()), interquartile_mean, seed=seed)
    return Summary(
        n=len(pooled),
        failed=failed,
        mean=mean,
        standard_error=standard_error(strata.values()),
        iqm=iqm,
        iqm_interval=interval,
        success_rate=success_rate(successes, failed),
        late=late,
        mixed=mixed,
    )


def standard_error(strata: Iterable[npt.ArrayLike]) -> float | None:
    """Of the mean of all values, from their spread within each stratum: how far strata are apart is no uncertainty.

    None if there is none, or a stratum has a single value, whose spread nobody knows.
    """
    arrays = _filled(strata)
    if not arrays or any(len(array) < 2 for array in arrays):
        return None
    with np.errstate(**_LIKE_FLOATS):
        squares = sum(len(array) * float(array.var(ddof=1)) for array in arrays)
    return math.sqrt(squares) / sum(map(len, arrays))


def _filled(strata: Iterable[npt.ArrayLike]) -> list[npt.NDArray[np.float64]]:
    return [array for values in strata if len(array := np.asarray(values, np.float64))]


def interquartile_mean(values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """The mean of the middle half, along the last axis: of `n` values, `n // 4` are left out at either end."""
    array = np.asarray(values, np.float64)
    num = array.shape[-1]
    cut = int(_TRIMMED * num)
    if cut:  # no need to sort: only the outer quarters have to be out of the way
        array = np.partition(array, (cut, num - cut - 1), axis=-1)
    middle: npt.NDArray[np.float64] = array[..., cut : num - cut].mean(axis=-1)
    return middle


def success_rate(successes: Iterable[bool | None], failed: int = 0) -> float | None:
    """The share of successes among the episodes of which it is known; failed ones are none.

    None if it is known of no episode that was played.
    """
    told = list(successes)
    known = [success for success in told if success is not None]
    if told and not known:
        return None
    total = len(known) + failed
    return sum(known) / total if total else None


# ---- of an evaluation --------------------------------------------------------------------------------------------


def like_missions(result: EvaluationResult) -> list[tuple[str, ...]]:
    """Return the missions in groups of which a common mean says something: those of one environment.

    Missions are alike if the settings name the same environment for them, whatever it is made with. Of a mission that
    was given as a function without a name of its own nobody can say so: it is like no other. Where the settings say
    nothing of the missions at all, as in results that were put together by hand, they are taken to be alike.
    """
    told = result.settings.get("missions")
    groups: dict[Any, list[str]] = {}
    for mission in result.missions:
        one = told.get(mission) if isinstance(told, Mapping) else None
        env = str(one.get("env", "")) if isinstance(one, Mapping) else ""
        is_named = env and "<" not in env and env != "partial"
        groups.setdefault(env if is_named else ("", mission if isinstance(told, Mapping) else ""), []).append(mission)
    return [tuple(group) for group in groups.values()]


def per_mission(result: EvaluationResult) -> dict[str, Summary]:
    """Of each mission, its episodes' scores: the mean of the agents' returns.

    Where several policies played it one by one, no mean is made of all of them: see `per_mission_and_policy`.
    """
    of_mission = {name: [record for record in result.episodes if record.mission == name] for name in result.missions}
    found = {}
    for name, records in of_mission.items():
        summary = _summary(records, _score, sum(record.late for record in records), _seed_of(result))
        found[name] = _without_mean(summary) if len({record.alone for record in records}) > 1 else summary
    return found


def per_policy(result: EvaluationResult) -> dict[str, Summary]:
    """Of each policy, the mean return of the agents that had it, over all missions.

    Missions of different environments have no common mean: then only counts and the success rate are told.

    An episode that failed counts against each policy that took part in it, or was to: if it failed so early that
    nobody had a policy yet, against all.
    """
    group_of = {mission: group for group in like_missions(result) for mission in group}
    found = {}
    for name in result.policies:
        if (summary := _of_policy(result, name, result.episodes)) is not None:
            played = {group_of[record.mission] for record in result.episodes if _took_part(record, name)}
            found[name] = _without_mean(summary) if len(played) > 1 else summary
    return found


def per_mission_and_policy(result: EvaluationResult) -> dict[tuple[str, str], Summary]:
    """Of each policy in each mission in which it took part."""
    found = {
        (mission, policy): _of_policy(result, policy, [one for one in result.episodes if one.mission == mission])
        for mission in result.missions
        for policy in result.policies
    }
    return {key: summary for key, summary in found.items() if summary is not None}


def _of_policy(result: EvaluationResult, policy: str, records: Sequence[EpisodeRecord]) -> Summary | None:
    """None if the policy took no part."""
    taken = [record for record in records if _took_part(record, policy)]
    if not taken:
        return None
    late = sum(record.late_of(policy) for record in taken)
    return _summary(taken, lambda record: record.score_of(policy), late, _seed_of(result))


def _took_part(record: EpisodeRecord, policy: str) -> bool:
    """Whether a policy played in an episode, or was to, if the episode failed before agents had policies."""
    if record.alone:
        return record.alone == policy
    return policy in record.assignment.values() or (record.failure is not None and not record.assignment)


def _without_mean(summary: Summary) -> Summary:
    """The same without figures that say nothing of episodes that are unlike."""
    return dataclasses.replace(summary, mean=None, standard_error=None, iqm=None, iqm_interval=None)


def _summary(
    records: Sequence[EpisodeRecord], score: Callable[[EpisodeRecord], float | None], late: int, seed: int
) -> Summary:
    strata: dict[str, list[float]] = {}
    for record in records:
        if (value := score(record)) is not None:
            strata.setdefault(record.mission, []).append(value)
    return summarise(
        strata,
        failed=sum(record.failure is not None for record in records),
        successes=[record.success for record in records if record.failure is None],
        late=late,
        seed=seed,
        mixed=any(record.mixed for record in records),
    )


def _score(record: EpisodeRecord) -> float | None:
    return record.score


def _seed_of(result: EvaluationResult) -> int:
    seed = result.settings.get("seed")
    return seed if isinstance(seed, int) else 0


def late_actions_text(result: EvaluationResult) -> str | None:
    """Return a warning that says how many actions were late, or None if none was."""
    records = [record for record in result.episodes if record.late]
    if not records:
        return None
    late = sum(record.late for record in records)
    limit = result.settings.get("action_timeout")
    return (
        f"{late:,} action{'s were' if late > 1 else ' was'} late in {len(records):,} of {len(result.episodes):,} "
        f"episodes (action_timeout={limit}): the agents did nothing instead. How many are late depends on the machine, "
        "its load and the number of jobs, and so do these scores. Give more time or fewer jobs to have scores that can "
        "be repeated."
    )
