"""PettingZoo environments that break, or that do not keep PettingZoo's rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium.spaces import Box

from parallel_envs.testing import Fault, FaultyEnv, Moment, ScriptedAgentsEnv, Stay
from tests.gates import wait_at
from tests.multiagent.scripts import together

Results = list[dict[Any, Any]]


class FaultyAgentsEnv(ScriptedAgentsEnv):
    """Breaks as a `FaultyEnv` with episodes of the same length would."""

    def __init__(self, fault: Fault, moment: Moment, once: Path, length: int, possible_agents: Any = "all") -> None:
        self.fuse = FaultyEnv(fault, moment, once=once, episode_lengths=(length,), num_bytes=1 << 16)
        super().__init__(together(length), possible_agents=possible_agents)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        self.fuse.reset(seed=seed)
        return super().reset(seed, options)

    def step(self, actions: Any) -> Any:
        self.fuse.step(0)
        return super().step(actions)

    def poke(self) -> bytes:
        return self.fuse.poke()


class GatedAgentsEnv(ScriptedAgentsEnv):
    """Waits at a gate in its first step, in which agent "a" ends."""

    def __init__(self, gate: Path, possible_agents: Any = "all") -> None:
        super().__init__([{"a": Stay(1), "b": Stay(9)}], possible_agents=possible_agents)
        self.gate = gate

    def step(self, actions: Any) -> Any:
        if not self.elapsed:
            wait_at(self.gate)
        return super().step(actions)


class UnrulyEnv(ScriptedAgentsEnv):
    """Changes what its second step, or its second reset, returns."""

    def __init__(
        self, change: Callable[[UnrulyEnv, Results], None], *, at_reset: bool = False, possible_agents: Any = "all"
    ) -> None:
        super().__init__(together(9), possible_agents=possible_agents)
        self.change, self.at_reset, self.num_resets = change, at_reset, 0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        results = list(super().reset(seed, options))
        self.num_resets += 1
        if self.at_reset and self.num_resets == 2:
            self.change(self, results)
        return tuple(results)

    def change_to_end(self) -> None:
        """Let the next step end everyone."""
        self.change, self.elapsed = ends_everyone, 1

    def step(self, actions: Any) -> Any:
        results = list(super().step({agent: actions[agent] for agent in self.agents}))
        if self.elapsed == 2 and not self.at_reset:
            self.change(self, results)
        return tuple(results)


def answers_for_a_dead_agent(env: UnrulyEnv, results: Results) -> None:
    env.agents.remove("b")
    results[0].pop("b")
    results[2]["b"] = True
    env.change = talks_of_the_dead
    env.elapsed = 1


def talks_of_the_dead(env: UnrulyEnv, results: Results) -> None:
    results[0]["b"] = results[0]["a"]


def ends_everyone(env: UnrulyEnv, results: Results) -> None:
    env.agents.clear()
    results[0] = {"a": results[0]["a"]}
    results[2]["a"] = True


def keeps_an_ended_agent(env: UnrulyEnv, results: Results) -> None:
    results[2]["a"] = True


def shows_a_stranger(env: UnrulyEnv, results: Results) -> None:
    results[0]["stranger"] = results[0]["a"]


def shows_nothing(env: UnrulyEnv, results: Results) -> None:
    del results[0]["b"]


def swaps_without_a_word(env: UnrulyEnv, results: Results) -> None:
    env.agents.remove("b")
    env.agents.append("c")


def shows_another_shape(env: UnrulyEnv, results: Results) -> None:
    results[0]["b"] = np.zeros(4, np.float32)


def shows_one_number(env: UnrulyEnv, results: Results) -> None:
    results[0]["b"] = np.float32(1.0)


def rewards_with_a_word(env: UnrulyEnv, results: Results) -> None:
    results[1]["b"] = "much"


def rewards_with_nothing(env: UnrulyEnv, results: Results) -> None:
    results[1]["b"] = None


def rewards_with_two_numbers(env: UnrulyEnv, results: Results) -> None:
    results[1]["b"] = np.zeros(2)


def sees_more(env: UnrulyEnv, results: Results) -> None:
    env.sources["b"].observation_space = Box(0.0, 1.0, (7,))


def does_more(env: UnrulyEnv, results: Results) -> None:
    env.sources["b"].action_space = Box(0.0, 1.0, (7,))
