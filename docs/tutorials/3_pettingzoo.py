"""
PettingZoo: many agents
=======================

PettingZoo environments in workers: dicts by agent, with one row per environment.
"""

# sphinx_gallery_thumbnail_path = '_static/diagrams/agents.svg'

import numpy as np

from parallel_envs import MultiAgentEnvManager, WrappedMultiAgentPolicy

envs = MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=4, num_workers=2)
observations, infos = envs.reset(seed=1)
print(envs.possible_agents, observations["agent_0"].shape)

# %%
# Each agent has a policy of its own. A wrapper calls them all; ``strategy`` says how (one after another, in threads, in
# processes, as one batch, or ``"auto"``).


def towards_the_nearest_landmark(observation):
    landmarks = observation[4:10].reshape(3, 2)
    dx, dy = landmarks[np.argmin((landmarks**2).sum(axis=1))]
    if abs(dx) > abs(dy):
        return 2 if dx > 0 else 1
    return 4 if dy > 0 else 3


policies = dict.fromkeys(envs.possible_agents, towards_the_nearest_landmark)
policy = WrappedMultiAgentPolicy(policies, strategy="sequential")

# %%
# An episode of one environment, by hand:

one = envs.single_env(0)
seen, _ = one.reset(seed=1)
total = 0.0
while one.agents:
    actions = policy.step(seen)
    seen, rewards, *_ = one.step(actions)
    total += sum(rewards.values())
print(f"sum of rewards: {total:.1f}")
policy.close()
envs.close()
