"""Random play in many PettingZoo environments at once.

    pip install "parallel-envs[zoo]"
    python examples/pettingzoo_random.py --num-envs 8 --num-workers 2 --steps 1000

Prints what each agent got in an episode, and how many steps a second all environments made together.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter, defaultdict
from typing import Any

import numpy as np

from parallel_envs.multiagent import MultiAgentEnvManager


def main() -> None:
    parser = argparse.ArgumentParser(description="Random play in many PettingZoo environments at once.")
    parser.add_argument("--env", default="mpe2.simple_spread_v3", help="the path of a PettingZoo module")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=1000, help="of every environment")
    asked = parser.parse_args()
    with MultiAgentEnvManager(asked.env, num_envs=asked.num_envs, num_workers=asked.num_workers) as envs:
        play(envs, asked.steps)


def play(envs: MultiAgentEnvManager, num_steps: int) -> None:
    envs.reset(seed=0)
    for number, agent in enumerate(envs.possible_agents):
        envs.action_space(agent).seed(number)
    totals, lives, num_joint = defaultdict[Any, float](float), Counter[Any](), 0
    began = time.perf_counter()
    for _ in range(num_steps):
        num_joint += int(np.any(list(envs.alive.values()), axis=0).sum())  # the others are only reset
        actions = {agent: envs.action_space(agent).sample() for agent in envs.agents_now}
        _, rewards, terminations, truncations, _ = envs.step(actions)
        for agent in rewards:
            totals[agent] += float(rewards[agent].sum())
            lives[agent] += int((terminations[agent] | truncations[agent]).sum())
    seconds = time.perf_counter() - began
    for agent, total in totals.items():
        print(f"{agent}: mean return {total / max(1, lives[agent]):.1f} in {lives[agent]} episodes")
    print(f"{num_joint:,} steps of {len(envs.possible_agents)} agents each, {num_joint / seconds:,.0f} a second")


if __name__ == "__main__":
    main()
