"""`copy=False`: arrays that stay right until the step after next, and no longer."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from parallel_envs.testing import ScriptedEnv, assert_same_batch, check_vector_env
from tests.vector.conftest import Make, Manager
from tests.vector.small_envs import CountingEnv

ACTIONS = np.zeros(2, int)


def observations(envs: Manager, num_steps: int) -> list[Any]:
    """Observations of a reset and some steps, as they came."""
    first, _ = envs.reset(seed=0)
    return [first, *(envs.step(ACTIONS)[0] for _ in range(num_steps))]


@pytest.mark.parametrize("shared_memory", [None, False])
def test_the_last_two_results_are_right(make: Make, shared_memory: bool | None) -> None:
    envs = make([partial(CountingEnv, 100)] * 2, copy=False, shared_memory=shared_memory)
    kept = observations(envs, 0)
    for number in range(1, 7):
        kept.append(envs.step(ACTIONS)[0])
        assert kept[-1].tolist() == [[0, number]] * 2
        assert kept[-2].tolist() == [[0, number - 1]] * 2


def test_the_memory_is_used_again(make_process: Make) -> None:
    kept = observations(make_process([partial(CountingEnv, 100)] * 2, copy=False), 4)
    assert np.shares_memory(kept[0], kept[2])
    assert np.shares_memory(kept[1], kept[3])
    assert not np.shares_memory(kept[0], kept[1])
    assert kept[0].tolist() == kept[4].tolist() == [[0, 4]] * 2


def test_with_copies_no_memory_is_shared(make: Make) -> None:
    kept = observations(make([partial(CountingEnv, 100)] * 2), 4)
    assert not any(np.shares_memory(one, other) for one in kept for other in kept if one is not other)
    assert [array[0, 1] for array in kept] == [0, 1, 2, 3, 4]


def test_a_masked_reset_keeps_the_rows_of_the_others(make: Make) -> None:
    envs = make([partial(CountingEnv, 100)] * 2, copy=False)
    observations(envs, 3)
    before = envs.step(ACTIONS)[0]
    after, _ = envs.reset(options={"reset_mask": np.array([True, False])})
    assert before.tolist() == [[0, 4], [0, 4]]
    assert after.tolist() == [[1, 0], [0, 4]]


@pytest.mark.parametrize("reset", [False, True])
def test_what_was_returned_outlives_a_send(make: Make, reset: bool) -> None:
    envs = make([partial(CountingEnv, 100)] * 2, copy=False)
    before = observations(envs, 3)[-1]
    if reset:
        envs.send_reset([0])
    else:
        envs.send(ACTIONS[:1], [0])
    assert envs.recv()[1].tolist() == [[1, 0] if reset else [0, 4]]
    assert before.tolist() == [[0, 3], [0, 3]]
    after, _ = envs.reset(env_ids=[0])
    assert after[1].tolist() == [0, 3]


def test_values_are_those_of_copies(backend: str) -> None:
    space = spaces.Dict(image=spaces.Box(0, 255, (4, 4), np.uint8), text=spaces.Text(4), point=spaces.Box(0, 1, ()))
    make = partial(ScriptedEnv, space)
    for mode in ("NextStep", "SameStep", "Disabled"):
        check_vector_env(make, 1, 30, num_envs=3, num_workers=2, backend=backend, copy=False, autoreset_mode=mode)


def test_rewards_and_flags_keep_as_long(make: Make) -> None:
    envs = make([partial(CountingEnv, 3)] * 2, copy=False)
    envs.reset(seed=0)
    before = envs.step(ACTIONS)[1:4]
    after = envs.step(ACTIONS)[1:4]
    no = np.array([False, False])
    assert_same_batch(before, (np.array([1.0, 1.0]), no, no))
    assert_same_batch(after, (np.array([2.0, 2.0]), no, no))


def test_results_outlive_the_manager(make: Make) -> None:
    envs = make([partial(CountingEnv, 100)] * 2, copy=False)
    last = observations(envs, 2)[-1]
    envs.close()
    assert last.tolist() == [[0, 2]] * 2
