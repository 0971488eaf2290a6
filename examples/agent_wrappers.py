"""Four agents with policies of four natures in one PettingZoo environment, under every strategy.

    pip install "parallel-envs[learn,zoo]"
    python examples/agent_wrappers.py --rounds 4

A network, a search in plain Python, a remote model (which is waited for) and a script play simple_spread. Every
strategy plays the same episodes; a table tells what a turn takes, whether all did the same, and what `auto` chose and
why.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import statistics
import time
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from rich.console import Console
from rich.table import Table
from torch import nn

from parallel_envs.policies import AgentPolicy, ScriptedAgent
from parallel_envs.policies.torch_policy import TorchPolicy
from parallel_envs.wrappers import STRATEGIES, PolicyPool, WrappedMultiAgentPolicy

NUM_STEPS = 25
MIXED = {"agent_0": "batch", "agent_1": "process", "agent_2": "thread", "agent_3": "sequential"}
MOVES = np.array([[0, 0], [-1, 0], [1, 0], [0, -1], [0, 1]])
"""What the actions of simple_spread do: nothing, left, right, down, up."""
_PLAIN_MOVES: list[list[int]] = MOVES.tolist()


def landmarks(observation: Any) -> Any:
    """Where the landmarks lie, as seen by an agent."""
    return observation[4:12].reshape(4, 2)


class Searching(AgentPolicy):
    """Tries all sequences of moves, in plain Python: some milliseconds of processor time."""

    def __init__(self, depth: int = 5) -> None:
        self.depth = depth

    def step(self, observation: Any) -> int:
        goals = landmarks(observation).tolist()
        plans = itertools.product(range(len(MOVES)), repeat=self.depth)
        return min(plans, key=lambda plan: self._distance(plan, goals))[0]

    def _distance(self, plan: tuple[int, ...], goals: list[list[float]]) -> float:
        x, y = (0.1 * sum(_PLAIN_MOVES[move][axis] for move in plan) for axis in (0, 1))
        return min((x - goal[0]) ** 2 + (y - goal[1]) ** 2 for goal in goals)


class Remote(AgentPolicy):
    """Asks a model on another machine, which takes its time; and explores less from episode to episode."""

    def __init__(self, seconds: float = 0.008, seed: int = 2) -> None:
        self.seconds, self.epsilon, self.generator = seconds, 0.5, np.random.default_rng(seed)

    def step(self, observation: Any) -> int:
        time.sleep(self.seconds)
        return int(self.generator.integers(5)) if self.generator.random() < self.epsilon else 0

    def reset(self) -> None:
        self.epsilon *= 0.9


def to_the_nearest(observation: Any) -> int:
    """A script: the move that leads to the nearest landmark."""
    goals = landmarks(observation)
    nearest = goals[np.square(goals).sum(1).argmin()]
    return int((MOVES @ nearest).argmax())


def four_policies(num_features: int) -> dict[str, Any]:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(num_features, 64), nn.Tanh(), nn.Linear(64, 5))
    return {
        "agent_0": TorchPolicy(network, Discrete(5), seed=0),
        "agent_1": Searching(),
        "agent_2": Remote(),
        "agent_3": ScriptedAgent(to_the_nearest),
    }


def play(env: Any, policy: WrappedMultiAgentPolicy, seed: int) -> tuple[list[float], list[Any]]:
    """An episode: what each turn of the policies took, and what they did."""
    observations, _ = env.reset(seed=seed)
    policy.reset()
    seconds, done = [], []
    while env.agents:
        began = time.perf_counter()
        actions = policy.step(observations)
        seconds.append(time.perf_counter() - began)
        done.append(actions)
        observations, *_ = env.step(actions)
    return seconds, done


def main() -> None:
    parser = argparse.ArgumentParser(description="Four policies of four natures under every strategy.")
    parser.add_argument("--rounds", type=int, default=4, help="episodes of each strategy, in turns")
    parser.add_argument("--workers", type=int, default=2, help="worker processes")
    asked = parser.parse_args()
    env = importlib.import_module("mpe2.simple_spread_v3").parallel_env(N=4, max_cycles=NUM_STEPS)
    env.reset(seed=0)
    num_features = env.observation_space("agent_0").shape[0]
    strategies: dict[str, Any] = {**{name: name for name in STRATEGIES}, "mixed": MIXED}
    with PolicyPool(asked.workers) as pool:
        wrapped = {
            name: WrappedMultiAgentPolicy(four_policies(num_features), strategy, budget=pool)
            for name, strategy in strategies.items()
        }
        played: dict[str, list[Any]] = {name: [] for name in wrapped}
        for seed in range(asked.rounds + 1):  # the first round warms up, and `auto` measures in it
            for name, policy in wrapped.items():
                played[name].append(play(env, policy, seed))
        show(played, wrapped)
        for policy in wrapped.values():
            policy.close()
    env.close()


def show(played: dict[str, list[Any]], wrapped: dict[str, WrappedMultiAgentPolicy]) -> None:
    """The table, and what was chosen."""
    table = Table("strategy", "a turn, ms", "x sequential", "the same actions")
    reference = [actions for _, actions in played["sequential"]]
    medians = {
        name: statistics.median(itertools.chain.from_iterable(seconds for seconds, _ in episodes[1:]))
        for name, episodes in played.items()
    }
    for name, seconds in medians.items():
        same = "yes" if [actions for _, actions in played[name]] == reference else "NO"
        table.add_row(name, f"{seconds * 1e3:.2f}", f"{medians['sequential'] / seconds:.2f}", same)
    console = Console(width=100)
    console.print(table)
    console.print("mixed: " + ", ".join(f"{agent} {strategy}" for agent, strategy in MIXED.items()), highlight=False)
    console.print("auto chose " + wrapped["auto"].choices["agent_0"], highlight=False)


if __name__ == "__main__":
    main()
