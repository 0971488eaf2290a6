"""Rollouts on many tasks, collected in parallel: the first half of every meta-RL program.

    python examples/meta_rollouts.py gridnavi      a grid with a hidden goal; nothing more to install
    python examples/meta_rollouts.py ant           MuJoCo's Ant, to run in a hidden direction
                                                   pip install "gymnasium[mujoco]"
    python examples/meta_rollouts.py ml1           Meta-World's reach-v3, to a hidden point
                                                   pip install "parallel-envs[metaworld]"

Each rollout is two episodes on one task: the environment is reset between them and its task stays. `gridnavi` is played
by a policy that remembers: it searches in the first episode and, if it has found the goal, walks there in the second.
The others act at random. Meta-World's environment class and its `Task` objects are used as they are.

Every rollout has its own task, seed and random generator, so the workers bring what one environment brings that plays
all of them one after the other; the last line says so, and how fast either was.
"""

from __future__ import annotations

import argparse
import functools
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from parallel_envs import ParallelEnvManager
from parallel_envs.meta import make_env, make_parallel_env
from parallel_envs.policies import AgentPolicy
from parallel_envs.rollouts import Rollout, Rollouts, collect
from parallel_envs.testing.ant_direction import AntDirection
from parallel_envs.testing.families import GridNaviEnv

EPISODES_PER_TASK = 2


@dataclass(frozen=True, kw_only=True)
class Family:
    """An environment, tasks for it, and who plays. Without a policy, actions are random."""

    make: Callable[..., gymnasium.Env[Any, Any]]
    tasks: Sequence[Any]
    tell: Callable[[Any], str]
    settings: dict[str, Any] = field(default_factory=dict)
    policy: AgentPolicy | None = None


class Searcher(AgentPolicy):
    """Walks through the grid row by row, and straight to the goal once it has stood on it.

    It sees x, y, the flag that an episode has ended, and the previous reward.
    """

    STAY, UP, RIGHT, DOWN, LEFT = range(5)

    def __init__(self, size: int = 5) -> None:
        self.size = size

    def reset(self) -> None:
        self.goal: tuple[float, float] | None = None

    def step(self, observation: npt.NDArray[np.float64]) -> int:
        x, y, ended, reward = observation
        if reward == 1.0 and not ended:
            self.goal = (x, y)
        return self.search(x, y) if self.goal is None else self.towards(*self.goal, x, y)

    def search(self, x: float, y: float) -> int:
        """Even rows to the right, odd ones to the left."""
        way, end = (self.RIGHT, self.size - 1) if y % 2 == 0 else (self.LEFT, 0)
        return self.UP if x == end else way

    def towards(self, goal_x: float, goal_y: float, x: float, y: float) -> int:
        if x != goal_x:
            return self.RIGHT if x < goal_x else self.LEFT
        if y != goal_y:
            return self.UP if y < goal_y else self.DOWN
        return self.STAY


# ---- the families --------------------------------------------------------------------------------


def gridnavi(num_tasks: int) -> Family:
    return Family(
        make=functools.partial(GridNaviEnv, horizon=30),
        tasks=GridNaviEnv.sample_tasks(num_tasks, seed=1),
        tell=lambda goal: f"to {goal}",
        settings={"add_previous_reward": True},
        policy=Searcher(),
    )


def ant(num_tasks: int) -> Family:
    return Family(
        make=AntDirection,
        tasks=AntDirection.sample_tasks(num_tasks, seed=7),
        tell=lambda direction: f"{np.degrees(direction):.0f} degrees",
        settings={"terminate_when_unhealthy": False, "horizon": 100},
    )


def ml1(num_tasks: int, name: str = "reach-v3") -> Family:
    import metaworld

    benchmark = metaworld.ML1(name, seed=7)
    return Family(
        make=benchmark.train_classes[name],
        tasks=benchmark.train_tasks[:num_tasks],
        tell=lambda task: "to " + ", ".join(f"{number:.2f}" for number in pickle.loads(task.data)["rand_vec"][-3:]),
        settings={"horizon": 100},  # Meta-World's own is 500
    )


FAMILIES: dict[str, Callable[[int], Family]] = {"gridnavi": gridnavi, "ant": ant, "ml1": ml1}


# ---- collecting ----------------------------------------------------------------------------------


def play(envs: ParallelEnvManager | gymnasium.Env[Any, Any], family: Family) -> tuple[Rollouts, float]:
    """One rollout for each task, and the seconds it took."""
    began = time.perf_counter()
    rollouts = collect(
        envs,
        family.policy,
        num_rollouts=len(family.tasks),
        tasks=family.tasks,
        random_actions=family.policy is None,
        seed=1,
        info_keys=["inner_episode"],
    )
    return rollouts, time.perf_counter() - began


def episode_returns(rollout: Rollout) -> list[float]:
    """The sum of rewards of each inner episode."""
    numbers = np.array(rollout.infos["inner_episode"])
    return [float(rollout.rewards[numbers == episode].sum()) for episode in range(EPISODES_PER_TASK)]


def on_workers(family: Family, num_workers: int) -> tuple[Rollouts, float]:
    num_envs = max(num_workers, len(family.tasks))
    with closing(
        make_parallel_env(family.make, EPISODES_PER_TASK, num_workers, num_envs=num_envs, **family.settings)
    ) as envs:
        play(envs, family)  # warms up
        return play(envs, family)


def in_turn(family: Family) -> tuple[Rollouts, float]:
    with closing(make_env(family.make, EPISODES_PER_TASK, **family.settings)) as env:
        play(env, family)
        return play(env, family)


def same(one: Rollouts, other: Rollouts) -> bool:
    pairs = zip(one, other, strict=True)
    return all(np.array_equal(a.chain, b.chain) and np.array_equal(a.rewards, b.rewards) for a, b in pairs)


# ---- showing -------------------------------------------------------------------------------------


def table(title: str, family: Family, rollouts: Rollouts) -> Table:
    shown = Table("task", *(f"return of episode {number + 1}" for number in range(EPISODES_PER_TASK)), title=title)
    for rollout in rollouts:
        shown.add_row(family.tell(rollout.task), *(f"{number:.2f}" for number in episode_returns(rollout)))
    return shown


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Rollouts on many tasks, collected in parallel.")
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("--num-tasks", type=int, default=8, help="one rollout each (default: 8)")
    parser.add_argument("--num-workers", type=int, default=2, help="worker processes (default: 2)")
    asked = parser.parse_args(arguments)
    family = FAMILIES[asked.family](asked.num_tasks)
    parallel, seconds = on_workers(family, asked.num_workers)
    sequential, longer = in_turn(family)
    Console().print(table(f"{asked.family}: one rollout for each task", family, parallel))
    print(
        f"{parallel.num_steps:,} steps: {parallel.num_steps / seconds:,.0f} a second on {asked.num_workers} workers, "
        f"{sequential.num_steps / longer:,.0f} one rollout after the other; "
        f"the same rollouts: {'yes' if same(parallel, sequential) else 'no'}"
    )


if __name__ == "__main__":
    main()
