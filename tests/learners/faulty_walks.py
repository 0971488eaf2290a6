"""An environment whose transitions can be told from made-up ones, and that breaks on purpose."""

from __future__ import annotations

import itertools
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

LENGTH = 6
"""Steps of an episode; `short` ends two steps before."""

_LIVES = itertools.count(1)


class Walk(ParallelEnv[str, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """Each agent sees which object it is in, in which episode, and after how many steps. Every step pays 1.

    Args:
        folder: Where it notes which faults have happened: each happens once, in the first environment that comes to it.
            None: each happens in every life.
        faults: By name at which step of its life an environment breaks: "kill", "raise", "hang"; "reset": at which of
            its resets it raises.
    """

    metadata = {"name": "walk"}  # noqa: RUF012  # PettingZoo's form
    possible_agents = ["long", "short"]  # noqa: RUF012  # PettingZoo's form

    def __init__(self, folder: str | None = None, faults: dict[str, int] | None = None) -> None:
        self.folder, self.faults = folder, faults or {}
        self.life = os.getpid() % 4096 * 64 + next(_LIVES) % 64
        self.episode = self.time = self.num_steps = 0

    def observation_space(self, agent: str) -> Any:
        return Box(-np.inf, np.inf, (3,))

    def action_space(self, agent: str) -> Any:
        return Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        self.agents, self.time = list(self.possible_agents), 0
        self.episode += 1
        if self.faults.get("reset") == self.episode and self.is_first("reset"):
            self.inflict("reset")
        return self.seen(), {agent: {} for agent in self.agents}

    def seen(self) -> Any:
        return dict.fromkeys(self.agents, np.array([self.life, self.episode, self.time], np.float32))

    def step(self, actions: Any) -> Any:
        self.num_steps += 1
        for name, when in self.faults.items():
            if name != "reset" and self.num_steps == when and self.is_first(name):
                self.inflict(name)
        self.time += 1
        seen, there = self.seen(), self.agents
        over = {agent: self.time == LENGTH - 2 * (agent == "short") for agent in there}
        self.agents = [agent for agent in there if not over[agent]]
        return seen, dict.fromkeys(there, 1.0), over, dict.fromkeys(there, False), {agent: {} for agent in there}

    def is_first(self, name: str) -> bool:
        if self.folder is None:
            return True
        try:
            (Path(self.folder) / name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def inflict(self, name: str) -> None:
        if name == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if name == "hang":
            self.wait_for_ever()
        raise LookupError("the walker has lost its way")

    def wait_for_ever(self) -> None:
        time.sleep(3600.0)
