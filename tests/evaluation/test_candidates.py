"""Policies by name, and agents shared out among them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parallel_envs.evaluation import BadEvaluation, Candidate, candidates_of
from parallel_envs.evaluation.policies import deal, shares
from parallel_envs.policies import NoopAgent, PolicySpec

PROPORTIONS = st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6)


@given(PROPORTIONS, st.integers(0, 50))
def test_shares_are_whole_numbers_next_to_the_quotas(proportions: list[float], num_agents: int) -> None:
    counts = shares(proportions, num_agents)
    assert sum(counts) == num_agents
    for count, proportion in zip(counts, proportions, strict=True):
        assert abs(count - num_agents * proportion / sum(proportions)) < 1 + 1e-6


@pytest.mark.parametrize(
    ("proportions", "num_agents", "counts"),
    [
        ([1, 1], 3, [2, 1]),  # the first of equals
        ([1, 1, 1], 4, [2, 1, 1]),
        ([3, 1], 4, [3, 1]),
        ([5, 3, 1], 4, [2, 1, 1]),  # quotas 2.22, 1.33, 0.44: the largest remainder is the third's
        ([0.3, 0.3, 0.4], 10, [3, 3, 4]),  # no remainder is made of rounding
    ],
)
def test_the_largest_remainder_decides(proportions: list[float], num_agents: int, counts: list[int]) -> None:
    assert shares(proportions, num_agents) == counts


def test_hands_are_dealt_by_the_generator() -> None:
    candidates = candidates_of(["random", "noop"], [1, 2])
    dealt = [deal(candidates, "abcdef", np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert dealt[0] == dealt[1] != dealt[2]
    assert sorted(dealt[0].values()) == [0, 0, 1, 1, 1, 1]
    assert {
        agent
        for seed in range(40)
        for agent, place in deal(candidates, "abcdef", np.random.default_rng(seed)).items()
        if not place
    } == set("abcdef")


@pytest.mark.parametrize(
    ("given_", "names"),
    [
        ("random", ["random"]),
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
def test_names(given_: Any, names: list[str]) -> None:
    assert [candidate.name for candidate in candidates_of(given_)] == names


def test_a_specs_own_proportion_counts_unless_others_are_given() -> None:
    assert [one.proportion for one in candidates_of(["class=random,proportion=3", "noop"])] == [3.0, 1.0]
    assert [one.proportion for one in candidates_of(["class=random,proportion=3", "noop"], [1, 4])] == [1.0, 4.0]
    assert [one.proportion for one in candidates_of(["class=random,proportion=3", "noop"], {"noop": 5})] == [3.0, 5.0]


@pytest.mark.parametrize(
    ("policies", "text"),
    [
        ([], "No policy was given"),
        (["randon"], "'randon' is unknown"),
        ([NoopAgent], "is not a policy"),
        ([7], "7 is not a policy"),
        (["class=random,weight=2"], "'weight'"),
        ({1: "random", "1": "noop"}, "Two policies are called '1'"),
    ],
)
def test_what_is_no_policy(policies: Any, text: str) -> None:
    with pytest.raises(BadEvaluation, match=text):
        candidates_of(policies)


def test_a_network_is_told_what_to_become() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(BadEvaluation, match="TorchPolicy"):
        candidates_of(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("proportions", "text"),
    [
        ([1], "1 proportions were given for 2 policies"),
        ([1, 0], "proportion 0 of 'noop'"),
        ([0, 0], "above 0"),
        ([1, -1], "above 0"),
        ([1, float("nan")], "above 0"),
        ([1, "2"], "above 0"),
        ([0.5, 0.3], "sum to 0.8"),
        ({"nop": 1}, "'nop'"),
    ],
)
def test_proportions_that_cannot_be(proportions: Sequence[Any] | dict[str, Any], text: str) -> None:
    with pytest.raises(BadEvaluation, match=text):
        candidates_of(["random", "noop"], proportions)


def test_shares_of_a_whole_and_weights_are_proportions() -> None:
    for proportions in ([0.25, 0.75], [1, 3], [0.5, 1.5]):
        candidates_of(["random", "noop"], proportions)
