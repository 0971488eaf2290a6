from __future__ import annotations

from functools import partial

import gymnasium
import pytest

from parallel_envs.bench.envs import SpinEnv
from parallel_envs.bench.measure import MeasurementFailed
from parallel_envs.bench.runners import InProcess, Workload
from parallel_envs.bench.turns import Driver
from tests.benchmarks.stages import Broken, make_exiting

SPACE = gymnasium.spaces.Discrete(2)


def test_a_contestant_opens_runs_and_closes_in_its_own_process_again_and_again() -> None:
    with Driver(InProcess(_spinning())) as driver:
        driver.load()
        for _ in range(2):
            assert driver.open() > 0.0
            assert driver.run(0.01).steps > 0
            assert driver.close() >= 0.0


def test_an_error_of_the_contestant_comes_up_in_its_own_words() -> None:
    with Driver(Broken(_spinning())) as driver:
        driver.load()
        with pytest.raises(MeasurementFailed, match="RuntimeError: this space is not supported"):
            driver.open()


def test_a_contestant_that_takes_its_process_with_it_is_told_with_its_last_words() -> None:
    with Driver(InProcess(Workload(factory=make_exiting, action_space=SPACE, num_envs=1))) as driver:
        driver.load()
        driver.open()
        with pytest.raises(MeasurementFailed, match=r"exit code 7\. It wrote last: farewell"):
            driver.run(0.01)


def _spinning() -> Workload:
    return Workload(factory=partial(SpinEnv, 10.0), action_space=SPACE, num_envs=2)
