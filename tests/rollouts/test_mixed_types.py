"""Values whose types differ from row to row: who shares a batch with whom decides nothing."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from parallel_envs import ParallelEnvManager, collect
from tests.vector.conftest import Make


class Uneven(gym.Env[Any, Any]):
    """Tells its task, and pays what an action brings in the action's own precision. Episodes differ in length."""

    observation_space = spaces.Box(-9.0, 9.0, (1,), np.float64)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def reset_task(self, task: int) -> None:
        self.task = task

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(3, 9))
        return np.array([float(self.task)]), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        score = {True: None, False: np.arange(2 + self.task)}[self.left == 1] if self.left < 2 else self.left % 2
        return np.array([float(self.task)]), float((action / 3)[0]), self.left <= 0, False, {"score": score}


def halves(observation: Any) -> Any:
    """In the precision that the task wants."""
    return np.full(1, 0.25) if observation[0] == 0 else np.array([0.7], np.float32)


def told(envs: Any, **settings: Any) -> list[Any]:
    rollouts = collect(envs, halves, 10, tasks=[0, 1] * 5, seed=3, info_keys=["score"], **settings)
    return [
        (rollout.actions.dtype.name, rollout.total_reward, [np.asarray(one).tolist() for one in rollout.infos["score"]])
        for rollout in rollouts
    ]


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.SAME_STEP, AutoresetMode.DISABLED])
def test_infos_and_actions_are_the_same_for_any_number_of_workers(make: Make, mode: AutoresetMode, exact: bool) -> None:
    plain = told(Uneven(), exact=exact)
    assert {kind for kind, _, _ in plain} == {"float32"}
    assert [scores[-2:] for _, _, scores in plain] == [[None, [0, 1]], [None, [0, 1, 2]]] * 5
    for num_workers in (1, 2, 5):
        assert told(make([Uneven] * 5, num_workers=num_workers, autoreset_mode=mode), exact=exact) == plain


def test_what_is_received_env_by_env_has_each_envs_own_info(make: Make) -> None:
    envs: ParallelEnvManager = make([Uneven] * 4, num_workers=2)
    envs.reset(seed=0, tasks=[0, 1, 0, 1])
    for _ in range(2):
        envs.send(np.zeros((4, 1), np.float32))
        ids, *_, infos = envs.recv_each(min_envs=4)
        assert [set(info) for info in infos] == [{"score", "task_id", "episode_index"}] * 4
        assert [info["task_id"] for info in infos] == [env % 2 for env in ids.tolist()]


class Narrow(gym.Env[Any, Any]):
    observation_space = spaces.Discrete(2)
    action_space = spaces.MultiDiscrete([3, 3], dtype=np.int8)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        return 0, 0.0, True, False, {}


def test_an_action_that_the_spaces_type_cannot_hold_is_refused() -> None:
    with pytest.raises(ValueError, match=r"do not all fit into int8: \[\[1, 300\]\]"):
        collect(Narrow(), lambda observation: np.array([1, 300]), 1)
