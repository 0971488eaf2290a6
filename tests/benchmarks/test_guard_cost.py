"""What watching over workers costs is measured beside a wait that really is blind."""

from __future__ import annotations

import functools
import os
from contextlib import closing

import numpy as np

from benchmarks.step_costs import OursBlind, OursGuarded, measure_guard_cost
from parallel_envs import ParallelEnvManager
from parallel_envs.bench.envs import resolve
from parallel_envs.bench.runners import Workload
from parallel_envs.bench.turns import Pace
from parallel_envs.engine.process import ProcessPool
from tests.benchmarks.stages import EpisodeEnv

WORKLOAD = Workload(factory=functools.partial(EpisodeEnv, 3), action_space=EpisodeEnv.action_space, num_envs=2)


def test_the_blind_one_waits_for_completions_alone() -> None:
    with closing(OursBlind(WORKLOAD)) as blind:
        blind.open()
        pool = blind._pool
        assert isinstance(pool, ProcessPool)
        assert os.get_blocking(pool._completions.fd)
        assert sum(blind.step() for _ in range(8)) > 0
    assert pool.closed


def test_the_guarded_one_has_deadlines_and_restarts() -> None:
    with closing(OursGuarded(WORKLOAD)) as guarded:
        guarded.open()
        envs = guarded._envs
        assert isinstance(envs, ParallelEnvManager)
        assert envs.step_timeout is not None
        assert envs.on_failure == "restart"
        envs.step(np.zeros(2, np.int64))


def test_the_cost_of_guarding_is_a_ratio_with_its_spread() -> None:
    ratio = measure_guard_cost(resolve("spin:20"), num_envs=2, num_workers=2, pace=Pace(seconds=0.02, rounds=1))
    assert ratio.num_samples == 4
    assert 0.2 < ratio.median < 5.0
