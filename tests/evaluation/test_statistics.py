"""Means, intervals, comparisons and ratings: worked by hand, and beside scipy."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from parallel_envs.evaluation.comparison import (
    AVERAGE,
    Pairing,
    compare,
    compare_results,
    cross_play,
    elo_ratings,
    pairings_of,
    sign_flip_p_value,
)
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


def mean(samples: Any) -> Any:
    return samples.mean(axis=-1)


# ---- of numbers ------------------------------------------------------------------------------------------------------


@given(NUMBERS)
def test_errors_and_interquartile_means_are_those_of_scipy(values: list[float]) -> None:
    assert standard_error([values]) == pytest.approx(float(stats.sem(values)), rel=1e-9, abs=1e-9)
    assert float(interquartile_mean(values)) == pytest.approx(float(stats.trim_mean(values, 0.25)), rel=1e-9, abs=1e-9)


def test_summaries_worked_by_hand() -> None:
    # The middle half of 1 2 3 4 5 6 7 100 is 3 4 5 6; the squares of the deviations from 16 sum up to 8092.
    summary = summarise({"only": [100.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 1.0]})
    assert (summary.n, summary.mean, summary.iqm) == (8, 16.0, 4.5)
    assert summary.standard_error == pytest.approx((8092 / 7 / 8) ** 0.5)
    # Means of 2 and 102, variances of 2 each: the mean of all has the variance (2 * 2 + 2 * 2) / 4 ** 2.
    assert standard_error([[1.0, 3.0], [101.0, 103.0]]) == pytest.approx(0.5**0.5)
    assert standard_error([[1.0, 3.0], []]) == pytest.approx(1.0)
    assert standard_error([[1.0, 3.0], [101.0]]) is None
    assert bootstrap_interval([[1.0, 3.0], [101.0]], interquartile_mean) is None
    assert bootstrap_interval([[0.0] * 5, [100.0] * 5], mean) == (50.0, 50.0)
    for values, failed, figures in (({}, 3, (0, 3, None, None)), ({"easy": [2.0], "hard": []}, 0, (1, 0, 2.0, 2.0))):
        summary = summarise(values, failed=failed)
        assert (summary.n, summary.failed, summary.mean, summary.iqm) == figures
        assert (summary.standard_error, summary.iqm_interval) == (None, None)
    summary = summarise({"m": [1.0, math.inf, 2.0, math.inf, math.inf]})  # without a warning
    assert summary.standard_error is not None
    assert math.isnan(summary.standard_error)
    assert summary.mean == math.inf


def test_failed_episodes_are_no_successes() -> None:
    assert success_rate([True, False, True, True], 0) == 0.75
    assert success_rate([True, True], 2) == success_rate([True, None, False], 0) == 0.5
    assert success_rate([], 2) == 0.0
    assert success_rate([None, None], 1) is success_rate([], 0) is None


def test_bootstrap_intervals_are_those_of_scipy_and_of_a_case_by_hand() -> None:
    values = np.random.default_rng(3).exponential(10.0, size=60)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=20_000, method="percentile", rng=5).confidence_interval
    ours = bootstrap_interval([values], mean, resamples=20_000, seed=1)
    assert ours == pytest.approx((theirs.low, theirs.high), abs=0.03 * (theirs.high - theirs.low))
    # Means of two draws from 0 and 1: 0, 1/2, 1/2, 1. The middle 40 % is all 1/2, the middle 95 % goes from 0 to 1.
    assert bootstrap_interval([[0.0, 1.0]], mean, level=0.4) == (0.5, 0.5)
    assert bootstrap_interval([[0.0, 1.0]], mean) == (0.0, 1.0)
    with pytest.raises(ValueError, match=r"level=95\.0 is not a share\. Give a number between 0 and 1"):
        bootstrap_interval([[1.0, 2.0]], interquartile_mean, level=95.0)


def test_draws_depend_on_the_seed_alone_and_not_on_how_many_are_drawn_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    strata = [np.random.default_rng(0).normal(size=40)]
    found = [bootstrap_interval(strata, interquartile_mean, resamples=100, seed=seed) for seed in range(8)]
    assert len(set(found)) == 8
    assert bootstrap_interval(strata, interquartile_mean, resamples=100, seed=2) == found[2]
    monkeypatch.setattr("parallel_envs.evaluation.statistics._AT_ONCE", 40 * 7)
    assert bootstrap_interval(strata, interquartile_mean, resamples=100, seed=2) == found[2]


# ---- of an evaluation ------------------------------------------------------------------------------------------------


def record(mission: str, episode: int, returns: dict[str, float], **fields: object) -> EpisodeRecord:
    known = {"mission": mission, "episode": episode, "seed": episode, "returns": returns}
    return EpisodeRecord(**{**known, "assignment": {"a": "good", "b": "bad"}, **fields})  # type: ignore[arg-type]  # fields by name


RESULT = EvaluationResult(
    episodes=(
        record("easy", 0, {"a": 4.0, "b": 0.0}, success=True),
        record("easy", 1, {"a": 6.0, "b": 2.0}, success=False),
        record("hard", 0, {"a": 1.0, "b": 1.0}, success=True),
        record("hard", 1, {"a": -50.0, "b": -70.0}, failure=BROKEN, success=False),
    ),
    missing=(("late", 0),),
)


def test_missions_have_the_mean_of_their_agents_and_policies_what_their_own_agents_got() -> None:
    assert {name: (one.n, one.failed, one.mean, one.success_rate) for name, one in per_mission(RESULT).items()} == {
        "easy": (2, 0, 3.0, 0.5),
        "hard": (1, 1, 1.0, 0.5),
        "late": (0, 0, None, None),  # not begun
    }
    found = per_policy(RESULT)
    assert {name: (one.n, one.failed) for name, one in found.items()} == {"good": (3, 1), "bad": (3, 1)}
    assert found["good"].mean == pytest.approx(11 / 3)
    assert found["bad"].mean == 1.0
    early = record("hard", 2, {}, assignment={}, failure=BROKEN, success=False)  # before any agent had a policy
    found = per_policy(EvaluationResult(episodes=(*RESULT.episodes, early)))
    assert {name: (one.n, one.failed) for name, one in found.items()} == {"good": (3, 2), "bad": (3, 2)}
    alone = EvaluationResult(episodes=(*RESULT.episodes[:1], record("solo", 0, {"a": 9.0}, assignment={"a": "good"})))
    figures = {key: one.mean for key, one in per_mission_and_policy(alone).items()}
    assert figures == {("easy", "good"): 4.0, ("easy", "bad"): 0.0, ("solo", "good"): 9.0}


# ---- of two policies on the same episodes ----------------------------------------------------------------------------


def test_a_comparison_worked_by_hand() -> None:
    # Differences 1, 2, 3, 0: of 16 choices of signs, those of 0 count double; a sum of 6 comes with 2 of 8.
    found = compare({"easy": [2.0, 4.0], "hard": [6.0, 0.0]}, {"easy": [1.0, 2.0], "hard": [3.0, 0.0]})
    assert (found.n, found.mean_difference, found.wins, found.ties, found.losses) == (4, 1.5, 3, 1, 0)
    assert found.p_value == 0.25
    assert found.standard_error == pytest.approx((2 * 0.5 + 2 * 4.5) ** 0.5 / 4)
    assert found.interval is not None
    assert found.interval[0] < 1.5 < found.interval[1]
    assert compare({"m": [1.0, 2.0]}, {"m": [1.0, 2.0]}).p_value == 1.0
    hardness = np.linspace(-1000.0, 1000.0, 20)  # what makes episodes hard is no uncertainty
    found = compare({"m": (hardness + 1.0).tolist()}, {"m": hardness.tolist()})
    assert found.interval == pytest.approx((1.0, 1.0))


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=8))
def test_exact_p_values_are_those_of_scipy(differences: list[int]) -> None:
    how: Any = {"permutation_type": "samples", "n_resamples": np.inf}
    theirs = stats.permutation_test((np.array(differences, float),), np.mean, **how)
    assert sign_flip_p_value(differences) == pytest.approx(theirs.pvalue)


def test_p_values_of_many_pairs_are_close_to_those_of_a_t_test() -> None:
    differences = np.random.default_rng(2).normal(0.25, 1.0, size=80)
    ours, theirs = sign_flip_p_value(differences, seed=4), float(stats.ttest_1samp(differences, 0.0).pvalue)
    assert ours == pytest.approx(theirs, abs=0.01)
    assert sign_flip_p_value(differences, seed=4) == ours
    assert sign_flip_p_value(differences + 10.0) == pytest.approx(1 / 10_000)


SETTINGS = {"missions": {"m": {"env": "E-v1", "kwargs": {"size": (3, 3)}}, "n": {}}, "max_steps": 100}


def result(returns: dict[int, float], failed: int | None = None, **changed: Any) -> EvaluationResult:
    """Episodes by their seeds, of two policies; the second has double returns."""
    episodes = []
    for number, (seed, value) in enumerate(returns.items()):
        fields: Any = {"assignment": {"a": "one", "b": "other"}, "failure": BROKEN if seed == failed else None}
        episodes.append(record("m", number, {"a": value, "b": 2 * value}, seed=seed, **fields))
    return EvaluationResult(episodes=tuple(episodes), settings={**SETTINGS, **changed})


ONE = result({1: 1.0})


def test_results_are_compared_by_seed_without_the_episodes_that_failed_for_one(tmp_path: Path) -> None:
    found = compare_results(result({3: 5.0, 1: 2.0}), result({1: 1.0, 2: 9.0, 3: 3.0}))
    assert (found.n, found.mean_difference) == (2, 1.5 * 1.5)
    found = compare_results(result({1: 5.0, 2: 2.0}, failed=1), result({1: 1.0, 2: 1.0}))
    assert (found.n, found.mean_difference) == (1, 1.5)
    met = result({1: 5.0, 2: 2.0})
    found = compare_results(met, met, first_policy="other", second_policy="one")
    assert (found.n, found.mean_difference, found.wins) == (2, 3.5, 2)
    met.to_json(tmp_path / "r.json")  # in which the tuples of the settings are lists
    assert compare_results(met, EvaluationResult.from_json(tmp_path / "r.json")).ties == 2


@pytest.mark.parametrize(
    ("call", "first", "second", "text"),
    [
        (compare_results, ONE, result({2: 1.0}), "Give the same missions and seed"),
        (compare_results, ONE, result({1: 1.0}, missions={"m": {"env": "F"}}), "The mission 'm' is {'env': "),
        (compare_results, ONE, result({1: 1.0}, max_steps=5), "up to 100 steps in the first and 5 in the second"),
        (compare, {"m": [1.0, 2.0]}, {"m": [1.0]}, "'m' has 2 episodes of the first, 1 of the second"),
        (compare, {"easy": [1.0]}, {"hard": [1.0]}, "no mission in common: easy beside hard"),
    ],
)
def test_evaluations_of_other_episodes_cannot_be_compared(call: Any, first: Any, second: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call(first, second)


# ---- cross-play and Elo ----------------------------------------------------------------------------------------------


def games(first: str, second: str, wins: int, draws: int, losses: int) -> list[Pairing]:
    returns = [(1.0, 0.0)] * wins + [(0.5, 0.5)] * draws + [(0.0, 1.0)] * losses
    return [Pairing(first, second, one, other) for one, other in returns]


def test_a_cross_play_matrix_by_hand() -> None:
    table = cross_play(
        [Pairing("a", "b", 3.0, 1.0), Pairing("b", "a", 2.0, 5.0), Pairing("a", "a", 7.0, 9.0), Pairing("c", "c", 0, 0)]
    )
    assert table.policies == ("a", "b", "c")
    assert table.returns == ((8.0, 4.0, None), (1.5, None, None), (None, None, 0.0))
    assert table.counts == ((1, 2, 0), (2, 0, 0), (0, 0, 1))


@pytest.mark.parametrize(
    ("played", "winner", "loser", "difference"),
    [
        (games("a", "b", 3, 0, 1), "a", "b", 400 * math.log10(3)),  # the odds
        (games("a", "b", 1, 4, 1), "a", "b", 0.0),
        (games("a", "b", 3, 2, 0), "a", "b", 400 * math.log10(4)),  # a draw is half a win
        ([*games("a", "b", 10, 0, 1), *games("b", "c", 10, 0, 1)], "a", "c", 800.0),  # a chain: these never met
    ],
)
def test_ratings_are_the_odds(played: list[Pairing], winner: str, loser: str, difference: float) -> None:
    ratings = elo_ratings(played, prior=1e-9)
    assert ratings[winner].elo - ratings[loser].elo == pytest.approx(difference, abs=1e-4)
    assert np.mean([one.elo for one in ratings.values()]) == pytest.approx(AVERAGE)
    assert ratings["a"].games == sum("a" in (one.first, one.second) for one in played)
    assert [one.elo for one in elo_ratings(random.Random(1).sample(played, len(played)), prior=1e-9).values()] == (
        pytest.approx([one.elo for one in ratings.values()])
    ), "the order of the games does not matter"


def test_a_prior_is_draws_against_an_average_player() -> None:
    # By symmetry a and b stand at +x and -x: 3.5 points of a are expected of 4 games with b and 1 with the average.
    strength = 10 ** ((elo_ratings(games("a", "b", 3, 0, 1), prior=1.0)["a"].elo - AVERAGE) / 400)
    assert 4 * strength**2 / (1 + strength**2) + strength / (1 + strength) == pytest.approx(3.5)
    assert AVERAGE < elo_ratings(games("a", "b", 5, 0, 0))["a"].elo < AVERAGE + 800  # it never lost
    with pytest.raises(ValueError, match="prior=0 is not a number of games above 0"):
        elo_ratings([], prior=0)


def test_intervals_of_ratings_are_seeded_and_hold_the_rating_and_without_games_there_is_none() -> None:
    played = games("a", "b", 8, 3, 6)
    rated = elo_ratings(played, seed=3)["a"]
    assert rated.interval is not None
    assert rated.interval[0] < rated.elo < rated.interval[1]
    assert elo_ratings(played, seed=3)["a"] == rated
    assert len({elo_ratings(played, seed=seed)["a"].interval for seed in range(4)}) > 1
    assert elo_ratings([]) == elo_ratings([Pairing("a", "a", 1.0, 0.0)]) == {}
    assert cross_play([]).policies == ()


def test_pairings_are_the_policies_that_met_in_an_episode() -> None:
    def episode(number: int, policies: str, failure: Failure | None = None) -> EpisodeRecord:
        returns = {str(seat): float(seat) for seat in range(len(policies))}
        assignment = {str(seat): policy for seat, policy in enumerate(policies)}
        return record("m", number, returns, assignment=assignment, failure=failure)

    records = [episode(0, "aab"), episode(1, "aa"), episode(2, "a"), episode(3, "abc"), episode(4, "ab", BROKEN)]
    assert pairings_of(EvaluationResult(episodes=tuple(records))) == [
        Pairing("a", "b", 0.5, 2.0),
        Pairing("a", "a", 0.5, 0.5),
        Pairing("a", "b", 0.0, 1.0),
        Pairing("a", "c", 0.0, 2.0),
        Pairing("b", "c", 1.0, 2.0),
    ]
