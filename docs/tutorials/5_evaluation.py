"""
Evaluate and compare
====================

How good is a policy, and is it better than another one?
"""

import matplotlib.pyplot as plt

from parallel_envs import evaluate
from parallel_envs.evaluation.comparison import compare_results


def upright(observation):
    """Push towards the side to which the pole leans."""
    return int(observation[2] > 0)


def with_speed(observation):
    """Look at the speed of the pole, too."""
    return int(observation[2] + observation[3] > 0)


first = evaluate("CartPole-v1", {"upright": upright}, episodes=30, jobs=2)
second = evaluate("CartPole-v1", {"with speed": with_speed}, episodes=30, jobs=2)
print(first)
print(second)

# %%
# Both played the same thirty episodes, so they are compared episode by episode.

found = compare_results(second, first)
print(f"better in {found.wins} of {found.n} episodes, by {found.mean_difference:.0f} steps")
print(f"p = {found.p_value:.1g}")

# %%
# The episodes one by one: each point is an episode that both played. Above the line the second policy is better.


def steps_of(result):
    """Return the length of each episode, by its number."""
    episodes = sorted(result.episodes, key=lambda one: one.episode)
    return [sum(one.returns.values()) for one in episodes]


figure, axes = plt.subplots(figsize=(5, 4))
axes.scatter(steps_of(first), steps_of(second))
axes.plot([0, 510], [0, 510], linestyle="--", color="grey")
axes.set_xlabel("return of upright")
axes.set_ylabel("return of with speed")
figure.tight_layout()
