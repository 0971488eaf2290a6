"""Rounds, slices, ratios, contestants in processes of their own, and the advice that is made of them."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.plan import run_once, run_steps
from benchmarks.startup import GYMNASIUM_FORK, Line, measure_startup
from parallel_envs.bench import machine
from parallel_envs.bench.envs import SpinEnv, resolve
from parallel_envs.bench.measure import MeasurementFailed, Slice, interleave, paired_ratio, run_for, spread
from parallel_envs.bench.runners import InProcess, Workload
from parallel_envs.bench.step import Setting, Trial, advise, best, settings_to_try
from parallel_envs.bench.turns import Driver
from tests.benchmarks.stages import Broken, NotingItsProcess, make_exiting

rates = st.floats(min_value=1e-3, max_value=1e9)


def test_contestants_take_turns_within_a_round_and_each_round_begins_one_later() -> None:
    played: list[str] = []

    def play(name: str) -> int:
        played.append(name)
        return len(played)

    series = interleave({name: partial(play, name) for name in "abc"}, rounds=4)
    assert "".join(played) == "abcbcacababc"
    assert series["a"].samples == [1, 6, 8, 10]


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
    assert found.rate == pytest.approx(20.0)
    clock = iter([10.0, 10.0])  # one call is one call even where the clock stands still
    assert run_once(lambda: 8, clock=lambda: next(clock)) == Slice(8, 0.0)
    assert [run_steps(lambda: 8, steps) for steps in (20, 0)] == [24, 0]


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


SPACE = gymnasium.spaces.Discrete(2)
SPINNING = Workload(factory=partial(SpinEnv, 10.0), action_space=SPACE, num_envs=2)


def test_a_contestant_opens_runs_and_closes_in_its_own_process_again_and_again() -> None:
    with Driver(InProcess(SPINNING)) as driver:
        driver.load()
        for _ in range(2):
            assert driver.open() > 0.0
            assert driver.run(0.01).steps > 0
            assert driver.close() >= 0.0


def test_an_error_of_the_contestant_comes_up_in_its_own_words() -> None:
    with Driver(Broken(SPINNING)) as driver:
        driver.load()
        with pytest.raises(MeasurementFailed, match="RuntimeError: this space is not supported"):
            driver.open()


def test_a_contestant_that_takes_its_process_with_it_is_told_with_its_last_words() -> None:
    with Driver(InProcess(Workload(factory=make_exiting, action_space=SPACE, num_envs=1))) as driver:
        driver.load()
        driver.open()
        with pytest.raises(MeasurementFailed, match=r"exit code 7\. It wrote last: farewell"):
            driver.run(0.01)


@dataclass
class Stat:
    """A file that says something else each time it is read."""

    looks: Iterator[str]

    def exists(self) -> bool:
        return True

    def read_text(self) -> str:
        return next(self.looks)


def test_facts_hold_no_name_and_no_path() -> None:
    facts = machine.facts()
    assert facts.keys() == {"cores", "busy_cores_beside", "processor", "system", "python", "versions"}
    assert "/" not in repr(facts)


def test_busy_cores_are_the_busy_share_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    # user nice system idle iowait irq softirq steal guest guest_nice; guest time is within user time
    looks = iter(["cpu 100 0 100 800 0 0 0 0 7 7\ncpu0", "cpu 130 10 110 840 0 5 5 0 9 9\ncpu0"])
    monkeypatch.setattr(machine, "_STAT", Stat(looks))
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    assert machine.busy_cores(0.0) == pytest.approx(60 / 100 * 4)


def test_where_the_system_does_not_tell_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_STAT", tmp_path / "stat")
    assert machine.busy_cores() is None


def test_a_warm_line_starts_in_one_program_and_a_cold_one_in_a_fresh_program_each_time(tmp_path: Path) -> None:
    warm, cold = tmp_path / "warm", tmp_path / "cold"
    lines = [
        Line(GYMNASIUM_FORK, partial(NotingItsProcess, note=warm)),
        Line("cold", partial(NotingItsProcess, note=cold), cold=True),
        Line("broken", Broken),
    ]
    *rows, broken = measure_startup(resolve("spin:0"), num_envs=1, rounds=2, lines=lines)
    assert [row.open_seconds.num_samples for row in rows if row.open_seconds is not None] == [2, 2]
    assert len(warm.read_text().split()) == 3  # the first start is not counted
    assert len(set(warm.read_text().split())) == 1
    assert len(set(cold.read_text().split())) == 2
    assert rows[0].to_gymnasium == 1.0
    assert broken.error == "RuntimeError: this space is not supported"
    assert (broken.open_seconds, broken.to_gymnasium) == (None, None)


counts = st.integers(min_value=1, max_value=300)


def test_settings_run_from_the_plain_loop_to_one_worker_per_env() -> None:
    assert [each.name for each in settings_to_try(num_envs=32, num_cores=4)] == [
        "in-process",
        "serial",
        "thread, 4 workers",
        "process, 1 worker",
        "process, 2 workers",
        "process, 4 workers",
        "process, 32 workers",
    ]


@given(counts, counts)
def test_no_setting_comes_twice_or_has_more_workers_than_envs(num_envs: int, num_cores: int) -> None:
    settings = settings_to_try(num_envs, num_cores)
    assert len({each.name for each in settings}) == len(settings)
    assert all(1 <= each.num_workers <= num_envs for each in settings)


@pytest.mark.parametrize("setting", settings_to_try(num_envs=8, num_cores=2), ids=lambda setting: setting.name)
@pytest.mark.parametrize("name", ["CartPole-v1", "spin:10"])
def test_the_advice_is_a_line_of_python(setting: Setting, name: str) -> None:
    ast.parse(setting.code(resolve(name), num_envs=8))


def test_the_advice_names_what_was_measured() -> None:
    env = resolve("CartPole-v1")
    assert Setting("process", 2).code(env, 8) == 'envs = ParallelEnvManager("CartPole-v1", num_envs=8, num_workers=2)'
    assert Setting("serial").code(env, 8) == 'envs = ParallelEnvManager("CartPole-v1", num_envs=8, backend="serial")'
    assert "SyncVectorEnv" in Setting(None).code(resolve("spin:10"), 8)


LOOP, SERIAL, PACKED = Setting(None), Setting("serial"), Setting("process", 2)


BUSY = {"busy_cores": 1.5, "num_cores": 4}
STEADY = {LOOP: [98.0, 100.0, 102.0, 101.0], PACKED: [188.0, 190.0, 192.0, 191.0]}
FIGURES = "process, 2 workers 190 env steps/s (quartiles 190 to 191, 4 rounds)"
NEXT = "next in-process 100 env steps/s (quartiles 100 to 101, 4 rounds)"


@pytest.mark.parametrize(
    ("rates", "load", "verdict", "setting", "why"),
    [
        (STEADY, {}, "best", PACKED, [FIGURES, NEXT]),
        (
            {LOOP: [50, 51, 52], SERIAL: [95, 100, 105], PACKED: [96, 104, 112]},
            {},
            "too close to tell",
            SERIAL,  # the simplest of these
            ["2 workers 104 env steps/s (quartiles 100 to 108, 3 rounds)", "serial 100 env steps/s (quartiles 98 to 1"],
        ),
        ({LOOP: [100], PACKED: [190]}, {}, "too close to tell", LOOP, ["need 3 rounds or more"]),
        ({LOOP: [100]}, {}, "best", LOOP, []),  # there is no other
        (STEADY, BUSY, "machine busy", None, ["Other programs keep 1.5 of 4 cores busy"]),
        (STEADY, {**BUSY, "num_cores": 64}, "best", PACKED, []),
        (STEADY, {"busy_cores": None}, "best", PACKED, []),  # the system does not tell
        ({LOOP: [98, 100, 102], PACKED: [100, 190, 400]}, {}, "machine busy", None, ["its rounds differ by 79%"]),
        ({}, {}, "nothing works", None, []),
    ],
)
def test_advice_is_what_the_timings_allow(
    rates: dict[Setting, list[float]], load: dict[str, Any], verdict: str, setting: Setting | None, why: list[str]
) -> None:
    trials = [Trial(setting=one, spread=spread(own), to_in_process=None, error=None) for one, own in rates.items()]
    trials.append(_trial(Setting("thread", 2), 1000.0, error="it died"))  # what broke is never best
    found = advise(trials, **{"busy_cores": 0.0, "num_cores": 4, **load})
    assert (found.verdict, found.setting) == (verdict, setting)
    assert [part for part in why if part not in found.why] == []
    assert setting is not SERIAL or "in-process" not in found.why


def _trial(setting: Setting, rate: float, error: str | None = None) -> Trial:
    return Trial(setting=setting, spread=spread([rate]), to_in_process=None, error=error)


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([(LOOP, 100.0, None), (PACKED, 190.0, None)], PACKED),
        ([(LOOP, 100.0, None), (PACKED, 102.0, None)], LOOP),  # equally fast, and simpler
        ([(LOOP, 100.0, None), (PACKED, 190.0, "it died")], LOOP),
        ([(PACKED, 190.0, "it died")], None),
    ],
)
def test_the_fastest_is_best(rates: list[tuple[Setting, float, str | None]], expected: Setting | None) -> None:
    found = best([_trial(*one) for one in rates])
    assert (found and found.setting) == expected
