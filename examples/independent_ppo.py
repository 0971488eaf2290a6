"""Three agents learn to cover three landmarks, each with a PPO of its own.

    python independent_ppo.py                          # some seconds: better than chance
    python independent_ppo.py --total-steps 200000     # two minutes: about -40, summed over the agents (chance: -80)

Needs `pip install parallel-envs[learn,zoo]`. Nothing is shared: each agent has its own network, optimiser, experience
and random numbers. `--update-mode` says how their updates are computed; all modes learn the same.
"""

from __future__ import annotations

import argparse
import time

from parallel_envs.learners import IndependentLearners, PPOConfig
from parallel_envs.multiagent import MultiAgentEnvManager

CONFIG = PPOConfig(
    rollout_length=52,  # two episodes and their resets
    minibatch_size=208,
    num_epochs=8,
    learning_rate=1e-3,
    discount=0.95,
    hidden=(128, 128),
    normalize_observations=True,
)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default="mpe2.simple_spread_v3", help="a PettingZoo module")
    parser.add_argument("--num-envs", type=int, default=16)
    parser.add_argument("--num-workers", type=int, default=2)
    parser.add_argument("--total-steps", type=int, default=40_000, help="of environments, all together")
    parser.add_argument("--update-mode", default="fused", help="sequential, thread, process, fused or auto")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    with (
        MultiAgentEnvManager(arguments.env, num_envs=arguments.num_envs, num_workers=arguments.num_workers) as envs,
        IndependentLearners(envs, CONFIG, update_mode=arguments.update_mode, seed=arguments.seed) as learners,
    ):
        began = time.perf_counter()
        part = -(-arguments.total_steps // 8)
        while learners.steps < arguments.total_steps:
            learners.train(min(part, arguments.total_steps - learners.steps))
            report(learners, time.perf_counter() - began)
        print(learners.mode.why)


def report(learners: IndependentLearners, seconds: float) -> None:
    returns = learners.returns()
    each = "  ".join(f"{agent} {value:6.1f}" for agent, value in returns.items())
    rate = f"{learners.steps / seconds:,.0f} steps/s"
    print(f"{learners.steps:9,} steps   {each}   together {sum(returns.values()):7.1f}   {rate}", flush=True)


if __name__ == "__main__":
    main()
