"""Rounds, slices, ratios, contestants in processes of their own, and the advice that is made of them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from benchmarks import syscalls
from benchmarks.peers import PEERS
from benchmarks.plan import run_once, run_steps
from benchmarks.startup import GYMNASIUM_FORK, Line, measure_startup
from benchmarks.syscalls import StraceMissing, Trace, measure_calls, parse_summary, per_step
from parallel_envs.bench.envs import UnknownEnv, action_space, resolve
from parallel_envs.bench.measure import (
    Driver,
    MeasurementFailed,
    Slice,
    interleave,
    python_environment,
    run_for,
    spread,
)
from parallel_envs.bench.runners import InProcess, Ours, Runner, Workload
from parallel_envs.bench.step import Setting, Trial, advise, settings_to_try
from tests.benchmarks.stages import Broken, NotingItsProcess, make_exiting


def test_contestants_take_turns_within_a_round_and_each_round_begins_one_later() -> None:
    played: list[str] = []

    def play(name: str) -> int:
        played.append(name)
        return len(played)

    series = interleave({name: partial(play, name) for name in "abc"}, rounds=4)
    assert "".join(played) == "abcbcacababc"
    assert series["a"].samples == [1, 6, 8, 10]


def test_a_slice_lasts_until_its_time_has_passed_and_counts_the_last_call_whole() -> None:
    clock: Iterator[float] = iter([10.0, 10.4, 10.8, 11.2])
    found = run_for(lambda: 8, seconds=1.0, clock=lambda: next(clock))
    assert found.steps == 24
    assert found.seconds == pytest.approx(1.2)
    assert found.rate == pytest.approx(20.0)
    clock = iter([10.0, 10.0])  # one call is one call even where the clock stands still
    assert run_once(lambda: 8, clock=lambda: next(clock)) == Slice(8, 0.0)
    assert [run_steps(lambda: 8, steps) for steps in (20, 0)] == [24, 0]


SPACE = gymnasium.spaces.Discrete(2)


def test_a_contestant_that_takes_its_process_with_it_is_told_with_its_last_words() -> None:
    with Driver(InProcess(Workload(factory=make_exiting, action_space=SPACE, num_envs=1))) as driver:
        driver.load()
        driver.open()
        with pytest.raises(MeasurementFailed, match=r"exit code 7\. It wrote last: farewell"):
            driver.run(0.01)


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


EVERYONE: dict[str, type[Runner]] = {InProcess.name: InProcess, Ours.name: Ours, **PEERS}


def test_the_steps_counted_are_the_calls_of_step(tmp_path: Path) -> None:
    installed = [name for name, each in EVERYONE.items() if each.missing() is None]
    # A process of their own: what peers import and warn of is no part of this test run.
    command = [sys.executable, "-m", "tests.benchmarks.stages", "3", "2", "40", str(tmp_path), *installed]
    done = subprocess.run(command, env=python_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = dict(line.split("=") for line in done.stdout.splitlines() if line.partition("=")[0] in installed)
    counted = {name: int(count) for name, count in told.items()}
    assert counted == {name: (tmp_path / name).stat().st_size for name in installed}
    assert min(counted.values()) >= 40


@pytest.mark.parametrize(
    ("name", "part"),
    [
        ("NoSuchEnv-v1", '"NoSuchEnv-v1" cannot be made: NameNotFound'),
        ("Cart Pole", '"Cart Pole" cannot be made'),
        ("spin:soon", "Give microseconds, as in spin:1000."),
        ("spin:-1", "Give microseconds, as in spin:1000."),
        ("spin:inf", "Give microseconds, as in spin:1000."),
        ("no_such_module:make", "ModuleNotFoundError: No module named 'no_such_module'."),
        ("tests.benchmarks.stages:no_such_function", "no_such_function"),
        ("tests.benchmarks.stages:NOT_CALLABLE", "is a int and cannot be called"),
        ("tests.benchmarks.stages:make_nothing", "made a NoneType, not a gymnasium.Env"),
        ("mpe2/simple_spread-v3", "python -m benchmarks zoo --env mpe2/simple_spread-v3"),
    ],
)
def test_what_is_no_environment_is_named_with_what_to_give_instead(name: str, part: str) -> None:
    with pytest.raises(UnknownEnv) as caught:
        action_space(resolve(name))
    assert part in str(caught.value)
    assert "Give" in str(caught.value) or "mpe2" in name


SUMMARY = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 71.43    0.000050           3        16           read
 28.57    0.000020          10         2         1 write
  0.00    0.000000           0         0           poll
------ ----------- ----------- --------- --------- ----------------
100.00    0.000070           3        18         1 total
"""


def test_the_table_of_strace_is_read_by_column_and_what_starting_up_cost_cancels_out() -> None:
    assert parse_summary(SUMMARY) == {"read": 16, "write": 2, "poll": 0}
    few = Trace(steps=100, calls={"read": 1000, "write": 300})
    many = Trace(steps=300, calls={"read": 1800, "write": 700, "poll": 20})
    assert per_step(few, many) == {"poll": 0.1, "read": 4.0, "write": 2.0}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_gymnasium_makes_six_calls_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "_WARM_UP_STEPS", 50)
    try:
        rows = {row.name: row for row in measure_calls(num_envs=2, steps=200)}
    except StraceMissing as reason:
        pytest.skip(str(reason))
    assert rows["gymnasium"].read_write == pytest.approx(6.0, abs=0.2)
    assert rows["parallel_envs"].error is None
