"""stable-baselines3's PPO on environments of this package: one line differs from a script of SB3.

    pip install "parallel-envs[sb3]"
    python examples/sb3_ppo.py --env-id CartPole-v1 --total-timesteps 50000

`--vector dummy` and `--vector subproc` run the same script on SB3's own vector envs. The seed alone decides what is
learned: all three print the same returns, and only the speed differs.
"""

from __future__ import annotations

import argparse
import time

from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from parallel_envs.integrations import ParallelVecEnv

KINDS = {"ours": ParallelVecEnv, "dummy": DummyVecEnv, "subproc": SubprocVecEnv}


def main() -> None:
    parser = argparse.ArgumentParser(description="PPO of stable-baselines3 over a vector environment.")
    parser.add_argument("--env-id", default="CartPole-v1")
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--total-timesteps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--vector", choices=list(KINDS), default="ours")
    options = parser.parse_args()

    # The one line. Without `vec_env_cls=`, or with SubprocVecEnv, it is a script of SB3.
    envs = make_vec_env(options.env_id, options.num_envs, seed=options.seed, vec_env_cls=KINDS[options.vector])
    model = PPO("MlpPolicy", envs, n_steps=128, batch_size=128, seed=options.seed, device="cpu")
    start = time.perf_counter()
    model.learn(options.total_timesteps)
    print(f"{options.vector}: {model.num_timesteps / (time.perf_counter() - start):,.0f} steps/s")
    envs.seed(100)
    returns, _ = evaluate_policy(model, envs, n_eval_episodes=8, return_episode_rewards=True)
    envs.close()
    print(f"returns: {returns}")


if __name__ == "__main__":
    main()
