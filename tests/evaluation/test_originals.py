"""Copies of policies: they share nothing, begin alike, and draw what their seed says."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from parallel_envs.evaluation.policies import EpisodePolicies, PolicyTemplate, PolicyTemplates, candidates_of, reseed
from parallel_envs.policies import AgentPolicy, PolicySpec, RandomAgent, RandomPolicy, ScriptedAgent, SingleRow
from tests.evaluation.stages import AGENTS, Counting, Course, Drawing, Together

OBSERVATION = np.zeros(3, np.float32)


class Uncopyable(AgentPolicy):
    made = 0

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asked = 0
        type(self).made += 1

    def step(self, observation: Any) -> int:
        self.asked += 1
        return self.asked


def refuse() -> Any:
    raise AssertionError("it can be copied")


def counter() -> Callable[[Any], int]:
    """A function that remembers."""
    asked = 0

    def act(observation: Any) -> int:
        nonlocal asked
        asked += 1
        return asked

    return act


@pytest.mark.parametrize("policy", [Counting(), ScriptedAgent(counter())], ids=["object", "closure"])
def test_no_copy_sees_what_another_did(policy: Any) -> None:
    original = PolicyTemplate(policy, refuse)
    first = original.copied(0)
    before = [first.step(OBSERVATION) for _ in range(4)]
    second = original.copied(0)
    assert [second.step(OBSERVATION) for _ in range(4)] == before
    policy.step(OBSERVATION)
    assert [original.copied(0).step(OBSERVATION)] == before[:1]


def test_what_cannot_be_copied_is_made_again() -> None:
    Uncopyable.made = 0
    original = PolicyTemplate(Uncopyable(), Uncopyable)
    assert [original.copied(0).step(OBSERVATION) for _ in range(3)] == [1, 1, 1]
    assert Uncopyable.made == 4


def test_an_object_that_cannot_be_copied_is_refused() -> None:
    templates = PolicyTemplates(candidates_of({"mine": Uncopyable()}), 0)
    with pytest.raises(TypeError, match="'mine' can be neither copied nor pickled"):
        templates.of_agent(0, "red", (Discrete(2), Discrete(5))).copied(0)


def draws(policy: Any, seed: int) -> list[Any]:
    reseed(policy, seed)
    if hasattr(policy, "reset"):
        policy.reset()
    return [np.asarray(policy.step(OBSERVATION)).tolist() for _ in range(8)]


@pytest.mark.parametrize(
    "make",
    [
        lambda: RandomAgent(Discrete(1000), seed=int(np.random.default_rng().integers(99))),
        lambda: RandomAgent(Box(-1, 1, (3,))),
        lambda: SingleRow(RandomPolicy(Discrete(1000)), Box(-1, 1, (3,))),
    ],
    ids=["random agent", "box", "batch policy"],
)
def test_draws_follow_from_the_seed_alone(make: Callable[[], Any]) -> None:
    policy = make()
    first = draws(policy, 5)
    assert draws(policy, 5) == first == draws(make(), 5)
    assert draws(policy, 6) != first


def test_every_kind_of_generator_is_found() -> None:
    policies = Drawing(), Drawing()
    for policy in policies:
        reseed(policy, 3)
    first, second = ([one.own.random(), one.more["python"].random(), one.more["numpy"][0].rand()] for one in policies)  # type: ignore[attr-defined, index]  # of two kinds
    assert first == second
    assert len(set(first)) == 3, "each has a stream of its own"


def test_torch_generators_are_found() -> None:
    torch = pytest.importorskip("torch")
    policies = [ScriptedAgent(len), ScriptedAgent(len)]
    for policy in policies:
        policy.noise = torch.Generator()  # type: ignore[attr-defined]  # as users do
        policy.noise.seed()  # type: ignore[attr-defined]
        reseed(policy, 3)
    first, second = (torch.rand(3, generator=policy.noise).tolist() for policy in policies)  # type: ignore[attr-defined]
    assert first == second


def test_a_policys_own_method_is_preferred() -> None:
    class Own(AgentPolicy):
        told = 0

        def seed(self, seed: int) -> None:
            self.told = seed

        def step(self, observation: Any) -> int:
            return self.told

    policy = Own()
    reseed(policy, 11)
    assert policy.step(None) == 11


def test_a_spec_is_made_once_for_agents_with_the_same_spaces() -> None:
    Counting.made = 0
    templates = PolicyTemplates(candidates_of(PolicySpec("tests.evaluation.stages:Counting")), 0)
    env = Course()
    for _ in range(3):
        team = EpisodePolicies(templates, env, lambda number: number)
        policies = [team.add(agent, 0) for agent in AGENTS]
        assert len({id(policy) for policy in policies}) == 3
        assert [policy.resets for policy in policies] == [1, 1, 1]
        team.close()
    assert Counting.made == 3
    templates.of_agent(0, "red", (Discrete(2), Discrete(5)))
    assert Counting.made == 4
    templates.close()


def test_what_agents_have_in_common_is_common_to_one_episode() -> None:
    together = Together()
    templates = PolicyTemplates(candidates_of(together), 0)
    for _ in range(2):
        team = EpisodePolicies(templates, Course(), lambda number: number)
        red, blue = (team.add(agent, 0) for agent in AGENTS[:2])
        assert [red.step(None), blue.step(None), red.step(None)] == [1, 2, 3]
        assert red.team is blue.team is not together
        team.close()
    assert together.asked == 0


def test_copies_and_originals_are_closed() -> None:
    closed: list[int] = []

    class Closing(Counting):
        def close(self) -> None:
            closed.append(id(self))

    policy = Closing()
    templates = PolicyTemplates(candidates_of(policy), 0)
    team = EpisodePolicies(templates, Course(), lambda number: number)
    copies = [team.add(agent, 0) for agent in AGENTS]
    team.close()
    templates.close()
    assert sorted(closed) == sorted(id(copy) for copy in copies), "what was given belongs to whoever gave it"
