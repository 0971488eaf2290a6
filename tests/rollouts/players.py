"""Environments and policies that collections are tested with. Workers import this module by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from parallel_envs.policies import AgentPolicy, BatchPolicy
from parallel_envs.rollouts import Rollout
from parallel_envs.testing import InfoKind, ScriptedEnv
from tests.gates import wait_at
from tests.vector.small_envs import CountingEnv
from tests.vector.task_envs import ByResetTask

LENGTHS = (3, 7, 1, 12, 5)
NUM_ACTIONS = 3
# Any action, seed, task or order that went astray changes all that a scripted env observes.
scripted = partial(ScriptedEnv, episode_lengths=LENGTHS, infos=(InfoKind.SCALARS,))


def content(rollouts: Sequence[Rollout]) -> list[tuple[Any, ...]]:
    """All that is in rollouts, to be compared leaf by leaf."""
    return [
        (
            *(one.id, one.task, one.task_id, one.seed, one.episode_index, one.chain, one.actions, one.rewards),
            *(one.terminated, one.truncated, one.records, one.infos),
        )
        for one in rollouts
    ]


def by_observation(observation: Any) -> int:
    """An action that follows from the observation, to the bit."""
    return int(np.frombuffer(np.ascontiguousarray(observation).tobytes(), np.uint8).sum()) % NUM_ACTIONS


class Remembering(AgentPolicy):
    """Acts on all that it has seen since `reset`."""

    def __init__(self) -> None:
        self.seen = 17  # what no reset leaves behind

    def reset(self) -> None:
        self.seen = 0

    def step(self, observation: Any) -> int:
        self.seen = (self.seen * 31 + by_observation(observation)) % 1009
        return self.seen % NUM_ACTIONS


class Counting(BatchPolicy):
    """Keeps the number of steps and the sum of its actions for each row, and records both, with a draw for each."""

    def initial_state(self, num_rows: int) -> Any:
        return {"steps": np.zeros(num_rows, np.int64), "sums": (np.zeros((num_rows, 1)),)}

    def act(self, observations: Any, state: Any, resets: Any, rows: Any) -> tuple[Any, Any]:
        steps, (sums,) = state["steps"], state["sums"]
        assert ((steps == 0) == resets).all()
        draws = rows.uniform(2)
        actions = ((steps + sums[:, 0] + draws[:, 0] * 9).astype(np.int64)) % NUM_ACTIONS
        rows.record(steps=steps, draw=draws, previous_reward=rows.previous_rewards)
        rows.record(previous_action=rows.previous_actions)
        return actions, {"steps": steps + 1, "sums": (sums + actions[:, None],)}


class Acting(BatchPolicy):
    """Acts, and begins, as it is told to."""

    def __init__(self, act: Callable[..., Any], initial: Callable[[int], Any] = lambda num_rows: ()) -> None:
        self._act, self._initial = act, initial

    def initial_state(self, num_rows: int) -> Any:
        return self._initial(num_rows)

    def act(self, observations: Any, state: Any, resets: Any, rows: Any) -> tuple[Any, Any]:
        answer = self._act(observations, state, resets, rows)
        return answer if isinstance(answer, tuple) else (answer, state)


def zeros(observations: Any, state: Any, resets: Any, rows: Any) -> Any:
    return np.zeros(len(rows), np.int64)


class Lasting(CountingEnv):
    """A `CountingEnv` whose episodes last as its task says, and which observes its task in the place of the episode."""

    def __init__(self) -> None:
        super().__init__()
        self.action_space = spaces.Discrete(NUM_ACTIONS)

    def reset_task(self, task: int) -> None:
        self.length = task

    def observed(self) -> Any:
        return np.array([self.length, self.elapsed])


class GatedTask(ByResetTask):
    """Waits at a gate before each first step of an episode on task 0, and at no other."""

    def __init__(self, gate: Path) -> None:
        super().__init__(length=2)
        self.gate = gate

    def step(self, action: Any) -> Any:
        if self.task == 0 and self.elapsed == 0:
            wait_at(self.gate)
        return super().step(action)


class Loose(ScriptedEnv):
    """Observes float64 lists where its space says float32 arrays, and reuses its buffer."""

    def _observe(self) -> Any:
        return np.asarray(super()._observe(), np.float64) / 3
