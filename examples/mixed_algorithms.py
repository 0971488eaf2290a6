"""Agents that differ in everything: what they see, what they do, and how they learn it.

    python mixed_algorithms.py                       # some seconds
    python mixed_algorithms.py --total-steps 60000   # a minute

Needs `pip install parallel-envs[learn]`. A thermostat (PPO, three actions) and a fan (SAC, a number) keep a room
comfortable, a guard (DQN, masked actions) opens and closes the door. Each is paid for its own part only.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary
from pettingzoo import ParallelEnv

from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig, SACConfig
from parallel_envs.multiagent import MultiAgentEnvManager

CONFIGS = {
    "thermostat": PPOConfig(rollout_length=40, minibatch_size=80, learning_rate=3e-3, hidden=(32,)),
    "fan": SACConfig(learning_rate=3e-3, batch_size=64, hidden=(32, 32), learning_starts=200, train_interval=2),
    "guard": DQNConfig(learning_rate=3e-3, hidden=(32,), learning_starts=200, exploration_steps=2_000),
}


class Room(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """Twenty steps. Weather changes the temperature, breathing the air, visitors come to the door."""

    metadata = {"name": "room"}  # noqa: RUF012  # PettingZoo's form
    possible_agents = ["thermostat", "fan", "guard"]  # noqa: RUF012  # PettingZoo's form

    def observation_space(self, agent: str) -> Any:
        numbers = Box(-3.0, 3.0, (2,))
        return Dict({"observation": numbers, "action_mask": MultiBinary(3)}) if agent == "guard" else numbers

    def action_space(self, agent: str) -> Any:
        return Box(0.0, 1.0, (1,)) if agent == "fan" else Discrete(3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.source = np.random.default_rng(seed)
        self.agents, self.minutes = list(self.possible_agents), 0
        self.warmth, self.air, self.visitor = self.source.uniform(-1, 1, 3)
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self) -> dict[str, Any]:
        own = {"thermostat": self.warmth, "fan": self.air, "guard": self.visitor}
        seen: dict[str, Any] = {name: np.array([value, 1.0], np.float32).clip(-3, 3) for name, value in own.items()}
        may = np.array([1, 1, self.minutes % 2], np.int8)  # the bell can be rung every other minute only
        return seen | {"guard": {"observation": seen["guard"], "action_mask": may}}

    def step(self, actions: dict[str, Any]) -> Any:
        self.minutes += 1
        rewards = {
            "thermostat": -abs(float(self.warmth)),
            "fan": -abs(float(actions["fan"][0]) - (float(self.air) + 1) / 2),
            "guard": float(actions["guard"] == int(self.visitor > 0)),
        }
        self.warmth = float(
            np.clip(self.warmth + 0.4 * (actions["thermostat"] - 1) + self.source.normal(0, 0.1), -3, 3)
        )
        self.air, self.visitor = self.source.uniform(-1, 1, 2)
        over = self.minutes == 20
        there, self.agents = self.agents, [] if over else self.agents
        seen = self.seen()
        return seen, rewards, dict.fromkeys(there, False), dict.fromkeys(there, over), {agent: {} for agent in there}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--total-steps", type=int, default=10_000, help="of environments, all together")
    parser.add_argument("--update-mode", default="sequential", help="sequential, thread, process, fused or auto")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    with (
        MultiAgentEnvManager([Room] * 4, backend="serial") as envs,
        IndependentLearners(envs, CONFIGS, update_mode=arguments.update_mode, seed=arguments.seed) as learners,
    ):
        for _ in range(5):
            learners.train(arguments.total_steps // 5)
            told = "   ".join(f"{agent} {value:6.2f}" for agent, value in learners.returns().items())
            print(f"{learners.steps:7,} steps   {told}", flush=True)
        for agent, learner in learners.agents.items():
            counts = learner.counters
            print(f"{agent}: {learner.algorithm.name}, {counts['updates']} updates, {counts['steps']:,} steps lived")


if __name__ == "__main__":
    main()
