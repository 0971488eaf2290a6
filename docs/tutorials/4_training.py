"""
Train, and look at the curve
============================

An agent learns CartPole from eight copies of it. With a PettingZoo environment there is one learner for each agent.
``parallel-envs train`` does the same from a settings file, and adds checkpoints and metrics.
"""

import matplotlib.pyplot as plt

from parallel_envs import IndependentLearners, MultiAgentEnvManager, PPOConfig
from parallel_envs.multiagent.by_name import env_factory

config = PPOConfig(rollout_length=64, minibatch_size=256, learning_rate=1e-3)
steps, returns = [], []
envs = MultiAgentEnvManager([env_factory("CartPole-v1")] * 8, num_workers=2)
with envs, IndependentLearners(envs, config, seed=1) as learners:
    for _ in range(20):
        learners.train(1024)
        steps.append((len(steps) + 1) * 1024)
        returns.append(learners.returns()["agent_0"])
    print(learners)

# %%
# The mean return of the last episodes:

figure, axes = plt.subplots(figsize=(7, 3))
axes.plot(steps, returns)
axes.set_xlabel("steps")
axes.set_ylabel("mean return")
figure.tight_layout()
