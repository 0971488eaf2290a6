"""Seeds of replaced envs: fresh, from the tree of the last seeded reset, and the same in every run."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs import ParallelEnvManager, SeedTree
from parallel_envs.testing import Fault, FaultyEnv, Moment, ScriptedEnv, assert_same_batch
from tests.faults.broken_envs import LONG
from tests.faults.matrix import Make, reset, step


class SeedKeeper(ScriptedEnv):
    """Tells the seeds of its resets."""

    def __init__(self) -> None:
        super().__init__(**LONG)
        self.seeds: list[int | None] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.seeds.append(seed)
        return super().reset(seed=seed, options=options)


def seeds_of(envs: ParallelEnvManager) -> list[Any]:
    return [seeds[0] for seeds in envs.get_attr("seeds")]


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_every_new_life_has_a_seed_of_its_own(make: Make, backend: str) -> None:
    envs = make([SeedKeeper] * 3, backend=backend)
    envs.reset(seed=7)
    seen = set(seeds_of(envs))
    for _ in range(2):
        envs.restart()
        seen |= set(seeds_of(envs))
    assert len(seen) == 3 + 2 * 3


@pytest.mark.parametrize("backend", ["serial", "process"])
def test_they_come_from_the_tree_of_the_last_seeded_reset(make: Make, backend: str) -> None:
    envs = make([SeedKeeper] * 2, backend=backend)
    for seed in (7, 8):
        envs.reset(seed=seed)
        envs.reset()
        envs.restart(1)
        assert seeds_of(envs)[1] in {SeedTree(seed).child("restart", 1, count).seed() for count in (1, 2)}


def test_they_do_not_depend_on_who_else_was_replaced(make: Make) -> None:
    told = []
    for others in ([], [0], [0, 2]):
        envs = make([SeedKeeper] * 3)
        envs.reset(seed=7)
        for other in others:
            envs.restart(other)
        envs.restart(1)
        told.append(seeds_of(envs)[1])
    assert len(set(told)) == 1


@pytest.mark.parametrize("seed", [None, [4, None], [4, 5]], ids=str)
def test_without_one_seed_for_all_they_are_still_fresh(make: Make, seed: Any) -> None:
    envs = make([SeedKeeper] * 2)
    envs.reset(seed=seed)
    envs.restart()
    first = seeds_of(envs)
    envs.restart()
    assert len({*first, *seeds_of(envs)}) == 4


def test_after_a_seeded_reset_the_same_faults_give_the_same_seeds(make: Make) -> None:
    """Whatever happened before that reset: a seed is where a reproducible run begins."""
    assert len(seeds_after_a_seeded_reset(make)) == 1


def seeds_after_a_seeded_reset(make: Make) -> set[int]:
    told = set()
    for earlier in range(3):
        envs = make([SeedKeeper])
        for _ in range(earlier):
            envs.restart()
        envs.reset(seed=7)
        envs.restart()
        told.add(seeds_of(envs)[0])
        envs.close()
    return told


def course(make: Make, folder: Path, num_workers: int, **settings: Any) -> list[Any]:
    """Twelve steps in which two envs break, one of them twice."""
    folder.mkdir()
    faults = {
        0: partial(FaultyEnv, Fault.EXCEPTION, Moment.STEP, at=3, **LONG),
        2: partial(FaultyEnv, Fault.SIGKILL, Moment.STEP, at=5, once=folder / "broken", **LONG),
    }
    fns = [faults.get(env, partial(ScriptedEnv, **LONG)) for env in range(4)]
    envs = make(fns, num_workers=num_workers, on_failure="restart", **settings)
    batches = [reset(envs), *(step(envs) for _ in range(12))]
    envs.close()
    return batches


@pytest.mark.parametrize("num_workers", [2, 4])
def test_two_runs_with_the_same_faults_are_the_same(make: Make, tmp_path: Path, num_workers: int) -> None:
    first, second = (course(make, tmp_path / name, num_workers) for name in ("one", "two"))
    assert_same_batch(first, second)
    marked = [batch[4].get("worker_restarted", np.zeros(4, bool)) for batch in first[1:]]
    assert np.any(marked, axis=0).tolist() == [True, False, True, num_workers == 2]


def test_the_start_method_has_no_part_in_it(make: Make, tmp_path: Path) -> None:
    courses = [course(make, tmp_path / method, 2, context=method) for method in ("forkserver", "fork")]
    assert_same_batch(courses[0], courses[1])
