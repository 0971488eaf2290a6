"""What a policy is, how anything that acts becomes one, policies by their names, and those that need no training."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from parallel_envs.policies import (
    AgentPolicy,
    BatchPolicy,
    FunctionPolicy,
    LiftedPolicy,
    MultiAgentPolicy,
    NoopAgent,
    PolicySpec,
    RandomAgent,
    RandomPolicy,
    Rows,
    ScriptedAgent,
    SingleRow,
    as_batch_policy,
    load_policy,
)
from parallel_envs.policies.specs import with_absolute_paths
from parallel_envs.testing import assert_same_batch

HERE = __name__
SPACES: list[Any] = [
    spaces.Discrete(5, start=-2),
    spaces.MultiDiscrete([2, 3]),
    spaces.Box(-1, 1, (2,)),
    spaces.Dict({"a": spaces.Text(4), "b": spaces.Tuple([spaces.Discrete(3), spaces.MultiBinary(2)])}),
]


def rows(*seeds: int, observations: Any = ()) -> Rows:
    return Rows([np.random.default_rng(seed) for seed in seeds], lambda: list(observations))


class Summing(AgentPolicy):
    """Acts with the sum of what it has seen since `reset`."""

    total = 99

    def reset(self) -> None:
        self.total = 0

    def step(self, observation: Any) -> int:
        self.total += int(observation)
        return self.total


class Noisy(BatchPolicy):
    """Adds a draw and a count of steps."""

    def initial_state(self, num_rows: int) -> Any:
        return np.zeros(num_rows)

    def act(self, observations: Any, state: Any, resets: Any, rows: Rows) -> tuple[Any, Any]:
        state = np.where(resets, 0, state)
        return observations[:, 0] + rows.uniform() + 10 * state, state + 1


@pytest.mark.parametrize("space", SPACES, ids=lambda space: type(space).__name__)
def test_random_actions_are_of_the_space_and_of_the_rows_own_draws(space: Any) -> None:
    before = repr(space.np_random.bit_generator.state)
    policy = RandomPolicy(space)
    both, one = rows(1, 2), rows(2)
    state, own = policy.initial_state(2), policy.initial_state(1)
    for resets in ([True], [False], [False], [True]):
        actions, state = policy.act(None, state, np.array(resets * 2), both)
        alone, own = policy.act(None, own, np.array(resets), one)
        assert all(space.contains(action) for action in actions)
        assert_same_batch(actions[1], alone[0])
    assert repr(space.np_random.bit_generator.state) == before


def test_each_row_of_an_agent_policy_has_a_memory_of_its_own() -> None:
    agent = Summing()
    policy = LiftedPolicy(agent)
    state = policy.initial_state(2)
    first, state = policy.act(None, state, np.ones(2, np.bool_), rows(1, 2, observations=[1, 10]))
    second, state = policy.act(None, state, np.zeros(2, np.bool_), rows(1, 2, observations=[2, 20]))
    assert (first, second) == ([1, 10], [3, 30])
    assert agent.total == 99


def test_a_batch_policy_acts_for_one_agent() -> None:
    agent = SingleRow(Noisy(), spaces.Box(-1, 1, (2,)), seed=5)
    draws = np.random.default_rng(5)
    for _ in range(2):
        for step in range(3):
            assert agent.step(np.array([0.5, 0.0], np.float32)) == 0.5 + draws.random() + 10 * step
        agent.reset()


def test_whatever_acts_becomes_a_batch_policy_and_anything_else_is_refused() -> None:
    class Plain:
        """No subclass of ours."""

        def reset(self) -> None:
            pass

        def step(self, observation: Any) -> int:
            return 0

    policy = Noisy()
    assert as_batch_policy(policy) is policy
    for agent in (Summing(), Plain()):
        lifted = as_batch_policy(agent)
        assert isinstance(lifted, LiftedPolicy)
        assert lifted.policy is agent
        assert type(agent).__name__ in repr(lifted)
    functions: list[Any] = [abs, lambda observation: 0, np.argmax]
    assert all(isinstance(as_batch_policy(function), FunctionPolicy) for function in functions)
    assert "rows" in repr(FunctionPolicy(rows))
    things: list[Any] = [None, 3, "random", Summing, Noisy, int, [Summing()], {}]
    for thing in things:
        with pytest.raises(TypeError, match="is not a policy"):
            as_batch_policy(thing)


class Greedy(AgentPolicy):
    """Takes what it is told to take."""

    def __init__(self, action_space: Space[Any], bonus: int = 0) -> None:
        self.action_space, self.bonus, self.loaded = action_space, bonus, ""

    def load(self, path: str) -> None:
        self.loaded = path

    def step(self, observation: Any) -> int:
        return int(observation) + self.bonus


class Family(MultiAgentPolicy):
    """Everybody says its own name."""

    def agent_policy(self, agent: Hashable) -> AgentPolicy:
        return ScriptedAgent(lambda observation: agent)


class Useless:
    """It cannot act."""


def test_random_agents_draw_from_their_own_seed_by_the_mask_and_leave_the_space_alone() -> None:
    draws = [[RandomAgent(Discrete(100), seed).step(None) for _ in range(5)] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]
    space = Discrete(100)
    space.seed(3)
    RandomAgent(space, 4).step(None)
    assert space.sample() == Discrete(100, seed=3).sample()
    agent = RandomAgent(Discrete(3), 1)
    assert {agent.step({"observation": 0, "action_mask": np.array([0, 1, 0])}) for _ in range(20)} == {1}


def test_doing_nothing_is_an_action_of_the_space_or_has_to_be_given() -> None:
    boxes = [Box(-1, 1, (2,)), Box(0.5, 1, (2,))]
    composite = Dict(a=Discrete(2), b=Tuple([Box(-1, 1)]))
    for space in (Discrete(4, start=2), *boxes, MultiDiscrete([2, 3]), MultiBinary(3), composite):
        assert space.contains(NoopAgent(space).step(None))
    with pytest.raises(TypeError, match="has no action that does nothing"):
        NoopAgent(Text(3))
    assert NoopAgent(action="no").step(None) == "no"


def test_a_policy_by_name_gets_what_it_takes() -> None:
    assert isinstance(load_policy("random", action_space=Discrete(2), seed=3), RandomAgent)
    assert isinstance(load_policy("noop", action_space=Discrete(2)), NoopAgent)
    assert load_policy(f"{HERE}:Family", agent="blue").step(None) == "blue"  # a policy of many agents, asked for one
    greedy = load_policy(f"{HERE}:Greedy", agent="red", action_space=Discrete(2), seed=7)
    assert (greedy.action_space, greedy.loaded) == (Discrete(2), "")
    spec = PolicySpec.parse(f"class={HERE}:Greedy, data=runs/7, proportion=2.5")
    assert (spec.class_path, spec.data_path, spec.proportion) == (f"{HERE}:Greedy", "runs/7", 2.5)
    policy = spec.for_agent("red", action_space=Discrete(2)).make()
    assert policy.loaded == "runs/7"


def test_a_folder(tmp_path: Path) -> None:
    told = {"class": f"{HERE}:Greedy", "kwargs": {"bonus": 5}}
    (tmp_path / "policy.json").write_text(json.dumps(told), encoding="utf-8")
    policy = load_policy(str(tmp_path), trust=[HERE], action_space=Discrete(2))
    assert (policy.step(1), policy.loaded) == (6, str(tmp_path))


REFUSED: list[tuple[Any, type[Exception], str]] = [
    ("greedy", ValueError, "'greedy' is unknown"),
    ("", TypeError, "is not text"),
    (None, TypeError, "is not text"),
    ("no_such_module:Greedy", ImportError, "no_such_module"),
    (f"{HERE}:Nobody", AttributeError, "has no 'Nobody'"),
    (f"{HERE}:Useless", TypeError, "no method step"),
    ("data=runs/7", ValueError, "has no class"),
    ("class=random,colour=red", ValueError, "'colour'"),
    ("class=random,proportion=none", ValueError, "proportion='none'"),
    ("class=random,proportion=-1", ValueError, "proportion='-1'"),
    ("random", TypeError, r"needs to know the agent's action_space"),
    (f"class={HERE}:Family,data=x", TypeError, "has no method load"),
    ("collections:OrderedDict", TypeError, r"collections:OrderedDict made .*which has no method step"),
    ("math:pi", TypeError, r"math:pi is 3\.14.*Name a class"),
]


def test_what_makes_no_policy_is_refused() -> None:
    for text, error, word in REFUSED:
        with pytest.raises(error, match=word):
            load_policy(text)


def test_paths_in_a_spec_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "random", "a,b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "policy.json").write_text("{}")
    changed = {
        "mine": f"{tmp_path}/mine",
        "a,b": f"{tmp_path}/a,b",
        "class=m:C, data=mine,proportion=2": f"class=m:C, data={tmp_path}/mine,proportion=2",
        "class=mine": f"class={tmp_path}/mine",
    }
    assert {text: with_absolute_paths(text) for text in changed} == changed
    for text in ("random", "class=random", "m:C", "gone", "", f"{tmp_path}/mine", "class=m:C,data=gone"):
        assert with_absolute_paths(text) == text
