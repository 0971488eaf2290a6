from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.bench.measure import (
    MeasurementFailed,
    Slice,
    interleave,
    paired_ratio,
    rotations,
    run_for,
    run_once,
    run_steps,
    spread,
)

rates = st.floats(min_value=1e-3, max_value=1e9)


def test_each_round_begins_one_later() -> None:
    assert list(rotations(["a", "b", "c"], 4)) == [
        ("a", "b", "c"),
        ("b", "c", "a"),
        ("c", "a", "b"),
        ("a", "b", "c"),
    ]


def test_contestants_take_turns_within_a_round() -> None:
    played: list[str] = []

    def play(name: str) -> int:
        played.append(name)
        return len(played)

    series = interleave({name: partial(play, name) for name in "ab"}, rounds=3)
    assert played == ["a", "b", "b", "a", "a", "b"]
    assert series["a"].samples == [1, 4, 5]
    assert series["b"].samples == [2, 3, 6]


def test_a_contestant_that_breaks_is_out_and_the_others_go_on() -> None:
    outcomes = iter([1.0])

    def breaking() -> float:
        for outcome in outcomes:
            return outcome
        raise MeasurementFailed("its worker died")

    series = interleave({"breaking": breaking, "steady": lambda: 2.0}, rounds=4)
    assert series["breaking"].samples == [1.0]
    assert series["breaking"].error == "its worker died"
    assert series["steady"].samples == [2.0] * 4
    assert series["steady"].error is None


def test_a_slice_lasts_until_its_time_has_passed_and_counts_the_last_call_whole() -> None:
    clock: Iterator[float] = iter([10.0, 10.4, 10.8, 11.2])
    found = run_for(lambda: 8, seconds=1.0, clock=lambda: next(clock))
    assert found.steps == 24
    assert found.seconds == pytest.approx(1.2)


def test_one_call_is_one_call_even_where_the_clock_stands_still() -> None:
    clock: Iterator[float] = iter([10.0, 10.0])
    assert run_once(lambda: 8, clock=lambda: next(clock)) == Slice(8, 0.0)


def test_the_rate_of_a_slice_is_steps_over_seconds() -> None:
    assert Slice(steps=30, seconds=1.5).rate == 20.0


def test_steps_are_made_until_there_are_enough() -> None:
    assert run_steps(lambda: 8, 20) == 24
    assert run_steps(lambda: 8, 0) == 0


@given(st.lists(rates, min_size=1, max_size=30))
def test_spread_is_the_median_and_the_interpolated_quartiles(samples: list[float]) -> None:
    found = spread(samples)
    lower, middle, upper = np.percentile(samples, [25, 50, 75])
    assert found.lower_quartile == pytest.approx(lower)
    assert found.median == pytest.approx(middle)
    assert found.upper_quartile == pytest.approx(upper)
    assert found.num_samples == len(samples)


@given(st.lists(rates, min_size=1, max_size=20), st.floats(min_value=0.1, max_value=10.0))
def test_a_ratio_is_blind_to_what_slows_whole_rounds(slowness: list[float], factor: float) -> None:
    found = paired_ratio([each * factor for each in slowness], slowness)
    assert found is not None
    assert found.lower_quartile == pytest.approx(factor)
    assert found.upper_quartile == pytest.approx(factor)


def test_rounds_that_one_side_did_not_finish_are_no_part_of_the_ratio() -> None:
    found = paired_ratio([2.0, 4.0, 9.0], [1.0, 2.0])
    assert found is not None
    assert (found.median, found.num_samples) == (2.0, 2)
    assert paired_ratio([1.0], []) is None
