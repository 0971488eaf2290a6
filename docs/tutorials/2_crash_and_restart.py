"""
Crash and restart
=================

Environments raise, hang and kill their processes. Here one does, and the run goes on.
"""

# sphinx_gallery_thumbnail_path = '_static/diagrams/restart.svg'

import os
import signal

import gymnasium as gym

from parallel_envs import ParallelEnvManager, WorkerDied


class Fragile(gym.Wrapper):
    """An environment that kills its own process at a step that is given."""

    def __init__(self, env, breaks_at):
        super().__init__(env)
        self.left = breaks_at

    def step(self, action):
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.env.step(action)


def make(breaks_at):
    return lambda: Fragile(gym.make("CartPole-v1"), breaks_at)


# %%
# Without further words, a death is an error that names the environment.

envs = ParallelEnvManager([make(10**9), make(5)])
envs.reset(seed=1)
try:
    for _ in range(10):
        envs.step(envs.action_space.sample())
except WorkerDied as error:
    print("The worker of environment", error.env_ids, "ended with", error.exitcode)
envs.close()

# %%
# With ``on_failure="restart"`` the worker is replaced. The row of its environment says that an episode was lost, and
# the other environment keeps its state.

envs = ParallelEnvManager([make(10**9), make(5)], on_failure="restart", step_timeout=30.0)
envs.reset(seed=1)
for step in range(1, 9):
    observations, rewards, terminations, truncations, infos = envs.step(envs.action_space.sample())
    if "worker_restarted" in infos:
        print(f"step {step}: lost {infos['worker_restarted']}, truncated {truncations}")
print("restarts of each worker:", [worker["restarts"] for worker in envs.stats()])
envs.close()
