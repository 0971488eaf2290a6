"""Learners in small environments, and loops whose collecting and learning take random times."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from parallel_envs.choices import UpdateModeName
from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig, SACConfig
from parallel_envs.learners.algorithm import Agent, Plan, UpdateReport
from parallel_envs.learners.loops import Loop, LoopOptions, open_loop
from parallel_envs.learners.loops.learner_thread import UpdateJob
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.learners.updates import SequentialUpdates
from tests.learners.test_independent import Pressing, pressing

PPO = PPOConfig(rollout_length=10, minibatch_size=20, num_epochs=2, hidden=(8,), learning_rate=1e-2)
GRU = PPOConfig(rollout_length=6, minibatch_size=12, network="gru", hidden=(8,), memory_size=6, learning_rate=1e-2)
DQN = DQNConfig(batch_size=8, learning_starts=20, hidden=(8,), leniency=0.5, num_steps=2)
SAC = SACConfig(batch_size=8, learning_starts=20, train_interval=3, hidden=(8,))
PRIORITIZED = DQNConfig(batch_size=8, learning_starts=20, train_interval=2, hidden=(8,), prioritized=0.6)

CASES: Mapping[str, Any] = {
    "ppo": PPO,
    "ppo and sac": {"red": PPO, "blue": SAC},
    "dqn and ppo": {"red": DQN, "blue": PPO},
    "gru and ppo": {"red": GRU, "blue": PPO},
    "prioritized and sac": {"red": PRIORITIZED, "blue": SAC},
}


@contextlib.contextmanager
def learners(
    config: Any,
    *,
    update_mode: UpdateModeName = "sequential",
    seed: int = 3,
    kind: type[Pressing] = Pressing,
    **options: Any,
) -> Iterator[IndependentLearners]:
    with (
        pressing(kind) as envs,
        IndependentLearners(envs, config, update_mode=update_mode, seed=seed, **options) as made,
    ):
        yield made


class Slow(SequentialUpdates):
    """Sequential updates that take a random time."""

    def __init__(self, all_parameters: Mapping[Agent, AgentParameters], seed: int) -> None:
        super().__init__(all_parameters)
        self._source = np.random.default_rng(seed)

    def update(self, plans: Mapping[Agent, Plan]) -> dict[Agent, UpdateReport]:
        dawdle(self._source)
        return super().update(plans)


def dawdle(source: np.random.Generator) -> None:
    """Sleep: mostly not at all, now and then longer than an update takes."""
    time.sleep(float(source.choice([0.0, 0.0, 0.001, 0.005])))


@contextlib.contextmanager
def unhurried(made: IndependentLearners, seed: int, **how: Any) -> Iterator[Loop]:
    """Yield a loop with a learner thread, in which steps and updates take random times."""
    source = np.random.default_rng(seed)
    step = made.step

    def slow_step() -> None:
        dawdle(source)
        step()

    made.step = slow_step  # type: ignore[method-assign]  # the loop is to find it
    with open_loop(made, LoopOptions(learn_in="thread", **how)) as loop:
        updates: Any = loop.updates  # type: ignore[attr-defined]  # of an asynchronous loop
        updates.mode = Slow({agent: one.parameters for agent, one in made.agents.items()}, seed)
        yield loop
    del made.step  # the method is there again


def jobs_of(loop: Any, watch: Callable[[UpdateJob], None] = lambda job: None) -> list[UpdateJob]:
    """Return a list to which every submitted job is added, with copies of its arrays."""
    seen: list[UpdateJob] = []
    submit = loop.updates.submit

    def noted(jobs: list[UpdateJob]) -> None:
        for job in jobs:
            watch(job)
            arrays = {name: np.array(array) for name, array in job.plan.arrays.items()}
            seen.append(dataclasses.replace(job, plan=dataclasses.replace(job.plan, arrays=arrays)))
        submit(jobs)

    loop.updates.submit = noted
    return seen


def advance(loop: Loop, num_steps: int) -> None:
    """Advance so many steps, and settle."""
    for _ in range(num_steps):
        loop.advance()
    loop.settle()
