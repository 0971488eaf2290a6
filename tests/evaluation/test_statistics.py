"""Means, errors, interquartile means and rates: worked by hand, and beside scipy."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult, Failure
from parallel_envs.evaluation.statistics import (
    bootstrap_interval,
    interquartile_mean,
    per_mission,
    per_mission_and_policy,
    per_policy,
    standard_error,
    success_rate,
    summarise,
)

NUMBERS = st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=40)
BROKEN = Failure(kind="env", error_type="ValueError", message="no")


# ---- of numbers ------------------------------------------------------------------------------------------------


@given(NUMBERS)
def test_the_same_as_scipy_says(values: list[float]) -> None:
    assert standard_error([values]) == pytest.approx(float(stats.sem(values)), rel=1e-9, abs=1e-9)
    assert float(interquartile_mean(values)) == pytest.approx(float(stats.trim_mean(values, 0.25)), rel=1e-9, abs=1e-9)


def test_a_case_worked_by_hand() -> None:
    # The middle half of 1 2 3 4 5 6 7 100 is 3 4 5 6; the squares of the deviations from 16 sum up to 8092.
    summary = summarise({"only": [100.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1.0]})
    assert (summary.n, summary.mean, summary.iqm) == (8, 16.0, 4.5)
    assert summary.standard_error == pytest.approx((8092 / 7 / 8) ** 0.5)


def test_how_far_strata_are_apart_is_no_uncertainty() -> None:
    # Means of 2 and 102, variances of 2 each: the mean of all has the variance (2 * 2 + 2 * 2) / 4 ** 2.
    assert standard_error([[1.0, 3.0], [101.0, 103.0]]) == pytest.approx(0.5**0.5)
    assert standard_error([[1.0, 3.0], []]) == pytest.approx(1.0)
    assert standard_error([[1.0, 3.0], [101.0]]) is None
    assert bootstrap_interval([[1.0, 3.0], [101.0]], interquartile_mean) is None


def test_of_nothing_nothing_is_said() -> None:
    summary = summarise({}, failed=3)
    assert (summary.n, summary.failed, summary.mean, summary.iqm) == (0, 3, None, None)
    assert (summary.standard_error, summary.iqm_interval) == (None, None)


def test_of_one_number_no_error_is_said() -> None:
    summary = summarise({"easy": [2.0], "hard": []})
    assert (summary.n, summary.mean, summary.iqm) == (1, 2.0, 2.0)
    assert (summary.standard_error, summary.iqm_interval) == (None, None)


@pytest.mark.parametrize(
    ("successes", "failed", "rate"),
    [
        ([True, False, True, True], 0, 0.75),
        ([True, True], 2, 0.5),
        ([True, None, False], 0, 0.5),
        ([None, None], 1, None),
        ([], 2, 0.0),
        ([], 0, None),
    ],
)
def test_failed_episodes_are_no_successes(successes: list[bool | None], failed: int, rate: float | None) -> None:
    assert success_rate(iter(successes), failed) == rate


# ---- the bootstrap ---------------------------------------------------------------------------------------------


def test_the_interval_of_one_stratum_is_the_one_that_scipy_finds() -> None:
    values = np.random.default_rng(3).exponential(10.0, size=60)
    ours = bootstrap_interval([values], lambda samples: samples.mean(axis=-1), resamples=20_000, seed=1)
    assert ours is not None
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=5).confidence_interval
    spread = theirs.high - theirs.low
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.03 * spread)


def test_strata_never_exchange_their_numbers() -> None:
    # Within a stratum nothing varies, so nothing is uncertain, however far apart the strata are.
    assert bootstrap_interval([[0.0] * 5, [100.0] * 5], lambda samples: samples.mean(axis=-1)) == (50.0, 50.0)


def test_resampling_two_numbers_by_hand() -> None:
    # Means of two draws from 0 and 1: 0, 1/2, 1/2, 1. The middle 40 % is all 1/2, the middle 95 % goes from 0 to 1.
    means = [[0.0, 1.0]], lambda samples: samples.mean(axis=-1)
    assert bootstrap_interval(*means, level=0.4) == (0.5, 0.5)
    assert bootstrap_interval(*means) == (0.0, 1.0)


def test_95_of_100_intervals_hold_the_truth() -> None:
    generator = np.random.default_rng(11)
    held = 0
    for trial in range(200):
        samples = [generator.normal(mean, 1.0, size=30) for mean in (0.0, 8.0)]
        low, high = bootstrap_interval(samples, lambda drawn: drawn.mean(axis=-1), resamples=400, seed=trial) or (0, 0)
        held += low <= 4.0 <= high
    assert 180 <= held <= 198


def test_draws_depend_on_the_seed_alone() -> None:
    def interval(seed: int) -> object:
        return bootstrap_interval([values], interquartile_mean, seed=seed)

    values = np.random.default_rng(0).normal(size=40)
    assert interval(1) == interval(1)
    assert len({interval(seed) for seed in range(8)}) == 8


def test_many_numbers_are_drawn_in_parts_with_the_same_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    strata = [np.arange(30.0)]
    at_once = bootstrap_interval(strata, interquartile_mean, resamples=100, seed=2)
    monkeypatch.setattr("parallel_envs.evaluation.statistics._AT_ONCE", 30 * 7)
    assert bootstrap_interval(strata, interquartile_mean, resamples=100, seed=2) == at_once


def test_a_level_is_a_share() -> None:
    with pytest.raises(ValueError, match=r"level=95\.0 is not a share\. Give a number between 0 and 1"):
        bootstrap_interval([[1.0, 2.0]], interquartile_mean, level=95.0)


# ---- of an evaluation ------------------------------------------------------------------------------------------


def record(mission: str, episode: int, returns: dict[str, float], **fields: object) -> EpisodeRecord:
    assignment = {agent: "good" if agent == "a" else "bad" for agent in ("a", "b")}
    known = {"mission": mission, "episode": episode, "seed": episode, "assignment": assignment, "returns": returns}
    return EpisodeRecord(**{**known, **fields})  # type: ignore[arg-type]  # fields by name


RESULT = EvaluationResult(
    episodes=(
        record("easy", 0, {"a": 4.0, "b": 0.0}, success=True),
        record("easy", 1, {"a": 6.0, "b": 2.0}, success=False),
        record("hard", 0, {"a": 1.0, "b": 1.0}, success=True),
        record("hard", 1, {"a": -50.0, "b": -70.0}, failure=BROKEN, success=False),
    )
)


def test_missions_are_told_by_the_mean_of_their_agents() -> None:
    told = per_mission(RESULT)
    assert {name: (one.n, one.failed, one.mean, one.success_rate) for name, one in told.items()} == {
        "easy": (2, 0, 3.0, 0.5),
        "hard": (1, 1, 1.0, 0.5),
    }


def test_policies_are_told_by_what_their_own_agents_got() -> None:
    told = per_policy(RESULT)
    assert {name: (one.n, one.failed) for name, one in told.items()} == {"good": (3, 1), "bad": (3, 1)}
    assert told["good"].mean == pytest.approx(11 / 3)
    assert told["bad"].mean == 1.0


def test_what_failed_before_anybody_had_a_policy_counts_against_all() -> None:
    early = record("hard", 2, {}, assignment={}, failure=BROKEN, success=False)
    told = per_policy(EvaluationResult(episodes=(*RESULT.episodes, early)))
    assert {name: (one.n, one.failed) for name, one in told.items()} == {"good": (3, 2), "bad": (3, 2)}


def test_a_policy_is_told_of_the_missions_it_took_part_in() -> None:
    alone = EvaluationResult(episodes=(*RESULT.episodes[:1], record("solo", 0, {"a": 9.0}, assignment={"a": "good"})))
    told = per_mission_and_policy(alone)
    assert {key: one.mean for key, one in told.items()} == {
        ("easy", "good"): 4.0,
        ("easy", "bad"): 0.0,
        ("solo", "good"): 9.0,
    }


def test_missions_that_were_not_begun_are_told_without_figures() -> None:
    told = per_mission(EvaluationResult(episodes=RESULT.episodes, interrupted=True, missing=(("late", 0),)))
    assert (told["late"].n, told["late"].mean) == (0, None)


def test_infinite_returns_have_no_error_and_raise_no_warning() -> None:
    summary = summarise({"m": [1.0, math.inf, 2.0, math.inf, math.inf]})
    assert summary.standard_error is not None
    assert math.isnan(summary.standard_error)
    assert summary.mean == math.inf
