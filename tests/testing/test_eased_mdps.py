"""MDPs for training that stay within a few states, and those for evaluation that do not."""

from __future__ import annotations

import numpy as np
import pytest

from parallel_envs.testing.eased_mdps import EasedMDPEnv
from parallel_envs.testing.families import TabularMDPEnv


def test_tasks_stay_within_some_states_and_all_numbers_of_states_come() -> None:
    tasks = EasedMDPEnv.sample_tasks(200, seed=3)
    reachable = [np.flatnonzero(task.transitions.any((0, 1))) for task in tasks]
    assert {len(states) for states in reachable} == set(range(1, 11))
    assert {int(states[0]) for states in reachable if len(states) == 1} > {0, 9}
    env = EasedMDPEnv()
    for task, states in zip(tasks[:20], reachable, strict=False):
        env.reset_task(task)
        env.reset(seed=0)
        seen = {int(np.argmax(env.step(step % 5)[0])) for step in range(10)}
        assert seen <= set(states.tolist())


def test_task_i_of_a_seed_is_the_same_however_many_are_drawn() -> None:
    assert EasedMDPEnv.sample_tasks(5, seed=3)[2] == EasedMDPEnv.sample_tasks(3, seed=3)[2]
    assert EasedMDPEnv.sample_tasks(1, seed=3) != EasedMDPEnv.sample_tasks(1, seed=4)


def test_evaluation_is_on_whole_mdps() -> None:
    assert EasedMDPEnv.sample_eval_tasks(3, seed=1) == TabularMDPEnv.sample_tasks(3, seed=1)


def test_rewards_are_as_noisy_as_is_said() -> None:
    (task,) = EasedMDPEnv.sample_tasks(1, seed=3, fewest=10)
    assert (task.transitions > 0).all()
    told = []
    for env in (EasedMDPEnv(noise=0.0), EasedMDPEnv(noise=1.0), TabularMDPEnv()):
        env.reset_task(task)
        env.reset(seed=4)
        told.append([env.step(2)[1] for _ in range(10)])
    assert told[1] == pytest.approx(told[2])
    assert set(np.round(told[0], 9).tolist()) <= set(np.round(task.rewards[:, 2], 9).tolist())
