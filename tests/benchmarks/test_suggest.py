from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.bench.envs import resolve
from parallel_envs.bench.measure import spread
from parallel_envs.bench.suggest import Advice, Setting, Trial, advise, best, settings_to_try

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


def test_the_fastest_is_best() -> None:
    loop, packed = _trial(Setting(None), 100.0), _trial(Setting("process", 2), 190.0)
    assert best([loop, packed]) is packed


def test_of_settings_equally_fast_the_simpler_is_best() -> None:
    loop, packed = _trial(Setting(None), 100.0), _trial(Setting("process", 2), 102.0)
    assert best([loop, packed]) is loop


def test_a_setting_that_broke_is_never_best() -> None:
    broken = _trial(Setting("process", 2), 190.0, error="it died")
    loop = _trial(Setting(None), 100.0)
    assert best([broken, loop]) is loop
    assert best([broken]) is None


@pytest.mark.parametrize("setting", settings_to_try(num_envs=8, num_cores=2), ids=lambda setting: setting.name)
@pytest.mark.parametrize("name", ["CartPole-v1", "spin:10"])
def test_the_advice_is_a_line_of_python(setting: Setting, name: str) -> None:
    ast.parse(setting.code(resolve(name), num_envs=8))


def test_the_advice_names_what_was_measured() -> None:
    env = resolve("CartPole-v1")
    assert Setting("process", 2).code(env, 8) == 'envs = ParallelEnvManager("CartPole-v1", num_envs=8, num_workers=2)'
    assert Setting("serial").code(env, 8) == 'envs = ParallelEnvManager("CartPole-v1", num_envs=8, backend="serial")'
    assert "SyncVectorEnv" in Setting(None).code(resolve("spin:10"), 8)


# ---- whether it can be told: fed with timings -------------------------------------------------------------------

LOOP, SERIAL, PACKED = Setting(None), Setting("serial"), Setting("process", 2)


def _advice(rates: dict[Setting, list[float]], busy_cores: float | None = 0.0, num_cores: int = 4) -> Advice:
    trials = [Trial(setting=one, spread=spread(own), to_in_process=None, error=None) for one, own in rates.items()]
    return advise(trials, busy_cores=busy_cores, num_cores=num_cores)


def test_intervals_that_are_apart_name_the_fastest_with_its_figures() -> None:
    found = _advice({LOOP: [98, 100, 102, 101], PACKED: [188, 190, 192, 191]})
    assert (found.verdict, found.setting) == ("best", PACKED)
    assert "process, 2 workers 190 env steps/s (quartiles 190 to 191, 4 rounds)" in found.why
    assert "next in-process 100 env steps/s (quartiles 100 to 101, 4 rounds)" in found.why


def test_intervals_that_overlap_are_too_close_to_tell_and_the_simplest_is_named() -> None:
    found = _advice({LOOP: [50, 51, 52], SERIAL: [95, 100, 105], PACKED: [96, 104, 112]})
    assert (found.verdict, found.setting) == ("too close to tell", SERIAL)
    assert "process, 2 workers 104 env steps/s (quartiles 100 to 108, 3 rounds)" in found.why
    assert "serial 100 env steps/s (quartiles 98 to 102, 3 rounds)" in found.why
    assert "in-process" not in found.why


def test_too_few_rounds_have_no_interval() -> None:
    found = _advice({LOOP: [100], PACKED: [190]})
    assert (found.verdict, found.setting) == ("too close to tell", LOOP)
    assert "need 3 rounds or more" in found.why
    assert _advice({LOOP: [100]}).verdict == "best"  # there is no other


def test_other_programs_make_the_answer_worthless() -> None:
    rates = {LOOP: [98.0, 100.0, 102.0], PACKED: [188.0, 190.0, 192.0]}
    found = _advice(rates, busy_cores=1.5)
    assert (found.verdict, found.setting) == ("machine busy", None)
    assert "Other programs keep 1.5 of 4 cores busy" in found.why
    assert _advice(rates, busy_cores=1.5, num_cores=64).verdict == "best"
    assert _advice(rates, busy_cores=None).verdict == "best"  # the system does not tell


def test_rounds_that_differ_too_much_make_the_answer_worthless() -> None:
    found = _advice({LOOP: [98, 100, 102], PACKED: [100, 190, 400]})
    assert (found.verdict, found.setting) == ("machine busy", None)
    assert "its rounds differ by 79%" in found.why


def test_nothing_that_works_is_told() -> None:
    broken = _trial(PACKED, 190.0, error="it died")
    assert advise([broken], busy_cores=0.0, num_cores=4).verdict == "nothing works"


def _trial(setting: Setting, rate: float, error: str | None = None) -> Trial:
    return Trial(setting=setting, spread=spread([rate]), to_in_process=None, error=error)
