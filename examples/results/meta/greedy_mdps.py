"""What the greedy player gets on random MDPs who knows how they are drawn and forgets nothing.

    python examples/results/meta/greedy_mdps.py

It takes the action whose mean reward is the highest in view of all rewards seen on this task (exact posterior means),
and looks no step further: so much is memory alone worth here, without planning or exploring for its own sake.
"""

from __future__ import annotations

import numpy as np

from parallel_envs.testing.families import TabularMDPEnv

NUM_TASKS, EPISODES = 1000, 10


def total_reward(env: TabularMDPEnv, ties: np.random.Generator) -> float:
    """Of all episodes on the env's task."""
    sums, counts = (np.zeros((env.num_states, env.num_actions)) for _ in range(2))
    total = 0.0
    for _ in range(EPISODES):
        observation, over = env.reset()[0], False
        while not over:
            state = int(observation.argmax())
            means = (1.0 + sums[state]) / (1.0 + counts[state])  # drawn from Normal(1, 1), seen with noise of 1
            action = int((means + 1e-9 * ties.random(env.num_actions)).argmax())
            observation, reward, _, over, _ = env.step(action)
            sums[state, action] += reward
            counts[state, action] += 1
            total += reward
    return total


def main() -> None:
    env, ties = TabularMDPEnv(), np.random.default_rng(0)
    env.reset(seed=0)
    totals = []
    for task in env.sample_tasks(NUM_TASKS, seed=0):
        env.reset_task(task)
        totals.append(total_reward(env, ties))
    print(f"{np.mean(totals):.1f} +- {np.std(totals) / np.sqrt(NUM_TASKS):.1f} on {NUM_TASKS} MDPs")


if __name__ == "__main__":
    main()
