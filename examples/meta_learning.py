"""Train a meta-RL agent as a settings file says, and show how it adapts to tasks that it has not seen.

    python examples/meta_learning.py examples/results/meta/bandits.yaml runs/bandits-0 --seed 0
    python examples/meta_learning.py --resume runs/bandits-0

Metrics and checkpoints go to the folder; the last evaluation is printed, and written to `result.json` in it.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from parallel_envs.learners.meta import Learner


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", nargs="?", type=Path, help="a YAML file, as in examples/results/meta")
    parser.add_argument("folder", nargs="?", type=Path, help="the run's own, which must not exist yet")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", type=Path, help="go on with the run in this folder")
    parser.add_argument("--rollouts-per-task", type=int, default=None, help="of the last evaluation")
    asked = parser.parse_args()
    if (asked.resume is None) == (asked.config is None):
        parser.error("give a config, or --resume with the folder of a run")
    began = time.perf_counter()
    with Learner.resume(asked.resume) if asked.resume else Learner(asked.config, seed=asked.seed) as learner:
        folder = learner.train(asked.folder)
        minutes = (time.perf_counter() - began) / 60
        result = learner.evaluate(asked.rollouts_per_task)
        told = {**result.told(), "error": result.error, "steps": learner.num_env_steps, "minutes": round(minutes, 1)}
    (folder / "result.json").write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
    curve = ", ".join(f"{value:.2f}" for value in result.curve)
    print(f"{folder}: {learner.num_env_steps} steps in {minutes:.1f} minutes")
    print(f"return of a rollout {result.total:.2f} +- {result.error:.2f}; by inner episode: {curve}")


if __name__ == "__main__":
    main()
