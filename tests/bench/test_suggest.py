from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.bench.envs import resolve
from parallel_envs.bench.measure import spread
from parallel_envs.bench.suggest import Setting, Trial, best, settings_to_try

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


def _trial(setting: Setting, rate: float, error: str | None = None) -> Trial:
    return Trial(setting=setting, spread=spread([rate]), to_in_process=None, error=error)
