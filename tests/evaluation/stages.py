"""Environments and policies for the tests of evaluations, such that workers can import them."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv

from parallel_envs.policies import AgentPolicy, MultiAgentPolicy

AGENTS = ("red", "blue", "green")
Named = dict[Any, Any]


class Course(ParallelEnv[Any, Any, Any]):  # type: ignore[misc]  # PettingZoo ships no type information
    """Every number follows from the seed and from all actions, so that one that is lost or swapped shows.

    Args:
        length: Steps of an episode.
        agents: Their names.
        fault: What goes wrong ("raise", "exit", "kill", "hang"), in the episode with `fatal_seed`, in its third step.
        fatal_seed: None: in every episode.
        once: A file; when it is there nothing goes wrong any more, and what goes wrong makes it.
    """

    metadata: Mapping[str, Any] = {"name": "course"}

    def __init__(
        self,
        length: int = 6,
        agents: tuple[Any, ...] = AGENTS,
        fault: str = "",
        fatal_seed: int | None = None,
        once: str | None = None,
    ) -> None:
        self.length, self.possible_agents, self.agents = length, list(agents), list[Any]()
        self.fault, self.fatal_seed, self.once = fault, fatal_seed, once
        self.space = Box(-1.0, 1.0, (3,), np.float32)

    def observation_space(self, agent: Any) -> Any:
        return self.space

    def action_space(self, agent: Any) -> Any:
        return Discrete(5)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Named, Named]:
        self.seed, self.elapsed, self.agents = seed, 0, list(self.possible_agents)
        self.generator = np.random.default_rng(seed)
        return self._seen(), {agent: {} for agent in self.agents}

    def _seen(self) -> Named:
        return {agent: self.generator.random(3, np.float32) for agent in self.agents}

    def step(self, actions: Mapping[Any, Any]) -> tuple[Named, Named, Named, Named, Named]:
        assert list(actions) == self.agents, "all agents act, in order"
        self.elapsed += 1
        if self.elapsed == 3 and self.fatal_seed in (None, self.seed):
            fail(self.fault, self.once)
        own = {agent: (place + 1.5) * actions[agent] for place, agent in enumerate(self.agents)}
        total = sum(own.values()) + self.generator.random()
        over = self.elapsed >= self.length
        seen, agents = self._seen(), self.agents
        self.agents = [] if over else agents
        infos = {agent: {"level": self.elapsed, **({"is_success": total > 10} if over else {})} for agent in agents}
        flags = dict.fromkeys(agents, over)
        return seen, {agent: own[agent] + total for agent in agents}, flags, dict.fromkeys(agents, False), infos

    def close(self) -> None:
        self.agents = []


class Unmakeable(Course):
    def __init__(self) -> None:
        raise RuntimeError("no license")


class NoReset(Course):
    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        raise KeyError("level")


def course_of(number: int, **kwargs: Any) -> Course:
    return Course(agents=tuple(f"agent_{place}" for place in range(number)), **kwargs)


def hidden(n_agents: int = 2, **kwargs: Any) -> Course:
    """Has a number of agents, and hides its other keywords."""
    return course_of(n_agents, **kwargs)


def crowded(num_agents: int = 2) -> Course:
    """Has one agent more than it is told."""
    return course_of(num_agents + 1)


def fail(how: str, once: str | None = None) -> None:
    """Do something wrong, unless the file `once` is there, which is made first."""
    if once is not None and how:
        if Path(once).exists():
            return
        Path(once).touch()
    match how:
        case "raise":
            raise ValueError("injected")
        case "exit":
            os._exit(23)
        case "system_exit":
            raise SystemExit(3)
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "hang":
            while True:
                time.sleep(3600)


class Counting(AgentPolicy):
    """What it does depends on how often it has been asked in all its life, and on the moods of its class."""

    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.asked, self.resets = 0, 0

    def reset(self) -> None:
        self.resets += 1

    def step(self, observation: Any) -> int:
        self.asked += 1
        return (self.asked + 2 * self.resets + int(observation[0] * 10)) % 3


class Drawing(AgentPolicy):
    """Draws from every generator there is, none of which it has seeded."""

    def __init__(self) -> None:
        self.own = np.random.default_rng()
        self.more = {"python": random.Random(), "numpy": [np.random.RandomState()]}

    def step(self, observation: Any) -> int:
        draws = [self.own.integers(5), self.more["python"].randrange(5), self.more["numpy"][0].randint(5)]  # type: ignore[index, attr-defined]  # of two kinds
        return int(sum(draws) + random.randrange(5) + np.random.randint(5)) % 5


class Failing(AgentPolicy):
    """Does something wrong in its step number `at`, counted from 1."""

    def __init__(self, how: str = "raise", at: int = 2, once: str | None = None) -> None:
        self.how, self.at, self.once, self.asked = how, at, once, 0

    def step(self, observation: Any) -> Any:
        self.asked += 1
        if self.asked != self.at:
            return 1
        if self.how == "nonsense":
            return "left"
        fail(self.how, self.once)
        return 1


class Together(MultiAgentPolicy):
    """Its agents count together."""

    def __init__(self) -> None:
        self.asked = 0

    def reset(self) -> None:
        self.asked = 0

    def agent_policy(self, agent: Any) -> AgentPolicy:
        return _Member(self)


class _Member(AgentPolicy):
    def __init__(self, team: Together) -> None:
        self.team = team

    def step(self, observation: Any) -> int:
        self.team.asked += 1
        return self.team.asked % 5


class FlakyCart(gymnasium.Wrapper[Any, Any, Any, Any]):
    """A cart whose process ends in the third episode, unless the file is there, which it makes then."""

    resets = 0

    def __init__(self, once: str) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.once = Path(once)

    def reset(self, **kwargs: Any) -> Any:
        type(self).resets += 1
        if self.resets == 4 and not self.once.exists():  # a rehearsal is the first
            self.once.touch()
            os._exit(1)
        return super().reset(**kwargs)


class Reading:
    """Acts by the bytes in its folder. No worker needs torch for it."""

    def load(self, folder: str) -> None:
        files = sorted(path for path in Path(folder).rglob("*") if path.is_file() and path.name != "once")
        self.content = b"".join(path.read_bytes() for path in files)

    def step(self, observation: Any) -> int:
        return hashlib.sha256(self.content + observation.tobytes()).digest()[0] % 2
