"""AEC environments with all agents at once: the results of PettingZoo's conversion, faster where results are equal."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from pettingzoo import AECEnv
from pettingzoo.utils import wrappers
from pettingzoo.utils.conversions import aec_to_parallel

from parallel_envs.multiagent.aec import FastConversion, faster_conversion

AGENTS = ["red", "blue"]


class CountingGame(AECEnv):  # type: ignore[misc]  # PettingZoo ships no type information
    """Everybody sees the sum of what was done so far; blue leaves first."""

    metadata: ClassVar = {"name": "counting", "is_parallelizable": True}
    render_mode = None

    def __init__(self) -> None:
        self.possible_agents = list(AGENTS)

    def observation_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)

    def action_space(self, agent: str) -> gymnasium.Space[Any]:
        return gymnasium.spaces.Discrete(3)

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        self.np_random = np.random.default_rng(seed)
        self.agents, self.agent_selection = list(AGENTS), AGENTS[0]
        self.total, self.turn = 0.0, 0
        self.rewards = dict.fromkeys(AGENTS, 0.0)
        self._cumulative_rewards = dict(self.rewards)
        self.terminations, self.truncations = dict.fromkeys(AGENTS, False), dict.fromkeys(AGENTS, False)
        self.infos: dict[str, dict[str, Any]] = {agent: {} for agent in AGENTS}

    def observe(self, agent: str) -> Any:
        return np.array([self.total])

    def step(self, action: Any) -> None:
        if self.terminations[self.agent_selection]:
            self._was_dead_step(action)
            return
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


class GuessingGame(CountingGame):
    """What is seen is drawn from the game's generator."""

    def observe(self, agent: str) -> Any:
        return self.np_random.standard_normal(1)


class LeakyGame(CountingGame):
    """What is seen does not tell that a look draws a number."""

    def observe(self, agent: str) -> Any:
        random.random()
        return super().observe(agent)


class NotingGame(CountingGame):
    """It notes each look, and what is seen does not tell."""

    num_looks = 0

    def observe(self, agent: str) -> Any:
        self.num_looks += 1
        return super().observe(agent)


class LetterGame(CountingGame):
    """A look takes an agent's letters out of the box; the first comes with the first move."""

    def reset(self, seed: int | None = None, options: dict[str, Any] | None = None) -> None:
        super().reset(seed, options)
        self.letters: dict[str, list[Any]] = {agent: [] for agent in AGENTS}

    def observe(self, agent: str) -> Any:
        taken, self.letters[agent] = self.letters[agent], []
        return np.array([float(len(taken))])

    def step(self, action: Any) -> None:
        for letters in self.letters.values():
            letters.append(action)
        super().step(action)


class UncopyableGame(CountingGame):
    """It cannot be tried on a copy."""

    def __deepcopy__(self, memo: Any) -> Any:
        raise TypeError("there is only one of me")


class PaintedGame(CountingGame):
    """What is seen is drawn if the paint is wet."""

    wet = False

    def observe(self, agent: str) -> Any:
        return self.np_random.standard_normal(1) if self.wet else super().observe(agent)


class PushingGame(CountingGame):
    """One pushes by so and so much."""

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


@pytest.mark.parametrize("game", [CountingGame, GuessingGame, LeakyGame, NotingGame, LetterGame, UncopyableGame])
def test_nothing_differs(game: type[CountingGame]) -> None:
    assert played(faster_conversion(aec_to_parallel(game()))) == played(aec_to_parallel(game()))


@pytest.mark.parametrize("convert", [faster_conversion, lambda env: env], ids=["faster_conversion", "pettingzoos"])
def test_an_action_out_of_bounds_is_an_error(convert: Any) -> None:
    env = convert(converted(CountingGame(), checked, ordered))
    env.reset(seed=0)
    for action in (3, None):
        with pytest.raises(AssertionError, match="action is not in action space"):
            env.step({"red": action, "blue": 1})
    env.step({"red": 2, "blue": 1})


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


def test_what_an_environment_is_made_of_may_change_between_episodes() -> None:
    env = faster_conversion(converted(CountingGame(), checked, ordered))
    env.reset(seed=0)
    env.aec_env.env = other = CountingGame()
    env.reset(seed=0)
    env.step(dict.fromkeys(AGENTS, 2))
    assert other.total == 4


def test_the_rest_is_the_conversions() -> None:
    env = faster_conversion(aec_to_parallel(CountingGame()))
    assert env.possible_agents == AGENTS
    assert env.action_space("red") == gymnasium.spaces.Discrete(3)
    assert isinstance(env.unwrapped, CountingGame)
    assert env.metadata["name"] == "counting"


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


LAYERS: list[list[Any]] = [[], [ordered], [checked, ordered], [checked], [wrappers.BaseWrapper], [DoublingWrapper]]


LAYERS += [[DoublingWrapper, ordered], [DoublingWrapper, checked, ordered], [checked, ordered] * 2]


def converted(game: Any, *layers: Any) -> Any:
    """PettingZoo's conversion of a game behind wrappers, the innermost first."""
    for layer in layers:
        game = layer(game)
    return aec_to_parallel(game)


@pytest.mark.parametrize("layers", LAYERS, ids=lambda layers: "-".join(layer.__name__ for layer in layers))
def test_a_look_that_changes_nothing_is_left_out_and_nothing_differs(layers: Any) -> None:
    env = faster_conversion(converted(CountingGame(), *layers))
    assert isinstance(env, FastConversion)
    assert played(env) == played(converted(CountingGame(), *layers))


@pytest.mark.parametrize("game", [GuessingGame, LeakyGame, NotingGame, LetterGame, UncopyableGame])
def test_where_a_look_might_change_something_the_conversion_stays(game: type[CountingGame]) -> None:
    env, before = converted(game()), random.getstate()
    assert faster_conversion(env) is env
    assert random.getstate() == before  # the trial drew no number of ours
    assert played(env) == played(converted(game()))


def test_each_environment_is_tried_and_what_is_none_is_left_as_it_is() -> None:
    dry, wet, thing = PaintedGame(), PaintedGame(), object()
    wet.wet = True
    assert isinstance(faster_conversion(converted(dry)), FastConversion)
    assert faster_conversion(env := converted(wet)) is env
    assert faster_conversion(thing) is thing
