"""The same numbers, to the bit, for any number of workers and however they are started."""

from __future__ import annotations

import os
import time
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete

from parallel_envs.choices import StartMethod
from parallel_envs.evaluation import EvaluationResult, Mission, evaluate
from parallel_envs.policies import PolicySpec, RandomPolicy, SingleRow
from parallel_envs.testing import ScriptedAgentsEnv, Stay
from tests.evaluation.stages import Counting, Course, Drawing, Together

COURSES = [Mission(name="course", env=Course), Mission(name="long course", env=Course, kwargs={"length": 15})]
FIVE = Mission(name="five", env=Course, kwargs={"agents": (0, "one", ("two",), 3, "four")})
SPREAD = Mission(name="spread", env="mpe2.simple_spread_v3", kwargs={"max_cycles": 8})
CART = Mission(name="cart", env="CartPole-v1")


def nearest_corner(observation: Any) -> int:
    return int(np.abs(observation).argmax()) % 2


def remembering() -> Any:
    """A function that counts how often it is called."""
    asked = 0

    def act(observation: Any) -> int:
        nonlocal asked
        asked += 1
        return asked // 3 % 2

    return act


def drawn_by_chance() -> dict[str, Any]:
    """Policies that draw: made from text, given as objects, from generators that nobody has seeded."""
    return {"random": "random", "drawing": Drawing(), "rows": SingleRow(RandomPolicy(Discrete(5)), Box(-1, 1, (3,)))}


def remembered() -> dict[str, Any]:
    """Policies that remember: objects, made from specs, functions, a team."""
    made = PolicySpec("tests.evaluation.stages:Counting")
    objects = {"counting": Counting(), "together": Together()}
    return {**objects, "made": made, "closure": remembering(), "function": nearest_corner}


def play(which: str, **settings: Any) -> EvaluationResult:
    match which:
        case "chance":
            return evaluate(COURSES, drawn_by_chance(), 6, seed=7, **settings)
        case "memory":
            return evaluate([FIVE], remembered(), 6, seed=7, **settings)
        case _:
            return evaluate([SPREAD, CART], "random", 4, seed=7, **settings)


@pytest.fixture(scope="module")
def reference() -> dict[str, EvaluationResult]:
    """Played here."""
    found = {which: play(which) for which in ("chance", "memory", "others")}
    for one in found.values():
        assert (one.failures, one.missing) == ((), ())
        assert len({record.score for record in one.episodes}) > len(one.episodes) // 2, "numbers differ"
    assert {name for record in found["memory"].episodes for name in record.assignment.values()} == {*remembered()}
    return found


@pytest.mark.parametrize(
    ("which", "jobs", "context"),
    [
        ("memory", 2, "forkserver"),
        ("memory", 5, "fork"),
        ("others", 2, "fork"),
        ("chance", 2, "spawn"),
        pytest.param("chance", 1, "forkserver", marks=pytest.mark.slow),
        pytest.param("memory", 1, "fork", marks=pytest.mark.slow),
        pytest.param("chance", 2, "forkserver", marks=pytest.mark.slow),
        pytest.param("chance", 5, "fork", marks=pytest.mark.slow),
        pytest.param("others", 2, "forkserver", marks=pytest.mark.slow),
    ],
)
def test_any_number_of_workers_plays_the_same(
    reference: dict[str, EvaluationResult], which: str, jobs: int, context: StartMethod
) -> None:
    assert play(which, jobs=jobs, context=context).episodes == reference[which].episodes


def test_an_episode_is_the_same_whatever_else_is_played(reference: dict[str, EvaluationResult]) -> None:
    found = evaluate([Mission(name="other", env=Course), *COURSES[::-1]], drawn_by_chance(), 8, seed=7)
    records = {record.key: record for record in found.episodes}
    for record in reference["chance"].episodes:
        assert records[record.key] == record


def crowd() -> ScriptedAgentsEnv:
    """Its agents come and go."""
    return ScriptedAgentsEnv([{0: Stay(last=9), ("a", 1): Stay(last=3), "late": Stay(first=4, last=9)}])


@pytest.mark.parametrize(
    ("strategy", "jobs", "timeout"),
    [
        ("sequential", 0, 60.0),
        ("thread", 0, 60.0),
        ("batch", 0, None),
        (True, 0, None),
        ("process", 0, 60.0),
        ("auto", 2, None),
        pytest.param("thread", 2, None, marks=pytest.mark.slow),
        pytest.param("process", 4, None, marks=pytest.mark.slow),
    ],
)
def test_strategies_play_the_same(strategy: Any, jobs: int, timeout: float | None) -> None:
    policies = {"random": "random", "made": PolicySpec("tests.evaluation.stages:Counting"), "object": Counting()}
    missions = [COURSES[0], Mission(name="crowd", env=crowd)]
    plain = evaluate(missions, policies, 3, seed=7)
    found = evaluate(missions, policies, 3, jobs=jobs, parallel_policy=strategy, action_timeout=timeout, seed=7)
    assert found.episodes == plain.episodes
    assert found.failures == ()


def untrained(observation_space: Any, action_space: Any) -> Any:
    """A network with whatever weights torch's own generator gives it."""
    import torch

    from parallel_envs.wrappers import TorchPolicy

    (size,) = observation_space.shape
    layers = torch.nn.Linear(size, 64), torch.nn.Tanh(), torch.nn.Linear(64, int(action_space.n))
    return TorchPolicy(torch.nn.Sequential(*layers), action_space)


@pytest.mark.parametrize("jobs", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_networks_play_the_same(jobs: int) -> None:
    torch = pytest.importorskip("torch")
    policy = {"net": PolicySpec(f"{__name__}:untrained")}
    here = evaluate([SPREAD], policy, 4, seed=7)
    torch.manual_seed(99)
    assert evaluate([SPREAD], policy, 4, seed=7, jobs=jobs) == here, "settings too are those of the numbers"


class SlowElsewhere(Counting):
    """Acts as `Counting`, but takes 0.3 s for its second action in any process but the one that made it."""

    def __init__(self) -> None:
        super().__init__()
        self.home = os.getpid()

    def step(self, observation: Any) -> int:
        action = super().step(observation)
        if self.asked == 2 and os.getpid() != self.home:
            time.sleep(0.3)
        return action


def test_slowness_changes_no_number_and_late_actions_are_counted_and_warned_of() -> None:
    lone = [
        Mission(name=f"course {length}", env=Course, kwargs={"agents": ("a",), "length": length}) for length in (3, 5)
    ]
    here, slow = (evaluate(lone, {"it": SlowElsewhere()}, 1, jobs=jobs, seed=7) for jobs in (0, 2))
    assert max(record.seconds for record in slow.episodes) > 0.3
    assert slow == here
    assert [record.late for record in slow.episodes] == [0, 0]
    with pytest.warns(RuntimeWarning, match=r"2 actions were late in 2 of 2 episodes \(action_timeout=0\.1\)"):
        found = evaluate(lone, {"it": SlowElsewhere()}, 1, action_timeout=0.1, jobs=1, seed=7)
    assert [record.late for record in found.episodes] == [1, 1]
    assert [summary.late for summary in found.per_mission().values()] == [1, 1]
    assert found.per_policy()["it"].late == 2
