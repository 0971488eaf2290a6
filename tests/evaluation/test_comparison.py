"""Two policies on the same episodes: worked by hand, and beside scipy."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from parallel_envs.evaluation.comparison import compare, compare_results, sign_flip_p_value
from parallel_envs.evaluation.records import EpisodeRecord, EvaluationResult, Failure


def test_a_case_worked_by_hand() -> None:
    # Differences 1, 2, 3, 0: of 16 choices of signs, those of 0 count double; a sum of 6 comes with 2 of 8.
    found = compare({"easy": [2.0, 4.0], "hard": [6.0, 0.0]}, {"easy": [1.0, 2.0], "hard": [3.0, 0.0]})
    assert (found.n, found.mean_difference, found.wins, found.ties, found.losses) == (4, 1.5, 3, 1, 0)
    assert found.p_value == 0.25
    assert found.standard_error == pytest.approx((2 * 0.5 + 2 * 4.5) ** 0.5 / 4)
    assert found.interval is not None
    assert found.interval[0] < 1.5 < found.interval[1]


@given(st.lists(st.integers(-9, 9), min_size=2, max_size=8))
def test_exact_p_values_are_those_of_scipy(differences: list[int]) -> None:
    theirs = stats.permutation_test(
        (np.array(differences, float),), np.mean, permutation_type="samples", n_resamples=np.inf
    )
    assert sign_flip_p_value(differences) == pytest.approx(theirs.pvalue)


def test_p_values_of_many_pairs_are_close_to_those_of_a_t_test() -> None:
    differences = np.random.default_rng(2).normal(0.25, 1.0, size=80)
    ours, theirs = sign_flip_p_value(differences, seed=4), float(stats.ttest_1samp(differences, 0.0).pvalue)
    assert ours == pytest.approx(theirs, abs=0.01)
    assert sign_flip_p_value(differences, seed=4) == ours
    assert sign_flip_p_value(differences + 10.0) == pytest.approx(1 / 10_000)


def test_equal_policies_are_not_told_apart() -> None:
    assert compare({"m": [1.0, 2.0]}, {"m": [1.0, 2.0]}).p_value == 1.0


def test_what_makes_episodes_hard_is_no_uncertainty() -> None:
    hardness = np.linspace(-1000.0, 1000.0, 20)
    found = compare({"m": (hardness + 1.0).tolist()}, {"m": hardness.tolist()})
    assert found.interval == pytest.approx((1.0, 1.0))


def test_numbers_without_a_partner_are_refused() -> None:
    with pytest.raises(ValueError, match="'m' has 2 episodes of the first and 1 of the second"):
        compare({"m": [1.0, 2.0]}, {"m": [1.0]})
    with pytest.raises(ValueError, match="no mission in common: easy beside hard"):
        compare({"easy": [1.0]}, {"hard": [1.0]})


# ---- of evaluations --------------------------------------------------------------------------------------------


def result(returns: dict[int, float], failed: int | None = None) -> EvaluationResult:
    failure = Failure(kind="env", error_type="ValueError", message="no")
    return EvaluationResult(
        episodes=tuple(
            EpisodeRecord(
                mission="m",
                episode=number,
                seed=seed,
                assignment={"a": "one", "b": "other"},
                returns={"a": value, "b": 2 * value},
                failure=failure if seed == failed else None,
            )
            for number, (seed, value) in enumerate(returns.items())
        )
    )


def test_episodes_meet_by_their_seed() -> None:
    found = compare_results(result({3: 5.0, 1: 2.0}), result({1: 1.0, 2: 9.0, 3: 3.0}))
    assert (found.n, found.mean_difference) == (2, 1.5 * 1.5)


def test_an_episode_that_failed_for_one_counts_for_neither() -> None:
    found = compare_results(result({1: 5.0, 2: 2.0}, failed=1), result({1: 1.0, 2: 1.0}))
    assert (found.n, found.mean_difference) == (1, 1.5)


def test_two_policies_of_one_evaluation_are_compared() -> None:
    met = result({1: 5.0, 2: 2.0})
    found = compare_results(met, met, first_policy="other", second_policy="one")
    assert (found.n, found.mean_difference, found.wins) == (2, 3.5, 2)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"missions": {"m": {"env": "E-v1", "kwargs": {"size": (5, 5)}}}}, "The mission 'm' is {'env': 'E-v1', "),
        ({"max_steps": 5}, "Episodes have up to 100 steps in the first and 5 in the second"),
    ],
)
def test_other_episodes_under_equal_names_are_refused(settings: dict[str, Any], text: str) -> None:
    own = {"missions": {"m": {"env": "E-v1", "kwargs": {"size": (3, 3)}}, "n": {}}, "max_steps": 100}
    first = dataclasses.replace(result({1: 1.0}), settings=own)
    with pytest.raises(ValueError, match=text):
        compare_results(first, dataclasses.replace(first, settings={**own, **settings}))


def test_a_result_from_a_file_is_compared_with_one_from_here(tmp_path: Path) -> None:
    own = {"missions": {"m": {"env": "E-v1", "kwargs": {"size": (3, 3)}}}, "max_steps": 100}
    first = dataclasses.replace(result({1: 1.0}), settings=own)
    first.to_json(tmp_path / "r.json")
    assert compare_results(first, EvaluationResult.from_json(tmp_path / "r.json")).ties == 1


def test_evaluations_with_other_seeds_are_refused() -> None:
    with pytest.raises(ValueError, match="Give both the same missions and seed"):
        compare_results(result({1: 1.0}), result({2: 1.0}))
