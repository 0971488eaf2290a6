"""Schedules of agents, and spaces for them, to try a manager with."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import strategies as st

from parallel_envs import MultiAgentEnvManager
from parallel_envs.testing import InfoKind, RewardKind, ScriptedAgentsEnv, Stay
from parallel_envs.testing.scripted import Ending

Results = list[dict[Any, Any]]
Schedule = Mapping[Hashable, Stay]

AGENTS: list[Hashable] = ["a", "b", 3, ("t", 1)]

OBSERVATIONS: list[spaces.Space[Any]] = [
    spaces.Box(-1.0, 1.0, (3,), np.float32),
    spaces.Box(0, 255, (2, 2), np.uint8),
    spaces.Discrete(5, start=2),
    spaces.Dict({"observation": spaces.Box(-1.0, 1.0, (2,), np.float64), "action_mask": spaces.MultiBinary(3)}),
    spaces.Tuple((spaces.Discrete(3), spaces.Box(0.0, 1.0, (), np.float32))),
    spaces.Text(5),
    spaces.Dict({"words": spaces.Text(4), "size": spaces.MultiDiscrete([3, 4])}),
    spaces.Graph(spaces.Box(0.0, 1.0, (2,)), None),
]
ACTIONS: list[spaces.Space[Any]] = [
    spaces.Discrete(3),
    spaces.Box(-1.0, 1.0, (2,), np.float32),
    spaces.MultiDiscrete([2, 3]),
    spaces.Dict({"move": spaces.Discrete(4), "say": spaces.Box(0.0, 1.0, (2,), np.float32)}),
    spaces.Tuple((spaces.Discrete(2), spaces.MultiBinary(2))),
    spaces.Text(4),
]

EARLY_AND_LATE: list[Schedule] = [
    {"a": Stay(1), "b": Stay(3, ending="truncated"), "c": Stay(3)},
    {"b": Stay(2), "c": Stay(2, ending="both")},
    {"c": Stay(1), "a": Stay(4, first=1), "b": Stay(4, first=2, ending="truncated")},
]
"""Someone ends first; all end at once, and one never comes; one comes in the step in which another ends."""


def scripted(schedules: Sequence[Schedule] = EARLY_AND_LATE, **settings: Any) -> partial[ScriptedAgentsEnv]:
    return partial(ScriptedAgentsEnv, schedules, **settings)


def together(num_steps: int, *agents: Hashable) -> list[Schedule]:
    """All come and end together."""
    return [{agent: Stay(num_steps) for agent in agents or ("a", "b")}]


def noop(envs: MultiAgentEnvManager) -> dict[Any, Any]:
    """Zeros for all that are alive."""
    return dict.fromkeys(envs.agents_now, np.zeros(envs.num_envs, np.int64))


@st.composite
def stays(draw: st.DrawFn) -> Stay:
    first = draw(st.sampled_from([0, 0, 0, 1, 2]))
    endings: list[Ending] = ["terminated", "truncated", "both"]
    ending = draw(st.sampled_from(endings))
    return Stay(first + draw(st.integers(1, 3)), first, ending)


def schedules() -> st.SearchStrategy[list[dict[Hashable, Stay]]]:
    return st.lists(st.dictionaries(st.sampled_from(AGENTS), stays(), min_size=1), min_size=1, max_size=3)


@st.composite
def settings(draw: st.DrawFn) -> dict[str, Any]:
    """How scripted agents see, act and are rewarded."""
    kinds: Any = st.lists(st.sampled_from(list(RewardKind)), min_size=1, max_size=2, unique=True)
    return {
        "observation_spaces": {agent: draw(st.sampled_from(OBSERVATIONS)) for agent in [*AGENTS, "never"]},
        "action_spaces": {agent: draw(st.sampled_from(ACTIONS)) for agent in [*AGENTS, "never"]},
        "infos": draw(st.lists(st.sampled_from(list(InfoKind)), max_size=2, unique=True)),
        "rewards": draw(kinds),
        "reuse_buffers": draw(st.booleans()),
    }


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

    def step(self, actions: Any) -> Any:
        results = list(super().step({agent: actions[agent] for agent in self.agents}))
        if self.elapsed == 2 and not self.at_reset:
            self.change(self, results)
        return tuple(results)


MODES = ["NextStep", "SameStep", "Disabled"]
EVERYONE = [*AGENTS, "never"]
of_both_kinds = pytest.mark.parametrize("possible_agents", ["all", None], ids=["known", "open"])
