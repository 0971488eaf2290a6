"""Workloads of `python -m benchmarks groups`: groups of environments and predetermined actions for every turn."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

IO_SECONDS = 0.02
_MANY = 1_000_000


class Waiting:
    """Environment that waits in each step, as for a server or a disk."""

    def __init__(self, config: dict[str, Any]) -> None:
        self._seconds = config["seconds"]

    def reset(self, seed: int, mode: str) -> str:
        return "ask"

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        time.sleep(self._seconds)
        return action, 1.0, False, False, {"success": False, "action_is_valid": True}


def sokoban_turn(generator: np.random.Generator, num_envs: int) -> list[list[str]]:
    """Return five random moves for each environment."""
    names = ("Up", "Down", "Left", "Right")
    return [[names[move] for move in moves] for moves in generator.integers(4, size=(num_envs, 5))]


def answers(generator: np.random.Generator, num_envs: int) -> list[list[str]]:
    """Return one answer for each environment, which is hardly ever right."""
    return [[f"{left} + {right}"] for left, right in generator.integers(1, 99, (num_envs, 2))]


@dataclass(frozen=True, kw_only=True)
class GroupWork:
    """Groups of environments of one kind.

    `factory` is registered under the name `env_type` if the package does not have that type. `turn_seconds` is the
    approximate time of a turn in the plain loop. `slices` is the number of parts into which a usual slice is divided:
    short turns are compared in more and shorter slices. `contexts` are the start methods of the process pools that the
    work is compared with.
    """

    what: str
    env_type: str
    actions: Callable[[np.random.Generator, int], list[list[str]]]
    env_config: dict[str, Any] = field(default_factory=dict)
    num_groups: int = 8
    group_size: int = 16
    parallel_friendly: bool = False
    factory: Callable[[Any], Any] | None = None
    turn_seconds: float = 1.5e-3
    slices: int = 1
    contexts: tuple[str, ...] = ("fork",)

    @property
    def num_envs(self) -> int:
        return self.num_groups * self.group_size

    def turns_in(self, seconds: float) -> int:
        """Return the number of turns that every runner plays in a slice.

        The plain loop plays about as many in `seconds`.
        """
        return max(round(seconds / self.turn_seconds), 1)

    def config(self, num_workers: int) -> dict[str, Any]:
        """Return the config for `EnvStateManager`."""
        block = {
            "env_groups": self.num_groups,
            "group_size": self.group_size,
            "env_configs": {"tags": ["work"], "n_groups": [self.num_groups]},
        }
        tag = {
            "env_type": self.env_type,
            "max_actions_per_traj": _MANY,
            "env_config": self.env_config,
            "parallel_friendly": self.parallel_friendly,
        }
        return {"es_manager": {"max_workers": num_workers, "train": block}, "custom_envs": {"work": tag}}


def _sokoban(what: str, turn_seconds: float, slices: int = 1, **said: Any) -> GroupWork:
    config = {"dim_room": [6, 6], "max_steps": None, **said}
    return GroupWork(
        what=what,
        env_type="sokoban",
        env_config=config,
        actions=sokoban_turn,
        turn_seconds=turn_seconds,
        slices=slices,
    )


GROUP_WORKS: dict[str, GroupWork] = {
    "sokoban": _sokoban("128 Sokoban 6x6, 5 actions", 2e-3, slices=4),
    "sokoban-coords": _sokoban("the same with coordinates", 8e-3, observation_format="grid_coord"),
    "sokoban-pictures": _sokoban("the same in pictures", 6e-2, render_mode="rgb_array"),
    "countdown": GroupWork(
        what="128 Countdown", env_type="countdown", env_config={"max_attempts": _MANY}, actions=answers, slices=4
    ),
    "metamathqa": GroupWork(
        what="128 MetaMathQA", env_type="metamathqa", env_config={"max_attempts": None}, actions=answers, slices=4
    ),
    "waiting": GroupWork(
        what="32 that wait 20 ms",
        env_type="waiting",
        factory=Waiting,
        env_config={"seconds": IO_SECONDS},
        turn_seconds=32 * IO_SECONDS,
        num_groups=4,
        group_size=8,
        parallel_friendly=True,
        actions=answers,
        contexts=("fork", "forkserver"),
    ),
}
"""Works by name: the rows of the table."""
