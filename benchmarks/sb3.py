"""PPO of stable-baselines3 on `ParallelVecEnv`, `SubprocVecEnv` and `DummyVecEnv`: steps per second, in turn.

    python -m benchmarks.sb3                                # CartPole-v1, a step of a few microseconds
    python -m benchmarks.sb3 --step-ms 1                    # an environment whose step takes a millisecond of work

Needs the extra `sb3`. Each round runs all kinds one after another, and ratios are medians of those within a round: the
load of the machine hits all alike. `collect` is the loop of `VecEnv.step` with random actions, `learn` is
`PPO.learn` with its updates. `start` is the time until the first reset has returned.
"""

from __future__ import annotations

import argparse
import statistics
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from parallel_envs.integrations import ParallelVecEnv


class Busy(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An env that computes for some milliseconds in each step."""

    def __init__(self, env: Any, milliseconds: float) -> None:
        super().__init__(env)
        self._seconds = milliseconds / 1e3

    def step(self, action: Any) -> Any:
        until = time.thread_time() + self._seconds
        while time.thread_time() < until:
            pass
        return self.env.step(action)


def make_env(milliseconds: float) -> Any:
    env = gymnasium.make("CartPole-v1")
    return Busy(env, milliseconds) if milliseconds else env


class Measured:
    """A `VecEnv` that stays open, and what was measured on it."""

    def __init__(self, kind: Any, options: argparse.Namespace) -> None:
        begun = time.perf_counter()
        self.venv = kind([partial(make_env, options.step_ms)] * options.num_envs)
        self.venv.seed(1)
        self.venv.reset()
        self.start = time.perf_counter() - begun
        settings: Any = {"n_steps": 64, "batch_size": 64, "n_epochs": 4, "seed": 1, "device": "cpu"}
        self.model = PPO("MlpPolicy", self.venv, **settings)
        self.rates: dict[str, list[float]] = {"collect": [], "learn": []}

    def run(self, actions: Any) -> None:
        begun = time.perf_counter()
        for row in actions:
            self.venv.step(row)
        self.rates["collect"].append(actions.size / (time.perf_counter() - begun))
        begun = time.perf_counter()
        self.model.learn(actions.size)
        self.rates["learn"].append(self.model.num_timesteps / (time.perf_counter() - begun))


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--num-envs", type=int, default=8)
    parser.add_argument("--num-workers", type=int, default=0, help="of ours; 0: one for each environment")
    parser.add_argument("--steps", type=int, default=512, help="of each environment, in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--step-ms", type=float, default=0.0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    kinds = {
        "ours": partial(ParallelVecEnv, num_workers=options.num_workers or None),
        "SubprocVecEnv": SubprocVecEnv,
        "DummyVecEnv": DummyVecEnv,
    }
    measured = {name: Measured(kind, options) for name, kind in kinds.items()}
    actions = np.random.default_rng(0).integers(0, 2, (options.steps, options.num_envs))
    for _ in range(options.rounds):
        for one in measured.values():
            one.run(actions)
    ours = measured["ours"].rates
    for name, one in measured.items():
        one.venv.close()
        shown = [f"{name:14} start {one.start:5.2f} s"]
        for key, rates in one.rates.items():
            ratio = statistics.median(a / b for a, b in zip(ours[key], rates, strict=True))
            shown.append(f"{key} {statistics.median(rates):8,.0f} steps/s (ours is {ratio:.2f} x)")
        print("   ".join(shown))


if __name__ == "__main__":
    main()
