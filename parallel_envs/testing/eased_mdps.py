"""Random MDPs in which it is sooner worth remembering what was done where: a way to begin with `TabularMDPEnv`."""

from __future__ import annotations

from typing import Any

import numpy as np

from parallel_envs.testing.families import Info, Observation, TabularMDP, TabularMDPEnv, task_streams

Step = tuple[Observation, float, bool, bool, Info]


class EasedMDPEnv(TabularMDPEnv):
    """`TabularMDPEnv`, with rewards that are less noisy, and tasks for training that stay within some of the states.

    Among ten states each is seen rarely, and its rewards say little. Among two or three, or without noise, it is soon
    learnt to remember them.

    Task for training: a `TabularMDP` that leads only into so many states as a draw from `fewest` to all says, any of
    them. Task for evaluation (`sample_eval_tasks`): those of `TabularMDPEnv`.

    Args:
        num_states: As for `TabularMDPEnv`.
        num_actions: The same.
        horizon: The same.
        noise: The standard deviation of rewards; 1 in `TabularMDPEnv`.
        fewest: States that a task leads into at least.
    """

    def __init__(
        self, num_states: int = 10, num_actions: int = 5, horizon: int = 10, noise: float = 1.0, fewest: int = 1
    ) -> None:
        super().__init__(num_states, num_actions, horizon)
        self.noise, self.fewest = noise, fewest

    def step(self, action: Any) -> Step:
        mean = float(self._task.rewards[self._state, action])
        observation, reward, terminated, truncated, info = super().step(action)
        return observation, mean + self.noise * (reward - mean), terminated, truncated, info

    @staticmethod
    def sample_tasks(
        num_tasks: int, seed: int = 0, *, num_states: int = 10, num_actions: int = 5, fewest: int = 1
    ) -> list[TabularMDP]:
        streams = task_streams("eased MDP", num_tasks, seed)
        return [_confined(stream, num_states, num_actions, fewest) for stream in streams]

    sample_eval_tasks = staticmethod(TabularMDPEnv.sample_tasks)


def _confined(stream: np.random.Generator, num_states: int, num_actions: int, fewest: int) -> TabularMDP:
    inside = stream.permutation(num_states)[: int(stream.integers(fewest, num_states + 1))]
    transitions = np.zeros((num_states, num_actions, num_states))
    transitions[..., inside] = stream.dirichlet(np.ones(len(inside)), (num_states, num_actions))
    return TabularMDP(transitions, stream.normal(1.0, 1.0, (num_states, num_actions)))
