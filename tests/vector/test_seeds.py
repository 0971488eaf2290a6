"""Seeds go to envs by Gymnasium's rules."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from parallel_envs.testing import ScriptedEnv, assert_same_batch
from tests.vector.conftest import Make
from tests.vector.small_envs import ArgumentsEnv


@pytest.mark.parametrize(
    ("seed", "given"),
    [
        (5, ["5", "6", "7"]),
        (0, ["0", "1", "2"]),
        ([9, 3, 4], ["9", "3", "4"]),
        ([9, None, 4], ["9", "None", "4"]),
        (None, ["None", "None", "None"]),
    ],
)
def test_each_env_gets_its_seed(make: Make, seed: Any, given: list[str]) -> None:
    _, infos = make([ArgumentsEnv] * 3, num_workers=2).reset(seed=seed)
    assert infos["seed"].tolist() == given


@pytest.mark.parametrize("seeds", [[1, 2], [1, 2, 3, 4], []])
def test_a_wrong_number_of_seeds_is_refused(make: Make, seeds: list[int]) -> None:
    envs = make([ArgumentsEnv] * 3)
    with pytest.raises(ValueError, match=f"(?=.*num_envs=3)(?=.*{len(seeds)} |.*length={len(seeds)})"):
        envs.reset(seed=seeds)
    assert envs.reset(seed=1)[1]["seed"].tolist() == ["1", "2", "3"]


def test_the_callers_list_of_seeds_stays_as_it_is(make: Make) -> None:
    seeds = [1, None]
    make([ArgumentsEnv] * 2).reset(seed=seeds)
    assert seeds == [1, None]


def test_autoresets_are_not_seeded(make: Make) -> None:
    envs = make([ArgumentsEnv] * 2, autoreset_mode="SameStep")
    envs.reset(seed=4)
    infos = [envs.step(np.zeros(2, int))[4] for _ in range(3)][-1]
    assert infos["seed"].tolist() == ["None", "None"]


def test_np_random_seed_is_that_of_the_envs(make: Make) -> None:
    envs = make([ScriptedEnv] * 3)
    envs.reset(seed=[7, 1, 5])
    assert envs.np_random_seed == (7, 1, 5)


def test_np_random_are_the_generators_of_the_envs(make: Make) -> None:
    envs, reference = make([ScriptedEnv] * 2), SyncVectorEnv([ScriptedEnv] * 2)
    for each in (envs, reference):
        each.reset(seed=3)
    states: Any = [[generator.bit_generator.state for generator in each.np_random] for each in (envs, reference)]
    assert isinstance(envs.np_random, tuple)
    assert_same_batch(states[0], states[1])


def test_same_seed_same_course_again(make: Make) -> None:
    envs = make([ScriptedEnv] * 2)
    actions = np.array([0, 1])
    courses = [[envs.reset(seed=8), *(envs.step(actions) for _ in range(6))] for _ in range(2)]
    assert_same_batch(courses[1], courses[0])
