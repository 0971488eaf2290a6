"""`parallel-envs train` as tests give it, and what it leaves behind."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from parallel_envs import cli
from parallel_envs.learners.checkpoint import load_checkpoint
from parallel_envs.learners.run_folder import newest_checkpoint

Train = Callable[..., Any]

PPO = {"name": "ppo", "rollout_length": 8, "minibatch_size": 8, "num_epochs": 2, "hidden": [8]}
REPLAY = {"batch_size": 8, "learning_starts": 12, "train_interval": 2, "buffer_size": 40, "hidden": [8]}
DQN: dict[str, Any] = {"name": "dqn", **REPLAY, "num_steps": 3, "leniency": 0.5}
SAC: dict[str, Any] = {"name": "sac", **REPLAY}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("CartPole-v1", PPO),
    "gru": ("CartPole-v1", {**PPO, "network": "gru", "memory_size": 4}),
    "dqn": ("CartPole-v1", DQN),
    "prioritized": ("CartPole-v1", {"name": "dqn", **REPLAY, "prioritized": 0.6, "dueling": True}),
    "sac": ("Pendulum-v1", SAC),
}
PLAIN = ["update_mode=sequential", "backend=serial"]
CHECKPOINT_STEPS = 40  # five updates, more or less, of two environments


def command(*words: Any) -> Any:
    return CliRunner().invoke(cli.app, ["train", *map(str, words)])


def newest(folder: Path) -> Path:
    found = newest_checkpoint(folder)
    assert found is not None
    return found


def learnt(folder: Path) -> Any:
    checkpoint = load_checkpoint(newest(folder))
    return checkpoint.agents, checkpoint.about


def killed_run(folder: Path, *words: Any) -> None:
    """A run of its own process, killed at any moment after its first checkpoint; the first two are left of it."""
    endless = [*words, "total_steps=1000000000", "keep_checkpoints=1000000", f"folder={folder}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "parallel_envs", "train", *map(str, endless)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    while process.poll() is None and newest_checkpoint(folder) is None:
        try:
            process.wait(0.01)
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    process.wait()
    for checkpoint in sorted((folder / "checkpoints").glob("[0-9]*"))[2:]:
        shutil.rmtree(checkpoint)  # it was quicker than we were
