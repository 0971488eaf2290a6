"""
Step many environments at once
==============================

A manager replaces ``gymnasium.vector.AsyncVectorEnv``: the same calls, the same arrays.
"""

# sphinx_gallery_thumbnail_path = '_static/diagrams/processes.svg'

import numpy as np

from parallel_envs import ParallelEnvManager

envs = ParallelEnvManager("CartPole-v1", num_envs=8, num_workers=2)  # four environments in each of two workers
observations, infos = envs.reset(seed=42)
print(envs)
print(observations.shape, observations.dtype)

# %%
# One action per environment goes in, and one row per environment comes out. An episode that ends is followed by a reset
# by itself.

lengths, so_far = [], np.zeros(8, int)
for _ in range(300):
    actions = (observations[:, 2] > 0).astype(int)  # push towards the side to which the pole leans
    observations, rewards, terminations, truncations, infos = envs.step(actions)
    so_far += 1
    ended = terminations | truncations
    lengths += so_far[ended].tolist()
    so_far[ended] = 0
print(f"{len(lengths)} episodes ended, with {np.mean(lengths):.0f} steps on average")

# %%
# Methods and attributes of the environments can be reached, all at once or some of them.

print(envs.get_attr("gravity", env_ids=[0, 7]))
print(envs.apply(lambda env: type(env.unwrapped).__name__, env_ids=[3]))

# %%
# ``stats`` says what each worker did.

for worker in envs.stats():
    print(worker["worker"], worker["env_ids"], worker["steps"])
envs.close()
