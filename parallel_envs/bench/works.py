"""What `bench rollouts` collects: environments, tasks and a policy, all decided beforehand.

The environments travel into workers, so nothing heavy is imported before it is needed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.spaces import Space

from parallel_envs.bench.contestants import Workload
from parallel_envs.bench.envs import SpinEnv
from parallel_envs.bench.machine import Needs
from parallel_envs.policies import BatchPolicy, Rows
from parallel_envs.rollouts.collector import PlannedRollout, plan_rollouts
from parallel_envs.testing.ant_direction import AntDirection

PolicyMaker = Callable[[Space[Any], Space[Any]], BatchPolicy]

_SEED = 0
_ANT_STEPS = 200
_ANT_ROLLOUTS = 16
_SHORTEST, _LONGEST, _UNEQUAL_ROLLOUTS = 10, 400, 32
_STEP_MICROSECONDS = 150.0
_MUJOCO, _TORCH = ("mujoco", "gymnasium[mujoco]"), ("torch", "torch")


@dataclass(frozen=True, kw_only=True)
class Work(Workload):
    """Rollouts to be collected, one for each task. `num_envs` is how many environments a collector has.

    Rollouts are cut off after `max_steps`. `num_steps` is how many steps all of them have together.
    """

    make_policy: PolicyMaker
    tasks: tuple[Any, ...]
    max_steps: int
    num_steps: int
    in_lock_step: bool = False
    """Whether a lock-step collector is measured beside: it can do without what a policy remembers."""

    @property
    def orders(self) -> list[PlannedRollout]:
        """Tasks, seeds and random generators: what makes the rollouts of all collectors the same."""
        return plan_rollouts(len(self.tasks), self.tasks, seed=_SEED, first_id=0)


class LastingEnv(SpinEnv):
    """Its task is the length of its episodes. Each step burns some processor time."""

    def __init__(self, microseconds: float = _STEP_MICROSECONDS) -> None:
        super().__init__(microseconds)
        self._length, self._elapsed = _SHORTEST, 0

    def reset_task(self, task: int) -> None:
        self._length = task

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.float32], dict[str, Any]]:
        self._elapsed = 0
        return super().reset(seed=seed, options=options)

    def step(self, action: np.int64) -> tuple[npt.NDArray[np.float32], float, bool, bool, dict[str, Any]]:
        observation, _, _, _, info = super().step(action)
        self._elapsed += 1
        return observation, float(action), self._elapsed >= self._length, False, info


class CoinPolicy(BatchPolicy):
    """Tosses a coin for each row: the cheapest policy whose rollouts can be told apart."""

    def act(self, observations: Any, state: Any, resets: npt.NDArray[np.bool_], rows: Rows) -> tuple[Any, Any]:
        return (rows.uniform() < 0.5).astype(np.int64), state


def make_ant() -> gymnasium.Env[Any, Any]:
    return AntDirection(terminate_when_unhealthy=False)


def _markov(observation_space: Space[Any], action_space: Space[Any]) -> BatchPolicy:
    from parallel_envs.rollouts.networks import markov_policy

    return markov_policy(observation_space, action_space)


def _memory(observation_space: Space[Any], action_space: Space[Any]) -> BatchPolicy:
    from parallel_envs.rollouts.networks import memory_policy

    return memory_policy(observation_space, action_space)


def _coin(observation_space: Space[Any], action_space: Space[Any]) -> BatchPolicy:
    return CoinPolicy()


def _ant(num_envs: int, make_policy: PolicyMaker) -> Work:
    return Work(
        factory=make_ant,
        action_space=gymnasium.spaces.Box(-1.0, 1.0, (8,), np.float32),
        num_envs=num_envs,
        make_policy=make_policy,
        tasks=tuple(AntDirection.sample_tasks(_ANT_ROLLOUTS, seed=_SEED)),
        max_steps=_ANT_STEPS,
        num_steps=_ANT_ROLLOUTS * _ANT_STEPS,
    )


def unequal_work(
    num_envs: int, num_rollouts: int = _UNEQUAL_ROLLOUTS, microseconds: float = _STEP_MICROSECONDS
) -> Work:
    """Rollouts of 10 to 400 steps, every length as likely as any other."""
    drawn = np.random.default_rng(_SEED).integers(_SHORTEST, _LONGEST + 1, num_rollouts)
    return Work(
        factory=functools.partial(LastingEnv, microseconds),
        action_space=gymnasium.spaces.Discrete(2),
        num_envs=num_envs,
        make_policy=_coin,
        tasks=tuple(drawn.tolist()),
        max_steps=_LONGEST,
        num_steps=int(drawn.sum()),
        in_lock_step=True,
    )


WORKS: dict[str, Callable[[int], Work]] = {
    "ant-mlp": functools.partial(_ant, make_policy=_markov),
    "ant-recurrent": functools.partial(_ant, make_policy=_memory),
    "unequal": unequal_work,
}
"""By name, for a number of environments."""

NEEDS: dict[str, Needs] = {"ant-mlp": (_MUJOCO, _TORCH), "ant-recurrent": (_MUJOCO, _TORCH), "unequal": ()}
"""What must be installed for each."""
