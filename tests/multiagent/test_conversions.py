"""Conversions to PettingZoo's parallel interface: of AEC environments, and of environments with agents in tuples."""

from __future__ import annotations

import importlib
import random
from functools import partial
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from pettingzoo import AECEnv
from pettingzoo.utils import wrappers
from pettingzoo.utils.conversions import aec_to_parallel

import parallel_envs
from parallel_envs import multiagent
from parallel_envs.multiagent import TupleAgents, tuple_agents
from parallel_envs.multiagent.aec import FastConversion, faster_conversion
from tests.multiagent.conftest import Make
from tests.multiagent.scripts import assert_same_rows

AGENTS = ["red", "blue"]


class CountingGame(AECEnv):  # type: ignore[misc]  # PettingZoo ships no type information
    """Everybody sees the sum of what was done so far; blue leaves first."""

    metadata: ClassVar = {"name": "counting", "is_parallelizable": True}
    render_mode = None

    def __init__(self, look: Any = None) -> None:
        self.possible_agents, self.look, self.num_looks = list(AGENTS), look, 0

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.np_random = np.random.default_rng(seed)
        self.agents, self.agent_selection = list(AGENTS), AGENTS[0]
        self.total, self.turn = 0.0, 0
        self.letters: dict[str, list[Any]] = {agent: [] for agent in AGENTS}
        self.rewards = dict.fromkeys(AGENTS, 0.0)
        self._cumulative_rewards = dict(self.rewards)
        self.terminations, self.truncations = dict.fromkeys(AGENTS, False), dict.fromkeys(AGENTS, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in AGENTS}

    def observe(self, agent: str) -> Any:
        return np.array([self.total]) if self.look is None else self.look(self, agent)

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
        for letters in self.letters.values():
            letters.append(action)
        self.total += action
        self.rewards = dict.fromkeys(self.agents, float(action))
        last = self.agent_selection == self.agents[-1]
        if last:
            self.turn += 1
            for agent, end in (("red", 9), ("blue", 4)):
                if agent in self.agents and self.turn >= end:
                    self.terminations[agent] = True
        place = self.agents.index(self.agent_selection)
        self.agent_selection = self.agents[(place + 1) % len(self.agents)]
        self._deads_step_first()


def guessing(game: Any, agent: str) -> Any:
    return game.np_random.standard_normal(1)


def leaking(game: Any, agent: str) -> Any:
    """What is seen does not tell that a look draws a number."""
    random.random()
    return np.array([game.total])


def noting(game: Any, agent: str) -> Any:
    """The game notes each look, and what is seen does not tell."""
    game.num_looks += 1
    return np.array([game.total])


def taking_letters(game: Any, agent: str) -> Any:
    """A look takes an agent's letters out of the box; the first comes with the first move."""
    taken, game.letters[agent] = game.letters[agent], []
    return np.array([float(len(taken))])


class UncopyableGame(CountingGame):
    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is only one of me")


class PushingGame(CountingGame):
    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)

    def step(self, action: Any) -> None:
        super().step(None if action is None else action[0])


class DoublingWrapper(wrappers.OrderEnforcingWrapper):  # type: ignore[misc]  # as above
    """Derived from one that is passed by: it does something."""

    def step(self, action: Any) -> None:
        super().step(None if action is None else 2 * action)

    def observe(self, agent: str) -> Any:
        return -super().observe(agent)

    @property
    def rewards(self) -> dict[str, float]:
        return {agent: reward + 1 for agent, reward in self.env.rewards.items()}


def played(env: Any, num_steps: int = 30) -> list[Any]:
    rng = np.random.default_rng(1)
    told = [repr(env.reset(seed=5))]
    for _ in range(num_steps):
        actions = {agent: int(rng.integers(3)) for agent in env.agents}
        told.append(repr(env.step(actions) if actions else env.reset(seed=6)))
    return told


def test_an_action_out_of_bounds_is_an_error() -> None:
    env = faster_conversion(converted(CountingGame(), checked, ordered))
    env.reset(seed=0)
    for action in (3, None):
        with pytest.raises(AssertionError, match="action is not in action space"):
            env.step({"red": action, "blue": 1})
    env.step({"red": 2, "blue": 1})
    env.aec_env.env = other = CountingGame()  # what it is made of may change between episodes
    env.reset(seed=0)
    env.step(dict.fromkeys(AGENTS, 2))
    assert other.total == 4


@pytest.mark.filterwarnings("ignore:.*clipping to space")
def test_actions_are_clipped() -> None:
    theirs = converted(PushingGame(), wrappers.ClipOutOfBoundsWrapper, ordered)
    ours = faster_conversion(converted(PushingGame(), wrappers.ClipOutOfBoundsWrapper, ordered))
    assert isinstance(ours, FastConversion)
    actions = {"red": np.array([0.5]), "blue": np.array([7.0])}
    for env in (ours, theirs):
        env.reset(seed=0)
    told = ours.step(actions)
    assert told[0]["red"].tolist() == [1.5]
    assert repr(told) == repr(theirs.step(actions))


def test_agents_out_of_order_are_an_error() -> None:
    class Hopping(CountingGame):
        def step(self, action: Any) -> None:
            super().step(action)
            self.agent_selection = self.agents[0]

    env = faster_conversion(aec_to_parallel(Hopping()))
    env.reset(seed=0)
    with pytest.raises(AssertionError, match="turn of 'blue', and it is that of 'red'"):
        env.step(dict.fromkeys(AGENTS, 1))


ordered, checked = wrappers.OrderEnforcingWrapper, wrappers.AssertOutOfBoundsWrapper


def converted(game: Any, *layers: Any) -> Any:
    """PettingZoo's conversion of a game behind wrappers, the innermost first."""
    for layer in layers:
        game = layer(game)
    return aec_to_parallel(game)


LAYERS: list[list[Any]] = [[], [ordered], [checked, ordered], [checked], [wrappers.BaseWrapper], [DoublingWrapper]]
LAYERS += [[DoublingWrapper, ordered], [DoublingWrapper, checked, ordered], [checked, ordered] * 2]


def test_a_look_that_changes_nothing_is_left_out_and_nothing_differs() -> None:
    for layers in LAYERS:
        env = faster_conversion(converted(CountingGame(), *layers))
        assert isinstance(env, FastConversion)
        assert (env.possible_agents, env.action_space("red")) == (AGENTS, gymnasium.spaces.Discrete(3))
        assert isinstance(env.unwrapped, CountingGame)
        assert env.metadata["name"] == "counting"
        assert played(env) == played(converted(CountingGame(), *layers))


GAMES = [UncopyableGame, *(partial(CountingGame, look) for look in (guessing, leaking, noting, taking_letters))]


@pytest.mark.parametrize("game", GAMES, ids=["uncopyable", "guessing", "leaking", "noting", "letters"])
def test_where_a_look_might_change_something_the_conversion_stays(game: Any) -> None:
    env, before, thing = converted(game()), random.getstate(), object()
    assert faster_conversion(env) is env
    assert faster_conversion(thing) is thing
    assert random.getstate() == before  # the trial drew no number of ours
    assert played(env) == played(converted(game()))


class Pair(gymnasium.Env[Any, Any]):
    """Two agents; each is rewarded with its own action, and the third step ends it all."""

    observation_space = spaces.Tuple([spaces.Box(0.0, 3.0, (1,)), spaces.Box(0.0, 3.0, (2,))])
    action_space = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(5)])

    def _seen(self) -> Any:
        return np.full(1, self.elapsed, np.float32), np.full(2, self.elapsed, np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, Any]:
        self.elapsed = 0
        return self._seen(), {"told": seed}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, Any]:
        self.elapsed += 1
        return self._seen(), list(map(float, action)), self.elapsed == 3, False, {}


class Team(Pair):
    """The same with values for the team or for each agent, as `tells` says, and a note of the actions it was given."""

    def __init__(self, **tells: Any) -> None:
        self.tells = tells
        self.given: list[Any] = []

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        self.given.append(action)
        observations, *_ = super().step(action)
        told = {"rewards": 1.5, "terminated": False, "truncated": False, "infos": {}, **self.tells}
        return observations, told["rewards"], told["terminated"], told["truncated"], told["infos"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
def test_it_is_a_pettingzoo_environment_in_which_one_that_has_ended_does_nothing_while_the_other_plays_on() -> None:
    from pettingzoo.test import parallel_api_test  # late: it warns of much that is not ours

    parallel_api_test(TupleAgents(Pair()), num_cycles=10)
    inner = Team(terminated=(True, False))
    env = TupleAgents(inner)
    env.reset()
    assert env.step({"agent_0": 1, "agent_1": 1})[2] == {"agent_0": True, "agent_1": False}
    assert env.agents == ["agent_1"]
    assert [set(values) for values in env.step({"agent_1": 4})] == [{"agent_1"}] * 5
    assert inner.given == [[1, 1], [0, 4]]


def test_actions_are_a_list_of_plain_ints(make_serial: Make) -> None:
    envs = make_serial([lambda: TupleAgents(Team())] * 2)
    envs.reset(seed=0)
    envs.step({"agent_0": np.array([1, 0]), "agent_1": np.array([4, 2])})
    assert envs.call("given") == ([[1, 4]], [[0, 2]])
    for given in envs.call("given"):
        assert {type(action) for action in given[0]} == {int}


@pytest.mark.parametrize("num_workers", [1, 2, 5])
def test_foraging_plays_the_same_on_every_backend(make: Make, num_workers: int) -> None:
    pytest.importorskip("lbforaging")
    assert_same_rows(make, _foraging, 40, num_envs=5, num_workers=num_workers)


def _foraging() -> TupleAgents:
    return tuple_agents("lbforaging:Foraging-5x5-2p-1f-v3", max_episode_steps=100)


def test_the_old_names_are_deprecated() -> None:
    for name in ("TupleAgents", "tuple_agents"):
        with pytest.warns(DeprecationWarning, match=f"take {name} from parallel_envs.multiagent"):
            old = getattr(importlib.import_module("parallel_envs.testing.tuple_agents"), name)
        assert old is getattr(multiagent, name)
    with pytest.warns(DeprecationWarning, match=r"take TupleAgents from parallel_envs\.multiagent"):
        assert parallel_envs.testing.TupleAgents is TupleAgents
    assert parallel_envs.tuple_agents is tuple_agents


ZERO = {"agent_0": 0, "agent_1": 0}
BOTH = {"agent_0": True, "agent_1": True}


def begun(**tells: Any) -> TupleAgents:
    env = TupleAgents(Team(**tells))
    env.reset()
    return env


def test_each_agent_has_its_own_part_and_all_end_at_once() -> None:
    env = TupleAgents(Pair())
    assert [env.action_space(agent) for agent in env.possible_agents] == [spaces.Discrete(2), spaces.Discrete(5)]
    observations, infos = env.reset(seed=4)
    assert {agent: seen.shape for agent, seen in observations.items()} == {"agent_0": (1,), "agent_1": (2,)}
    assert infos == {"agent_0": {"told": 4}, "agent_1": {"told": 4}}
    infos["agent_0"]["told"] = 2
    assert infos["agent_1"] == {"told": 4}  # not shared
    observations, rewards, *ends, _ = env.step({"agent_1": 3, "agent_0": 1})
    assert rewards == {"agent_0": 1.0, "agent_1": 3.0}
    assert observations["agent_1"].tolist() == [1.0, 1.0]
    assert ends == [dict.fromkeys(BOTH, False)] * 2
    assert [env.step(ZERO)[2] for _ in range(2)] == [dict.fromkeys(BOTH, False), BOTH]
    assert env.agents == []
    with pytest.raises(TypeError, match="Tuple spaces"):
        tuple_agents("CartPole-v1")


def test_what_is_told_may_be_the_teams_or_one_for_each() -> None:
    for rewards in (2, 2.0, np.float32(2), np.array(2.0), [2, 2], (2.0, 2.0), np.full(2, 2.0)):
        _, told, *_ = begun(rewards=rewards).step(ZERO)
        assert told == {"agent_0": 2.0, "agent_1": 2.0}
        assert {type(reward) for reward in told.values()} == {float}
    for place, which in ((2, "terminated"), (3, "truncated")):
        for flag in (True, np.True_, [True, True], np.ones(2, bool)):
            env = begun(**{which: flag})
            assert env.step(ZERO)[place] == BOTH
            assert env.agents == []
    env = begun(terminated=[False, False])
    env.step(ZERO)
    assert env.agents == ["agent_0", "agent_1"]
    assert begun(infos=[{"a": 1}, {"b": 2}]).step(ZERO)[4] == {"agent_0": {"a": 1}, "agent_1": {"b": 2}}
    for name, values in (("rewards", [1.0]), ("terminated", [True] * 3), ("infos", [{}])):
        wrong: Any = {name: values}
        with pytest.raises(ValueError, match=f"{name} for 2 agents"):
            begun(**wrong).step(ZERO)
