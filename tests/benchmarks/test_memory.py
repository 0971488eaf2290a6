from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

import gymnasium
import pytest

from benchmarks.memory import FLAT_BYTES, Growth, growth, watch
from parallel_envs.bench.envs import SpinEnv
from parallel_envs.bench.runners import InProcess, Workload


@pytest.fixture
def contestant() -> Iterator[InProcess]:
    workload = Workload(factory=partial(SpinEnv, 0.0), action_space=gymnasium.spaces.Discrete(2), num_envs=2)
    opened = InProcess(workload)
    opened.open()
    yield opened
    opened.close()


def test_ten_points_are_spread_evenly_over_the_steps(contestant: InProcess) -> None:
    points = watch(contestant, 200)
    assert [point.steps for point in points] == [20, 40, 60, 80, 100, 120, 140, 160, 180, 200]
    assert all(point.rss_bytes > 0 and point.num_descriptors > 0 for point in points)


def test_descriptors_that_are_left_open_are_seen(contestant: InProcess) -> None:
    with ExitStack() as left_open:

        def leak(text: str) -> None:
            fd = os.open(os.devnull, os.O_RDONLY)
            left_open.callback(os.close, fd)

        grown = growth(watch(contestant, 200, tell=leak))
    assert grown.num_descriptors == 9
    assert not grown.flat
    assert "NOT flat" in str(grown)


def test_flat_is_less_than_a_mebibyte_and_no_descriptor() -> None:
    assert Growth(FLAT_BYTES, 0).flat
    assert Growth(-FLAT_BYTES, -1).flat
    assert not Growth(FLAT_BYTES + 1, 0).flat
    assert not Growth(0, 1).flat
