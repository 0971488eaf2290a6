"""Work goes to whoever is free."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

from parallel_envs import collect
from tests.gates import MANY, Gate
from tests.rollouts.players import Acting, GatedTask, zeros
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv


@pytest.mark.parametrize("num_rollouts", [2, 4])
def test_fewer_rollouts_than_envs_are_shared_out_among_all_workers(make: Make, num_rollouts: int) -> None:
    envs = make([CountingEnv] * 8, num_workers=2)
    collect(envs, Acting(zeros), num_rollouts)
    steps = [worker["steps"] for worker in envs.stats()]
    assert steps[0] == steps[1] > 0


class Playing(Acting):
    """Opens the gate once as many rollouts as are not gated have been begun and ended; notes how many act at once."""

    def __init__(self, gate: Gate, num_others: int) -> None:
        super().__init__(zeros)
        self.gate, self.left, self.at_once = gate, num_others, [0]

    def act(self, observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        self.at_once.append(len(rows))
        ending = observations[:, 2] == 1  # each plays two steps: this action is the last
        self.left -= int((ending & (observations[:, 0] != 0)).sum())
        if self.left == 0:
            self.left = -1
            self.gate.let_through(MANY)
        return super().act(observations, state, resets, rows)


@pytest.mark.parametrize("num_envs", [2, 5])
@pytest.mark.parametrize("place", [0, 4])
def test_while_one_env_is_slow_the_others_play_all_the_rest(
    make_parallel: Make, gate: Gate, num_envs: int, place: int
) -> None:
    tasks = [1] * 12
    tasks[place] = 0
    envs = make_parallel([partial(GatedTask, gate.path)] * num_envs)
    policy = Playing(gate, num_others=11)  # the gate stays closed until the other eleven have taken their last actions
    rollouts = collect(envs, policy, 12, tasks=tasks)
    assert [rollout.task for rollout in rollouts] == tasks
    assert {len(rollout) for rollout in rollouts} == {2}


def test_while_all_but_one_env_are_slow_that_one_plays_all_the_rest(make_parallel: Make, gate: Gate) -> None:
    tasks = [0, 0, 0, 0, *[1] * 8]
    envs = make_parallel([partial(GatedTask, gate.path)] * 5)
    rollouts = collect(envs, Playing(gate, num_others=8), 12, tasks=tasks)
    assert [rollout.task for rollout in rollouts] == tasks


def test_a_policy_acts_for_several_rows_in_one_call(make: Make, gate: Gate) -> None:
    policy = Playing(gate, num_others=16)
    collect(make([partial(GatedTask, gate.path)] * 4), policy, 16, tasks=[1] * 16)
    assert max(policy.at_once) > 1


def test_envs_without_work_are_left_alone(make: Make) -> None:
    envs = make([partial(GatedTask, "no gate")] * 5)  # type: ignore[arg-type]  # never opened
    collect(envs, Acting(zeros), 2, tasks=[1, 2])
    assert envs.get_attr("num_given") == (1, 1, 0, 0, 0)
    assert sorted(envs.get_attr("episode")) == [-1, -1, -1, 0, 0]


def test_the_shape_of_a_batch_is_that_of_the_rows(make: Make) -> None:
    def act(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
        assert observations.shape == (len(rows), 3)
        assert (len(resets), len(rows.generators), len(rows.previous_rewards)) == (len(rows),) * 3
        assert np.array_equal(np.stack(rows.singles()), observations)
        assert rows.uniform().shape == (len(rows),)
        assert rows.normal(2, 3).shape == (len(rows), 2, 3)
        return zeros(observations, state, resets, rows)

    collect(make([partial(GatedTask, "no gate")] * 3), Acting(act), 7, tasks=[1] * 7)  # type: ignore[arg-type]
