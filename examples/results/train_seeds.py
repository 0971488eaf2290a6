"""Train a task's config with several seeds, and say how far it came: a table, a CSV, a curve.

    python train_seeds.py climbing_ppo cartpole             # five seeds each; minutes
    python train_seeds.py simple_spread --seeds 0 1         # some of them

Needs `pip install parallel-envs[learn,envs,report]`. Runs are kept (`--runs`), and what is there is not done again: a
run that was ended is gone on with. The figure of a run is the mean return of 1,000 episodes with what it learnt last,
each agent taking its likeliest action, in environments that it was not trained in; beside it the same with actions
drawn. The curve shows training: the mean return of the last 100 episodes, exploration included.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from learning_curve import as_csv, as_svg, curve, interval

from parallel_envs.learners import IndependentLearners
from parallel_envs.learners.agent import configs_by_name
from parallel_envs.learners.checkpoint import load_checkpoint
from parallel_envs.learners.config import TrainSettings, algorithm_configs, load_settings
from parallel_envs.learners.run_folder import newest_checkpoint, read_metrics, settings_of
from parallel_envs.learners.train import begin, go_on
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import env_factory
from parallel_envs.seeding import SeedTree
from parallel_envs.wrappers import WrappedMultiAgentPolicy

HERE = Path(__file__).parent
NUM_EPISODES = 1000


@dataclass(frozen=True, slots=True)
class Task:
    """What stands above a curve, the figure that is wanted, and whether it is the agents' sum or that of each."""

    title: str
    wanted: float
    is_sum: bool = False

    def of_all(self, returns: Mapping[Any, float]) -> float:
        """One number for all agents."""
        total = float(sum(returns.values()))
        return total if self.is_sum else total / len(returns)


TASKS = {
    "climbing_ppo": Task("Climbing game, independent PPO (each agent)", 175.0),
    "climbing_hysteretic_dqn": Task("Climbing game, hysteretic DQN (each agent)", 275.0),
    "penalty_ppo": Task("Penalty game, k = 0, independent PPO (each agent)", 250.0),
    "cartpole": Task("CartPole-v1, PPO", 475.0),
    "pendulum": Task("Pendulum-v1, SAC", -200.0),
    "simple_speaker_listener": Task("simple_speaker_listener_v4, independent PPO (each agent)", -7.5),
    "simple_spread": Task("simple_spread_v3, independent PPO (sum of three agents)", -35.0, is_sum=True),
    "foraging": Task("Foraging-8x8-2p-2f-coop-v3, independent DQN (sum of two agents)", 0.95, is_sum=True),
}


@dataclass(frozen=True, slots=True)
class Figures:
    """What a run came to."""

    task: str
    seed: int
    steps: int
    minutes: float
    """Of collecting, acting and learning."""
    deterministic: float
    stochastic: float
    training: float
    """The mean return of the last 100 episodes of training."""


# ---- a run ----------------------------------------------------------------------------------------------------------


def figures_of(name: str, seed: int, folder: Path) -> Figures:
    """Train as the config says, as far as that has not been done, and see what was learnt."""
    file, newest = folder / "figures.json", newest_checkpoint(folder)
    if newest is None or int(newest.name) < load_settings(HERE / f"{name}.yaml").total_steps:
        file.unlink(missing_ok=True)
        train(name, seed, folder)
    if not file.exists():
        file.write_text(json.dumps(asdict(evaluated(name, seed, folder)), indent=2), encoding="utf-8")
    return Figures(**json.loads(file.read_text(encoding="utf-8")))


def train(name: str, seed: int, folder: Path) -> None:
    config, own = HERE / f"{name}.yaml", [f"seed={seed}", f"folder={folder}"]
    if newest_checkpoint(folder):
        go_on(folder, config, own)
    else:
        begin(config, own)


def evaluated(name: str, seed: int, folder: Path) -> Figures:
    task, lines = TASKS[name], read_metrics(folder)
    settings = load_settings(settings_of(folder))
    likeliest, drawn = (task.of_all(returns(settings, folder, deterministic=chosen)) for chosen in (True, False))
    minutes = seconds([sum(line["seconds"].values()) for line in lines]) / 60
    return Figures(name, seed, lines[-1]["steps"], round(minutes, 2), likeliest, drawn, points(task, folder)[-1][1])


def seconds(shown: Sequence[float]) -> float:
    """What a clock came to that began anew whenever the run was gone on with."""
    return sum(one for one, following in zip(shown, [*shown[1:], 0.0], strict=True) if following < one)


def points(task: Task, folder: Path) -> list[tuple[int, float]]:
    """Steps, and the return of the episodes before, for all agents."""
    found = []
    for line in read_metrics(folder):
        named = {agent: metrics.get("return") for agent, metrics in line["agents"].items()}
        if None not in named.values():
            found.append((line["steps"], task.of_all(named)))
    return found


def returns(settings: TrainSettings, folder: Path, *, deterministic: bool) -> dict[Any, float]:
    """Each agent's mean return in an episode of each of many environments."""
    factory = env_factory(settings.env, settings.env_kwargs, settings.turns)
    with MultiAgentEnvManager([factory] * NUM_EPISODES, backend="serial") as envs:
        configs = algorithm_configs(settings, envs.possible_agents, configs_by_name())
        with IndependentLearners(envs, configs, update_mode="sequential", seed=settings.seed) as learners:
            learners.load_states(learnt(newest_checkpoint(folder) or folder))
            policies = {agent: learner.policy() for agent, learner in learners.agents.items()}
        for policy in policies.values():
            policy.deterministic = deterministic
        with WrappedMultiAgentPolicy(policies, "batch") as acting:
            return play(envs, acting, SeedTree(settings.seed).child("evaluation").seed())


def learnt(checkpoint: Path) -> dict[Any, Any]:
    """All but what was remembered for learning on, which would not fit other environments."""
    states = load_checkpoint(checkpoint).agents
    return {agent: {name: part for name, part in state.items() if name != "memory"} for agent, state in states.items()}


def play(envs: MultiAgentEnvManager, policy: WrappedMultiAgentPolicy, seed: int) -> dict[Any, float]:
    """One episode in each environment, however long: so short ones count no more than long ones."""
    observations, _ = envs.reset(seed=seed)
    running = np.ones(envs.num_envs, np.bool_)
    totals = {agent: np.zeros(envs.num_envs) for agent in envs.possible_agents}
    while running.any():
        there = {agent: rows & envs.present[agent] for agent, rows in envs.alive.items() if rows.any()}
        actions = policy.step({agent: observations[agent] for agent in there}, there)
        observations, rewards, *_ = envs.step(actions)
        for agent, rows in there.items():
            totals[agent] += np.where(rows & running, rewards[agent], 0.0)
        running &= np.logical_or.reduce(list(envs.alive.values()))
    return {agent: float(total.mean()) for agent, total in totals.items()}


# ---- all seeds ------------------------------------------------------------------------------------------------------


def summed_up(name: str, seeds: Sequence[int], runs: Path) -> str:
    """Train all seeds, write the curve's CSV and SVG, and return a line of the table."""
    task, folders = TASKS[name], [runs / f"{name}-{seed}" for seed in seeds]
    figures = [figures_of(name, seed, folder) for seed, folder in zip(seeds, folders, strict=True)]
    rows = curve([points(task, folder) for folder in folders], load_settings(HERE / f"{name}.yaml").total_steps)
    (HERE / f"{name}.csv").write_text(as_csv(rows, seeds), encoding="utf-8")
    (HERE / f"{name}.svg").write_text(as_svg(rows, task.title, task.wanted), encoding="utf-8")
    keep(HERE / "figures.csv", figures)
    return line(task, figures)


def keep(file: Path, figures: Sequence[Figures]) -> None:
    """Put a task's lines in the place of those it had in the file of all tasks."""
    names = [field.name for field in fields(Figures)]
    others = []
    if file.exists():
        with file.open(encoding="utf-8", newline="") as old:
            others = [row for row in csv.DictReader(old) if row["task"] != figures[0].task]
    with file.open("w", encoding="utf-8", newline="") as new:
        writer = csv.DictWriter(new, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*others, *map(asdict, figures)], key=lambda row: (row["task"], int(row["seed"]))))


HEADER = """\
| task | seeds | steps | minutes a run | likeliest actions | drawn actions | last of training | wanted |
|---|---|---|---|---|---|---|---|"""


def line(task: Task, figures: Sequence[Figures]) -> str:
    """Of the table: means over seeds with their 95 % intervals."""
    kinds = ("deterministic", "stochastic", "training")
    over_seeds = [str(interval([getattr(one, kind) for one in figures])) for kind in kinds]
    minutes = sum(one.minutes for one in figures) / len(figures)
    counts = [str(len(figures)), f"{figures[0].steps:,}", f"{minutes:.1f}"]
    return f"| {' | '.join([task.title, *counts, *over_seeds, f'{task.wanted:g}'])} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=TASKS, help="whose configs stand beside this file")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2, 3, 4])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the runs' folders are")
    arguments = parser.parse_args()
    lines = [summed_up(name, arguments.seeds, arguments.runs) for name in arguments.tasks]
    print("\n".join([HEADER, *lines]))


if __name__ == "__main__":
    main()
