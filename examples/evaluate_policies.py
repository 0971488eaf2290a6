"""How good are these policies? Missions x episodes on worker processes, with the same numbers as without.

    pip install "parallel-envs[zoo]"
    python evaluate_policies.py [--episodes 10] [--jobs 2]

Three agents are to stand at three landmarks. "nearest" walks to the landmark that is nearest to it, whoever else does;
"own" walks to the one that it has chosen when the episode began, which it has to remember; "random" is what anything is
to be better than. They play by themselves, and as a mixed team. Who plays which agent, and all that is random, follows
from the seed, the mission's name and the episode's number: so episode 7 is the same whoever plays it, in whatever
process, and policies can be compared on it.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

from parallel_envs.evaluation import EvaluationResult, Mission, evaluate
from parallel_envs.evaluation.comparison import compare_results
from parallel_envs.policies import AgentPolicy

STAY, LEFT, RIGHT, DOWN, UP = range(5)
MISSIONS = [
    Mission(name="short", env="mpe2.simple_spread_v3", kwargs={"max_cycles": 25}),
    Mission(name="long", env="mpe2.simple_spread_v3", kwargs={"max_cycles": 50}),
]


def towards(offset: Any) -> int:
    """The step along the longer side."""
    x, y = offset
    if max(abs(x), abs(y)) < 0.05:
        return STAY
    if abs(x) > abs(y):
        return RIGHT if x > 0 else LEFT
    return UP if y > 0 else DOWN


def landmarks(observation: Any) -> Any:
    """Where the landmarks are, seen from the agent."""
    return observation[4:10].reshape(3, 2)


def nearest(observation: Any) -> int:
    """A policy may be a function of the observation."""
    offsets = landmarks(observation)
    return towards(offsets[np.square(offsets).sum(axis=1).argmin()])


class Own(AgentPolicy):
    """Goes to one landmark, drawn when the episode begins. Its generator is seeded anew for each episode."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng()
        self.goal = 0

    def reset(self) -> None:
        self.goal = int(self.generator.integers(3))

    def step(self, observation: Any) -> int:
        return towards(landmarks(observation)[self.goal])


def alone(policies: dict[str, Any], episodes: int, jobs: int) -> dict[str, EvaluationResult]:
    """Each policy plays all agents."""
    return {name: evaluate(MISSIONS, {name: policy}, episodes, jobs=jobs) for name, policy in policies.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    policies = {"nearest": nearest, "own": Own(), "random": "random"}

    found = alone(policies, asked.episodes, asked.jobs)
    for result in found.values():
        print(result.to_table())
    difference = compare_results(found["nearest"], found["random"])
    print(f"nearest - random, episode by episode: {difference.mean_difference:+.2f} (p = {difference.p_value:.3g})")

    mixed = evaluate(MISSIONS, policies, asked.episodes, jobs=asked.jobs, proportions=[1, 1, 1])
    print(mixed.to_table())
    print("who played whom in episode 0:", mixed.episodes[0].assignment)

    here = alone(policies, asked.episodes, jobs=0)
    same = all(here[name].episodes == result.episodes for name, result in found.items())
    print("the same numbers without workers:", "yes" if same else "no")


if __name__ == "__main__":
    main()
