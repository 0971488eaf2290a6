"""The same numbers, to the bit, for any number of workers and however they are started."""

from __future__ import annotations

import os
import time
import warnings
from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import StartMethod
from parallel_envs.evaluation import EvaluationResult, Mission, evaluate
from parallel_envs.policies import PolicySpec
from tests.evaluation.stages import Counting, Course, Drawing, Together

COURSES = [Mission(name="course", env=Course), Mission(name="long course", env=Course, kwargs={"length": 15})]
OTHERS = [
    Mission(name="spread", env="mpe2.simple_spread_v3", kwargs={"max_cycles": 8}),
    Mission(name="cart", env="CartPole-v1"),
]
SETTINGS: dict[str, Any] = {"seed": 7}


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
    """Policies that draw: made from text, given as an object, from generators that nobody has seeded."""
    return {"random": "random", "drawing": Drawing(), "random too": PolicySpec("parallel_envs.policies:RandomAgent")}


def remembered() -> dict[str, Any]:
    """Policies that remember: objects, made from specs, functions, a team."""
    return {
        "counting": Counting(),
        "made": PolicySpec("tests.evaluation.stages:Counting"),
        "closure": remembering(),
        "together": Together(),
        "function": nearest_corner,
    }


@pytest.fixture(scope="module")
def reference() -> dict[str, EvaluationResult]:
    """Played here."""
    return {
        "chance": evaluate(COURSES, drawn_by_chance(), 6, **SETTINGS),
        "memory": evaluate([FIVE], remembered(), 6, **SETTINGS),
        "others": evaluate(OTHERS, "random", 4, **SETTINGS),
    }


FIVE = Mission(name="five", env=Course, kwargs={"agents": (0, "one", ("two",), 3, "four")})


def test_nothing_fails_and_numbers_differ(reference: dict[str, EvaluationResult]) -> None:
    assert [record.key for record in reference["chance"].episodes] == [
        (mission.name, episode) for mission in COURSES for episode in range(6)
    ]
    for one in reference.values():
        assert (one.failures, one.missing) == ((), ())
        assert len({record.score for record in one.episodes}) > len(one.episodes) // 2
    assert {name for record in reference["memory"].episodes for name in record.assignment.values()} == {*remembered()}


@pytest.mark.parametrize(("jobs", "context"), [(1, "forkserver"), (2, "forkserver"), (5, "fork"), (2, "spawn")])
def test_any_number_of_workers_plays_the_same(
    reference: dict[str, EvaluationResult], jobs: int, context: StartMethod
) -> None:
    chance = evaluate(COURSES, drawn_by_chance(), 6, jobs=jobs, context=context, **SETTINGS)
    assert chance.episodes == reference["chance"].episodes
    if context != "spawn":
        assert evaluate([FIVE], remembered(), 6, jobs=jobs, **SETTINGS).episodes == reference["memory"].episodes


def test_environments_of_others_are_the_same_in_workers(reference: dict[str, EvaluationResult]) -> None:
    assert evaluate(OTHERS, "random", 4, jobs=2, **SETTINGS).episodes == reference["others"].episodes


@pytest.mark.filterwarnings("ignore:In the mission 'cart' .* never play")  # it has one agent, and there are three
def test_an_episode_is_the_same_whatever_else_is_played(reference: dict[str, EvaluationResult]) -> None:
    found = evaluate([OTHERS[1], *COURSES[::-1]], drawn_by_chance(), 8, **SETTINGS)
    records = {record.key: record for record in found.episodes}
    for record in reference["chance"].episodes:
        assert records[record.key] == record


@pytest.mark.parametrize(
    ("strategy", "jobs"),
    [
        ("sequential", 0),
        ("thread", 0),
        ("batch", 0),
        (True, 0),
        ("process", 0),
        ("thread", 2),
        ("auto", 2),
        ("process", 4),
    ],
)
def test_strategies_play_the_same(reference: dict[str, EvaluationResult], strategy: Any, jobs: int) -> None:
    chance = evaluate(COURSES[:1], {**drawn_by_chance(), "drawing": "random"}, 3, jobs=jobs, **SETTINGS)
    found = evaluate(
        COURSES[:1],
        {**drawn_by_chance(), "drawing": "random"},
        3,
        jobs=jobs,
        parallel_policy=strategy,
        **SETTINGS,
    )
    assert found.episodes == chance.episodes


def untrained(observation_space: Any, action_space: Any) -> Any:
    """A network with whatever weights torch's own generator gives it."""
    import torch

    from parallel_envs.wrappers import TorchPolicy

    (size,) = observation_space.shape
    layers = torch.nn.Linear(size, 64), torch.nn.Tanh(), torch.nn.Linear(64, int(action_space.n))
    return TorchPolicy(torch.nn.Sequential(*layers), action_space)


def test_networks_play_the_same() -> None:
    torch = pytest.importorskip("torch")
    policy = {"net": PolicySpec("tests.evaluation.test_same_numbers:untrained")}
    threads = torch.get_num_threads()
    found = [evaluate(OTHERS[:1], policy, 4, jobs=jobs, **SETTINGS) for jobs in (0, 1)]  # the worker has no torch yet
    torch.manual_seed(99)
    found.append(evaluate(OTHERS[:1], policy, 4, **SETTINGS))
    assert found[0] == found[1] == found[2], "settings too are those of the numbers, not of the workers"
    assert torch.get_num_threads() == threads


# ---- on a machine that is slow ------------------------------------------------------------------------------------


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


def test_slowness_changes_no_number() -> None:
    here, slow = (evaluate(COURSES, {"it": SlowElsewhere()}, 2, jobs=jobs, **SETTINGS) for jobs in (0, 2))
    assert max(record.seconds for record in slow.episodes) > 0.3
    assert slow == here
    assert [record.late for record in slow.episodes] == [0, 0, 0, 0]


def test_late_actions_are_counted_and_warned_of() -> None:
    deadline: dict[str, Any] = {"action_timeout": 0.1, "jobs": 1, **SETTINGS}
    with pytest.warns(RuntimeWarning, match=r"12 actions were late in 4 of 4 episodes \(action_timeout=0\.1\)"):
        found = evaluate(COURSES, {"it": SlowElsewhere()}, 2, **deadline)
    assert [record.late for record in found.episodes] == [3, 3, 3, 3]
    assert {name: summary.late for name, summary in found.per_mission().items()} == {"course": 6, "long course": 6}
    assert found.per_policy()["it"].late == 12
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert evaluate(COURSES, {"it": Counting()}, 1, **deadline).per_policy()["it"].late == 0
