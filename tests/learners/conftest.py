"""A small run of one agent, to be trained by the command."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.learners.command_lines import CHECKPOINT_STEPS, PLAIN, PPO, Train, command


@pytest.fixture
def config(tmp_path: Path) -> Path:
    settings = {
        "env": "CartPole-v1",
        "num_envs": 2,
        "total_steps": 2 * CHECKPOINT_STEPS,
        "checkpoint_every": CHECKPOINT_STEPS,
        "seed": 5,
        "tensorboard": False,
        "algorithm": PPO,
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


@pytest.fixture
def train(config: Path) -> Train:
    """The command, as a user gives it, without the file if it goes on with a run."""

    def run(*words: Any, resume: Path | None = None, plain: bool = True) -> Any:
        given = [config, *(PLAIN if plain and not any("parallel=" in str(word) for word in words) else [])]
        return command(*(["--resume", resume, "--trust", "tests"] if resume else given), *words)

    return run
