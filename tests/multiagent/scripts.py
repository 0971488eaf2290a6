"""Schedules of agents and spaces for them; what rows must be: each environment played by hand in this process."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from gymnasium.vector import AutoresetMode
from hypothesis import strategies as st

from parallel_envs import MultiAgentEnvManager
from parallel_envs.testing import InfoKind, RewardKind, ScriptedAgentsEnv, Stay, assert_same_batch
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
    kinds: Any = st.lists(st.sampled_from(list(RewardKind)), min_size=1, max_size=2, unique=True)
    return {
        "observation_spaces": {agent: draw(st.sampled_from(OBSERVATIONS)) for agent in [*AGENTS, "never"]},
        "action_spaces": {agent: draw(st.sampled_from(ACTIONS)) for agent in [*AGENTS, "never"]},
        "infos": draw(st.lists(st.sampled_from(list(InfoKind)), max_size=2, unique=True)),
        "rewards": draw(kinds),
        "reuse_buffers": draw(st.booleans()),
    }


class UnrulyEnv(ScriptedAgentsEnv):
    """Changes what its second step, or its second reset, returns: `change` writes into it or returns another."""

    def __init__(self, change: Callable[[UnrulyEnv, Results], Any], *, at_reset: bool = False, **settings: Any) -> None:
        super().__init__(together(9), **settings)
        self.change, self.at_reset, self.num_resets = change, at_reset, 0

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        results = list(super().reset(seed, options))
        self.num_resets += 1
        if self.at_reset and self.num_resets == 2:
            return self.change(self, results) or tuple(results)
        return tuple(results)

    def step(self, actions: Any) -> Any:
        results = list(super().step({agent: actions[agent] for agent in self.agents}))
        if self.elapsed == 2 and not self.at_reset:
            return self.change(self, results) or tuple(results)
        return tuple(results)


MODES = ["NextStep", "SameStep", "Disabled"]
EVERYONE = [*AGENTS, "never"]
of_both_kinds = pytest.mark.parametrize("possible_agents", ["all", None], ids=["known", "open"])


Agent = Hashable
Named = dict[Agent, Any]
Maker = Callable[[], Any]

FINALS = ("final_obs", "final_reward", "final_info")


@dataclass
class Row:
    """What one environment returned, and who is alive after it. `finals` are told when its episode has ended."""

    observations: Named
    rewards: Named
    terminations: Named
    truncations: Named
    infos: Named
    agents: list[Agent]
    finals: dict[Agent, tuple[Any, float, dict[str, Any]]] = field(default_factory=dict)


class PlainEnv:
    """One environment, reset by hand when nobody is left: in the next step, in the same one, or not at all."""

    def __init__(self, make: Maker, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> None:
        self.env, self.mode = make(), mode
        self.over = False
        self.ended: dict[Agent, tuple[Any, float, dict[str, Any]]] = {}

    @property
    def agents(self) -> list[Agent]:
        return list(self.env.agents)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> Row:
        given = {"seed": seed, "options": options}
        told = self.env.reset(**{key: value for key, value in given.items() if value is not None})
        observations, infos = deepcopy(told)
        self.over, self.ended = False, {}
        return Row(observations, {}, {}, {}, infos, self.agents)

    def step(self, actions: Named) -> Row:
        if self.over and self.mode is AutoresetMode.NEXT_STEP:
            return self.reset()
        observations, rewards, terminations, truncations, infos = deepcopy(self.env.step(actions))
        for agent in observations:
            if terminations[agent] or truncations[agent]:
                self.ended[agent] = observations[agent], number(rewards[agent]), infos.get(agent, {})
        row = Row(observations, rewards, terminations, truncations, infos, self.agents)
        self.over = not self.env.agents
        if self.over:
            row.finals, self.ended = self.ended, {}
            if self.mode is AutoresetMode.SAME_STEP:
                begun = self.reset()
                row.observations, row.infos, row.agents = begun.observations, begun.infos, begun.agents
        return row

    def space(self, which: str, agent: Agent) -> Any:
        return getattr(self.env, which)(agent)


class Witness:
    """Plays a manager and its environments side by side; whatever differs is an error.

    With `own_pace`, steps go through `send` and `recv`.
    """

    def __init__(self, envs: MultiAgentEnvManager, makers: Sequence[Maker], *, own_pace: bool = False) -> None:
        self.envs, self.own_pace = envs, own_pace
        self.mode = envs.envs.autoreset_mode
        self.plain = [PlainEnv(make, self.mode) for make in makers]
        self.drawer = np.random.default_rng(7)

    def reset(self, seed: int = 3, options: dict[str, Any] | None = None) -> None:
        observations, infos = self.envs.reset(seed=seed, options=options)
        rows = [plain.reset(seed + env, options) for env, plain in enumerate(self.plain)]
        self.compare(rows, observations, infos)

    def play(self, num_steps: int, seed: int = 3) -> None:
        self.reset(seed)
        for _ in range(num_steps):
            self.step()

    def step(self) -> None:
        self.reset_what_is_over()
        actions = [self.draw(plain) for plain in self.plain]
        rows = [plain.step(deepcopy(own)) for plain, own in zip(self.plain, actions, strict=True)]
        if not self.own_pace:
            self.compare(rows, *self.envs.step(self.batch(actions)))
            return
        self.envs.send(self.batch(actions))
        order, *told = self.envs.recv(min_envs=len(rows))
        self.compare([rows[env] for env in order], *told, envs=order.tolist())

    def reset_what_is_over(self) -> None:
        """Under DISABLED the caller resets."""
        over = [env for env, plain in enumerate(self.plain) if plain.over]
        if self.mode is AutoresetMode.DISABLED and over:
            observations, infos = self.envs.reset(env_ids=over)
            rows = {env: self.plain[env].reset() for env in over}
            self.compare_rows(rows, observations, infos)
            assert not any(
                mask[[env for env in range(len(self.plain)) if env not in over]].any() for mask in masks(infos)
            )

    def draw(self, plain: PlainEnv) -> Named:
        return {
            agent: draw(plain.space("action_space", agent), self.drawer) for agent in sorted(plain.agents, key=repr)
        }

    def batch(self, actions: Sequence[Named]) -> Named:
        """The actions of all environments by agent, with rubbish where nobody acts."""
        acting = dict.fromkeys(agent for own in actions for agent in own)
        if self.envs.is_open:
            return {agent: [own.get(agent) for own in actions] for agent in acting}
        return {
            agent: stack(self.envs.single_action_space(agent), [own.get(agent) for own in actions]) for agent in acting
        }

    def compare(self, rows: Sequence[Row], observations: Named, *rest: Any, envs: Sequence[int] | None = None) -> None:
        numbers = range(len(rows)) if envs is None else envs
        for agent, flags in self.envs.alive.items():
            expected = [agent in self.plain[env].agents for env in numbers]
            assert flags[list(numbers)].tolist() == expected, agent
        assert set(self.envs.agents_now) == {agent for plain in self.plain for agent in plain.agents}
        self.compare_rows(dict(enumerate(rows)), observations, *rest, numbers=numbers)

    def compare_rows(
        self, rows: Mapping[int, Row], observations: Named, *rest: Any, numbers: Sequence[int] | None = None
    ) -> None:
        """`numbers` says which environment each row belongs to."""
        *told, infos = rest
        for row, expected in rows.items():
            env = row if numbers is None else numbers[row]
            assert set(expected.observations) <= set(observations)
            for agent in observations:
                self.compare_observation(agent, row, env, expected, observations[agent])
                self.compare_numbers(agent, row, expected, told)
                assert_same_info(own_info(infos[agent], row), expected.infos.get(agent) or {})
            self.compare_finals(row, env, expected, infos)

    def compare_observation(self, agent: Agent, row: int, env: int, expected: Row, batch: Any) -> None:
        present = agent in expected.observations
        assert bool(self.envs.present[agent][env]) is present, (agent, env)
        space = self.plain[env].space("observation_space", agent) if present else None
        if present:
            assert_same_batch(taken(space, batch, row), as_kept(space, expected.observations[agent]))
        elif isinstance(batch, list):
            assert batch[row] is None
        else:
            assert_nothing(self.envs.single_observation_space(agent), batch, row)

    def compare_numbers(self, agent: Agent, row: int, expected: Row, told: Sequence[Any]) -> None:
        if not told:
            return
        rewards, terminations, truncations = told
        assert rewards[agent].dtype == np.float64
        assert rewards[agent][row] == number(expected.rewards.get(agent, 0.0))
        for flags, own in ((terminations, expected.terminations), (truncations, expected.truncations)):
            assert flags[agent].dtype == np.bool_
            assert bool(flags[agent][row]) is bool(own.get(agent, False))

    def compare_finals(self, row: int, env: int, expected: Row, infos: Any) -> None:
        """What each agent was told at its own end: in the row in which the episode has ended, and nowhere else."""
        for agent in {*infos, *expected.finals}:
            told = infos.get(agent, {})
            for key in FINALS:
                mask = told.get(f"_{key}")
                assert (mask is not None and bool(mask[row])) is (agent in expected.finals), (agent, key)
            if agent in expected.finals:
                observation, reward, info = expected.finals[agent]
                space = self.plain[env].space("observation_space", agent)
                assert_same_batch(taken(space, told["final_obs"], row), as_kept(space, observation))
                assert told["final_reward"][row] == reward
                assert_same_info(own_info(told["final_info"], row), info)


def assert_same_rows(make: Callable[..., MultiAgentEnvManager], maker: Maker, num_steps: int, **settings: Any) -> None:
    num_envs = settings.pop("num_envs", 3)
    Witness(make([maker] * num_envs, **settings), [maker] * num_envs).play(num_steps)


# ---- values ---------------------------------------------------------------------------------------------------------


def number(reward: Any) -> float:
    return float(np.asarray(reward).reshape(()))


def draw(space: Space[Any], drawer: np.random.Generator) -> Any:
    if isinstance(space, Discrete):
        return space.dtype.type(space.start + drawer.integers(space.n))
    if isinstance(space, Box) and space.is_bounded():
        return drawer.uniform(space.low, space.high).astype(space.dtype)
    own = deepcopy(space)
    own.seed(int(drawer.integers(1 << 30)))
    return own.sample()


def parts(space: Space[Any]) -> Iterable[tuple[Any, Space[Any]]] | None:
    if isinstance(space, Dict):
        return space.spaces.items()
    return enumerate(space.spaces) if isinstance(space, Tuple) else None


def is_fixed(space: Space[Any]) -> bool:
    return isinstance(space, Box | Discrete | MultiBinary | MultiDiscrete)


def as_kept(space: Any, value: Any) -> Any:
    if isinstance(space, Dict):
        return {key: as_kept(part, value[key]) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(as_kept(part, value[key]) for key, part in enumerate(space.spaces))
    return np.asarray(value).astype(space.dtype) if is_fixed(space) else value


def taken(space: Any, batch: Any, row: int) -> Any:
    if isinstance(batch, list):
        return as_kept(space, batch[row])
    if isinstance(space, Dict):
        return {key: taken(part, batch[key], row) for key, part in space.spaces.items()}
    if isinstance(space, Tuple):
        return tuple(taken(part, batch[key], row) for key, part in enumerate(space.spaces))
    if not is_fixed(space):
        return batch[row]
    assert batch.dtype == space.dtype
    return np.asarray(batch[row])


def stack(space: Space[Any], values: Sequence[Any]) -> Any:
    """A batch of actions. In the rows where there is none is what no environment would take for one."""
    inner = parts(space)
    if inner is not None:
        columns = {key: stack(part, [None if value is None else value[key] for value in values]) for key, part in inner}
        return columns if isinstance(space, Dict) else tuple(columns.values())
    if not is_fixed(space):
        return list(values)
    rubbish = np.full(space.shape or (), 99).astype(space.dtype)
    return np.stack([rubbish if value is None else np.asarray(value) for value in values])


def assert_nothing(space: Space[Any], batch: Any, row: int) -> None:
    """A row without an observation holds zeros, or None where there are no numbers."""
    inner = parts(space)
    if inner is not None:
        for key, part in inner:
            assert_nothing(part, batch[key], row)
    elif is_fixed(space):
        assert batch.dtype == space.dtype
        assert not batch[row].any()
    else:
        assert batch[row] is None


# ---- infos ----------------------------------------------------------------------------------------------------------


def own_info(infos: Mapping[str, Any], row: int) -> dict[str, Any]:
    """One row of a batch of infos in Gymnasium's layout, without the last words."""
    own = {}
    for key, values in infos.items():
        mask = infos.get(f"_{key}")
        if mask is not None and mask[row] and key not in FINALS:
            own[key] = own_info(values, row) if isinstance(values, dict) else values[row]
    return own


def masks(infos: Any) -> list[Any]:
    return [values for own in infos.values() for key, values in own.items() if key.startswith("_")]


def assert_same_info(actual: Any, expected: Any) -> None:
    """Equal but for the types of numbers, which a column has in common."""
    if isinstance(expected, Mapping):
        assert set(actual) == set(expected)
        for key in expected:
            assert_same_info(actual[key], expected[key])
    elif isinstance(expected, np.ndarray | np.generic | int | float | bool):
        np.testing.assert_array_equal(actual, expected)
    else:
        assert actual == expected
