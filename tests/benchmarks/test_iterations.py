"""`bench iteration`: what it measures, and that its reference is a PPO that learns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from benchmarks.iterations import (
    IS_AT_LEAST,
    PLAIN,
    IterationPlan,
    IterationRow,
    PlainSettings,
    PlainTraining,
    iterations_report,
    measure_iterations,
)
from benchmarks.train import OVERLAP
from parallel_envs.bench.measure import Spread
from parallel_envs.bench.turns import Pace
from parallel_envs.threads import one_torch_thread

pytest.importorskip("mpe2")


def test_both_sides_play_rollouts_of_one_length_and_are_timed() -> None:
    plan = IterationPlan(
        num_envs=2, num_workers=1, rollout_length=8, minibatch_size=8, pace=Pace(seconds=0.001, rounds=2)
    )
    plain, *ours = measure_iterations(plan)
    assert [row.name for row in (plain, *ours)] == [PLAIN, "fused", OVERLAP]
    assert plain.error is None
    assert plain.to_plain is None
    for row in ours:
        assert row.error is None
        assert row.to_plain is not None
        assert sum(row.shares.values()) == pytest.approx(1.0)


@pytest.mark.parametrize("mode", ["fused", OVERLAP])
@pytest.mark.parametrize("reached", [IS_AT_LEAST, IS_AT_LEAST - 0.01])
def test_the_bar_is_told(mode: str, reached: float) -> None:
    spread = Spread(reached, reached, reached, 3)
    rows = IterationRow(name=PLAIN, steps=spread), IterationRow(name=mode, steps=spread, to_plain=spread)
    (note,) = iterations_report(rows, {}, "title").notes
    assert note.startswith("PASS" if reached >= IS_AT_LEAST else "FAIL")


class Signals(ParallelEnv):  # type: ignore[misc]  # ships no types
    """Each agent sees a sign and is paid for naming it; episodes have five steps."""

    metadata: dict[str, Any] = {"name": "signals"}  # noqa: RUF012  # PettingZoo has it so

    def __init__(self) -> None:
        self.possible_agents = ["a", "b"]
        self._draws = np.random.default_rng(0)

    def observation_space(self, agent: str) -> Box:
        return Box(0.0, 1.0, (2,))

    def action_space(self, agent: str) -> Discrete[Any]:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self._elapsed = list(self.possible_agents), 0
        return self._seen(), {agent: {} for agent in self.agents}

    def step(self, actions: Any) -> Any:
        rewards = {agent: float(actions[agent] == self._signs[agent]) for agent in self.agents}
        self._elapsed += 1
        ends = dict.fromkeys(self.agents, False), dict.fromkeys(self.agents, self._elapsed == 5)
        results: Any = self._seen(), rewards, *ends, {agent: {} for agent in self.agents}
        self.agents = [] if self._elapsed == 5 else self.agents
        return results

    def _seen(self) -> Any:
        self._signs = {agent: int(self._draws.integers(2)) for agent in self.possible_agents}
        return {agent: np.eye(2, dtype=np.float32)[sign] for agent, sign in self._signs.items()}


def test_the_plain_loop_learns() -> None:
    torch.manual_seed(0)
    settings = PlainSettings(rollout_length=32, minibatch_size=64, hidden=16, learning_rate=0.01)
    training = PlainTraining([Signals] * 4, settings)
    with one_torch_thread():  # as in the bench; several wait for one another where others keep the cores busy
        assert training.iterate() == 128
        for _ in range(15):
            training.iterate()
    signs = torch.eye(2)
    for agent in training.agents.values():
        chances = agent.actor(signs).softmax(-1).detach()
        assert chances.diagonal().min() > 0.9
    training.close()
