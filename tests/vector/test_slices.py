"""Many envs in few workers: contiguous slices, each env still on its own."""

from __future__ import annotations

import os
from functools import partial

import pytest

from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv


class PlacedEnv(CountingEnv):
    """Knows which process it lives in."""

    def process(self) -> int:
        return os.getpid()


@pytest.mark.parametrize(("num_envs", "num_workers"), [(5, 1), (5, 2), (6, 3), (7, 3), (4, 4)])
def test_workers_hold_contiguous_slices(make_process: Make, num_envs: int, num_workers: int) -> None:
    places = make_process([PlacedEnv] * num_envs, num_workers=num_workers).call("process")
    slices = [len(list(places[: places.index(pid)])) for pid in dict.fromkeys(places)]
    assert len(slices) == num_workers
    assert list(places) == sorted(places, key=places.index)  # no worker comes back after another
    sizes = [places.count(pid) for pid in dict.fromkeys(places)]
    assert max(sizes) - min(sizes) <= 1


def test_each_env_has_its_own_worker_by_default(make_process: Make) -> None:
    assert len(set(make_process([PlacedEnv] * 3).call("process"))) == 3


def test_envs_of_processes_live_outside_and_those_of_other_backends_inside(backend: str, make: Make) -> None:
    places = make([PlacedEnv] * 2).call("process")
    assert (os.getpid() in places) == (backend != "process")


def test_factories_make_their_own_env_in_order(make: Make) -> None:
    envs = make([partial(CountingEnv, length) for length in range(1, 8)], num_workers=3)
    assert envs.get_attr("length") == tuple(range(1, 8))


def test_one_factory_used_often_makes_envs_of_their_own(make: Make) -> None:
    envs = make([CountingEnv] * 4, num_workers=2)
    envs.set_attr("label", ["a", "b", "c", "d"])
    assert envs.get_attr("label") == ("a", "b", "c", "d")
