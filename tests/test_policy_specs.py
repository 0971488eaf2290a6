"""Policies by their names, and those that need no training."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Text, Tuple

from parallel_envs.choices import Strategy
from parallel_envs.policies import (
    AgentPolicy,
    EachAgent,
    MultiAgentPolicy,
    NoopAgent,
    PolicySpec,
    RandomAgent,
    ScriptedAgent,
    load_policy,
)
from parallel_envs.policies.specs import with_absolute_paths
from parallel_envs.wrappers import WrappedMultiAgentPolicy

HERE = __name__


class Greedy(AgentPolicy):
    """Takes what it is told to take."""

    def __init__(self, action_space: Space[Any], bonus: int = 0) -> None:
        self.action_space, self.bonus, self.loaded = action_space, bonus, ""
        self.lock = Path(__file__).open(encoding="utf-8")  # noqa: SIM115  # so that it cannot be pickled

    def load(self, path: str) -> None:
        self.loaded = path

    def step(self, observation: Any) -> int:
        return int(observation) + self.bonus

    def close(self) -> None:
        self.lock.close()


class Family(MultiAgentPolicy):
    """Everybody says its own name."""

    def agent_policy(self, agent: Hashable) -> AgentPolicy:
        return ScriptedAgent(lambda observation: agent)


class Useless:
    """It cannot act."""


# ---- ready ones ----------------------------------------------------------------------------------


def test_random_agents_draw_from_their_own_seed() -> None:
    draws = [[RandomAgent(Discrete(100), seed).step(None) for _ in range(5)] for seed in (1, 1, 2)]
    assert draws[0] == draws[1] != draws[2]


def test_random_agents_leave_the_space_alone() -> None:
    space = Discrete(100)
    space.seed(3)
    expected = [Discrete(100, seed=3).sample()]
    RandomAgent(space, 4).step(None)
    assert [space.sample()] == expected


def test_random_agents_respect_masks() -> None:
    agent = RandomAgent(Discrete(3), 1)
    mask = np.array([0, 1, 0])
    assert {agent.step({"observation": 0, "action_mask": mask}) for _ in range(20)} == {1}


@pytest.mark.parametrize(
    "space",
    [
        Discrete(4, start=2),
        Box(-1, 1, (2,)),
        Box(0.5, 1, (2,)),
        MultiDiscrete([2, 3]),
        MultiBinary(3),
        Dict(a=Discrete(2), b=Tuple([Box(-1, 1)])),
    ],
)
def test_doing_nothing_is_an_action(space: Space[Any]) -> None:
    assert space.contains(NoopAgent(space).step(None))


def test_where_doing_nothing_is_no_action_one_must_be_given() -> None:
    with pytest.raises(TypeError, match="has no action that does nothing"):
        NoopAgent(Text(3))
    assert NoopAgent(action="no").step(None) == "no"


def test_a_policy_for_each_agent_is_made_once() -> None:
    policies = EachAgent(lambda agent: ScriptedAgent(lambda observation: agent))
    assert policies.agent_policy("a") is policies.agent_policy("a")
    assert policies.agent_policy("b").step(0) == "b"


# ---- by name -------------------------------------------------------------------------------------


def test_short_names() -> None:
    assert isinstance(load_policy("random", action_space=Discrete(2), seed=3), RandomAgent)
    assert isinstance(load_policy("noop", action_space=Discrete(2)), NoopAgent)


def test_a_class_gets_what_it_takes() -> None:
    policy = load_policy(f"{HERE}:Greedy", agent="red", action_space=Discrete(2), seed=7)
    assert (policy.action_space, policy.loaded) == (Discrete(2), "")
    policy.close()


def test_the_long_form() -> None:
    spec = PolicySpec.parse(f"class={HERE}:Greedy, data=runs/7, proportion=2.5")
    assert (spec.class_path, spec.data_path, spec.proportion) == (f"{HERE}:Greedy", "runs/7", 2.5)
    policy = spec.for_agent("red", action_space=Discrete(2)).make()
    assert policy.loaded == "runs/7"
    policy.close()


def test_a_folder(tmp_path: Path) -> None:
    told = {"class": f"{HERE}:Greedy", "kwargs": {"bonus": 5}}
    (tmp_path / "policy.json").write_text(json.dumps(told), encoding="utf-8")
    policy = load_policy(str(tmp_path), trust=[HERE], action_space=Discrete(2))
    assert (policy.step(1), policy.loaded) == (6, str(tmp_path))
    policy.close()


def test_a_policy_of_many_agents_is_asked_for_one() -> None:
    assert load_policy(f"{HERE}:Family", agent="blue").step(None) == "blue"


@pytest.mark.parametrize(
    ("text", "error", "word"),
    [
        ("greedy", ValueError, "'greedy' is unknown"),
        ("", TypeError, "is not a text"),
        (None, TypeError, "is not a text"),
        ("no_such_module:Greedy", ImportError, "no_such_module"),
        (f"{HERE}:Nobody", AttributeError, "has no 'Nobody'"),
        (f"{HERE}:Useless", TypeError, "no method step"),
        ("data=runs/7", ValueError, "has no class"),
        ("class=random,colour=red", ValueError, "'colour'"),
        ("class=random,proportion=none", ValueError, "proportion='none'"),
        ("class=random,proportion=-1", ValueError, "proportion='-1'"),
        ("random", TypeError, r"needs to know the agent's action_space\. Give action_space="),
        (f"class={HERE}:Family,data=x", TypeError, "has no method load"),
    ],
)
def test_what_makes_no_policy_is_refused(text: Any, error: type[Exception], word: str) -> None:
    with pytest.raises(error, match=word):
        load_policy(text)


def test_a_folder_with_nonsense_is_refused(tmp_path: Path) -> None:
    (tmp_path / "policy.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match="is not a policy's file"):
        load_policy(str(tmp_path))


@pytest.mark.parametrize("strategy", ["sequential", "process"])
def test_specs_act_in_the_place_of_policies_that_cannot_travel(strategy: Strategy) -> None:
    specs = {
        agent: PolicySpec(f"{HERE}:Greedy", kwargs={"bonus": place, "action_space": None})
        for place, agent in enumerate("ab")
    }
    with WrappedMultiAgentPolicy(specs, strategy) as policy:
        assert policy.step({"a": 1, "b": 1}) == {"a": 1, "b": 2}
        if strategy == "sequential":
            for wrapper in policy._wrappers:
                for one in wrapper.policies.values():
                    one.close()


def test_a_class_that_does_not_tell_what_it_takes_is_asked_all_the_same() -> None:
    with pytest.raises(TypeError, match=r"collections:OrderedDict made .*which has no method step"):
        load_policy("collections:OrderedDict")
    with pytest.raises(TypeError, match=r"math:pi is 3\.14.*Name a class"):
        load_policy("math:pi")


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
