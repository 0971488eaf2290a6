"""Policies by name, agents shared out among them, and copies that share nothing, begin alike and draw by their seed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.evaluation import Candidate, candidates_of
from parallel_envs.evaluation.determinism import reseed
from parallel_envs.evaluation.policies import EpisodePolicies, PolicyTemplate, PolicyTemplates, shares
from parallel_envs.policies import NoopAgent, PolicySpec, ScriptedAgent
from tests.evaluation.stages import AGENTS, Counting, Course, Drawing, Together

OBSERVATION = np.zeros(3, np.float32)
SPACES = Discrete(2), Discrete(5)


@settings(max_examples=50)
@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6), st.integers(0, 50))
def test_shares_are_whole_numbers_next_to_the_quotas(proportions: list[float], num_agents: int) -> None:
    counts = shares(proportions, num_agents)
    assert sum(counts) == num_agents
    for count, proportion in zip(counts, proportions, strict=True):
        assert abs(count - num_agents * proportion / sum(proportions)) < 1 + 1e-6
    assert shares([1, 1], 3) == [2, 1]  # the first of equals
    assert shares([5, 3, 1], 4) == [2, 1, 1]  # quotas 2.22, 1.33, 0.44: the largest remainder is the third's
    assert shares([0.3, 0.3, 0.4], 10) == [3, 3, 4]  # no remainder is made of rounding


@pytest.mark.parametrize(
    ("policies", "names"),
    [
        (["random", "random"], ["random", "random #2"]),
        (["class=random,proportion=2"], ["random"]),
        (["class=a.b:C,data=runs/7"], ["runs/7"]),
        ([PolicySpec("a.b:C")], ["a.b:C"]),
        ([len], ["len"]),
        ([NoopAgent(action=1)], ["NoopAgent"]),
        ({"mine": "random", "yours": "noop"}, ["mine", "yours"]),
        ([Candidate(name="mine", source=len), "random"], ["mine", "random"]),
    ],
)
def test_names(policies: Any, names: list[str]) -> None:
    assert [candidate.name for candidate in candidates_of(policies)] == names


def test_a_specs_own_proportion_counts_unless_others_are_given() -> None:
    cases: list[tuple[Any, list[float]]] = [(None, [3.0, 1.0]), ([1, 4], [1.0, 4.0]), ({"noop": 5}, [3.0, 5.0])]
    for others, proportions in cases:
        found = candidates_of(["class=random,proportion=3", "noop"], others)
        assert [one.proportion for one in found] == proportions


# ---- copies ----------------------------------------------------------------------------------------------------------


class Uncopyable(Counting):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


def counter() -> Callable[[Any], int]:
    asked = 0

    def act(observation: Any) -> int:
        nonlocal asked
        asked += 1
        return asked

    return act


@pytest.mark.parametrize("policy", [Counting(), ScriptedAgent(counter())], ids=["object", "closure"])
def test_no_copy_sees_what_another_did(policy: Any) -> None:
    template = PolicyTemplate(policy, pytest.fail)
    first = template.copied(0)
    before = [first.step(OBSERVATION) for _ in range(4)]
    second = template.copied(0)
    assert [second.step(OBSERVATION) for _ in range(4)] == before
    policy.step(OBSERVATION)
    assert [template.copied(0).step(OBSERVATION)] == before[:1]


def test_what_cannot_be_copied_is_made_again_or_refused() -> None:
    Uncopyable.made = 0
    template = PolicyTemplate(Uncopyable(), Uncopyable)
    assert len({template.copied(0).step(OBSERVATION) for _ in range(3)}) == 1
    assert Uncopyable.made == 4
    templates = PolicyTemplates(candidates_of({"mine": Uncopyable()}), 0)
    with pytest.raises(TypeError, match="'mine' can be neither copied nor pickled"):
        templates.of_agent(0, "red", SPACES).copied(0)


def test_every_kind_of_generator_is_found_and_a_policys_own_method_is_preferred() -> None:
    torch = pytest.importorskip("torch")
    found: list[list[Any]] = []
    for _ in range(2):
        policy: Any = Drawing()
        policy.noise = torch.Generator()
        policy.noise.seed()
        reseed(policy, 3)
        draws = [policy.own.random(), policy.more["python"].random(), policy.more["numpy"][0].rand()]
        found.append([*draws, *torch.rand(3, generator=policy.noise).tolist()])
    assert found[0] == found[1]
    assert len(set(found[0])) == 6, "each has a stream of its own"

    class Own(Drawing):
        def seed(self, seed: int) -> None:
            self.seeded = seed

    own = Own()
    reseed(own, 11)
    assert own.seeded == 11


def test_a_spec_is_made_once_for_agents_with_the_same_spaces() -> None:
    Counting.made = 0
    templates = PolicyTemplates(candidates_of(PolicySpec("tests.evaluation.stages:Counting")), 0)
    for _ in range(3):
        team = EpisodePolicies(templates, Course(), lambda number: number)
        policies = [team.add(agent, 0) for agent in AGENTS]
        assert len({id(policy) for policy in policies}) == 3
        assert [policy.resets for policy in policies] == [1, 1, 1]
        team.close()
    assert Counting.made == 3
    templates.of_agent(0, "red", SPACES)
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


def test_copies_are_closed_and_what_was_given_is_not() -> None:
    closed: list[int] = []

    class Closing(Counting):
        def close(self) -> None:
            closed.append(id(self))

    templates = PolicyTemplates(candidates_of(Closing()), 0)
    team = EpisodePolicies(templates, Course(), lambda number: number)
    copies = [team.add(agent, 0) for agent in AGENTS]
    team.close()
    templates.close()
    assert sorted(closed) == sorted(map(id, copies))
