"""Random MDPs of which most are small: a gentler way to learn what `TabularMDPEnv` asks for."""

from __future__ import annotations

import numpy as np

from parallel_envs.testing.families import TabularMDP, TabularMDPEnv, task_streams


class EasedMDPEnv(TabularMDPEnv):
    """`TabularMDPEnv`, whose tasks for training stay within a few of the states, other ones on each task.

    What is to be remembered of ten states is hard to learn from ten states: each is seen too rarely for what was done
    there to be worth remembering. Among two or three it is soon worth it, and the same holds for all.

    Task for training: a `TabularMDP` that leads only into so many states as a draw from 1 to all says, any of them.
    Task for evaluation (`sample_eval_tasks`): those of `TabularMDPEnv`.
    """

    @staticmethod
    def sample_tasks(num_tasks: int, seed: int = 0, *, num_states: int = 10, num_actions: int = 5) -> list[TabularMDP]:
        streams = task_streams("eased MDP", num_tasks, seed)
        return [_confined(stream, num_states, num_actions) for stream in streams]

    sample_eval_tasks = staticmethod(TabularMDPEnv.sample_tasks)


def _confined(stream: np.random.Generator, num_states: int, num_actions: int) -> TabularMDP:
    inside = stream.permutation(num_states)[: int(stream.integers(1, num_states + 1))]
    transitions = np.zeros((num_states, num_actions, num_states))
    transitions[..., inside] = stream.dirichlet(np.ones(len(inside)), (num_states, num_actions))
    return TabularMDP(transitions, stream.normal(1.0, 1.0, (num_states, num_actions)))
