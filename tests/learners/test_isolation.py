"""One agent's poisoned experience changes nothing in another, to the bit, in any mode. The poisoned one is named."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np
import pytest

from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Plan
from parallel_envs.rollouts.replay import ReplayBuffer
from tests.learners.lives import CASES, learners, live, mode_of, plans, updated

SICK = "agent_1"


def poisoned(plan: Plan, poison: float) -> Plan:
    """The plan with one reward replaced."""
    rewards = plan.arrays["rewards"].copy()
    rewards.flat[0] = poison
    valid = plan.arrays.get("valid")
    arrays = {**plan.arrays, "rewards": rewards}
    if valid is not None:
        arrays["valid"] = np.ones_like(valid)
    return dataclasses.replace(plan, arrays=arrays)


def everything(learner: AgentLearner) -> dict[str, bytes]:
    """All that an agent is, as bytes."""
    state = learner.state()
    told = {name: array.tobytes() for name, array in state["arrays"].items()}
    if isinstance(learner.memory, ReplayBuffer):
        told |= {f"memory.{name}": array.tobytes() for name, array in state["memory"]["arrays"].items()}
    return told | {"generator": repr(state["generator"]).encode(), "counters": repr(state["counters"]).encode()}


@functools.cache
def healthy_after(name: str, case: str, num_updates: int) -> Any:
    return after(name, case, None, num_updates)[0]


def after(name: str, case: Any, poison: float | None, num_updates: int = 5, at: int = 2) -> tuple[Any, Any, list[Any]]:
    """All agents after the last update. One of them is poisoned: in the third, unless said otherwise."""
    agents, reports = learners(case), []
    with mode_of(name, agents, 1 if name == "process" else 2) as mode:
        for number in range(num_updates):
            live(agents, number)
            drawn = plans(agents)
            before = agents[SICK].state()["arrays"]
            if number == at and poison is not None:
                drawn[SICK] = poisoned(drawn[SICK], poison)
            reports.append(updated(mode, agents, drawn))
            if reports[-1][SICK].diverged:
                for part, array in agents[SICK].parameters.arrays().items():
                    np.testing.assert_array_equal(array, before[part], err_msg=part)
        return {agent: everything(one) for agent, one in agents.items()}, agents, reports


def assert_only_the_poisoned_one_is_skipped(
    name: str, case: str, poison: float, num_updates: int, at: int = 2
) -> tuple[Any, list[Any]]:
    healthy = healthy_after("sequential" if name == "process" else name, case, num_updates)
    others, agents, reports = after(name, case, poison, num_updates, at)
    assert all(others[agent] == healthy[agent] for agent in healthy.keys() - {SICK})
    assert [agent for agent, report in reports[at].items() if report.diverged] == [SICK]
    assert [one.counters["skipped"] for one in agents.values()] == [0, 1, 0]
    return others[SICK], reports


@pytest.mark.parametrize(
    ("name", "case", "poison", "num_updates"),
    [
        *((name, "ppo-small", np.inf, 5) for name in ("sequential", "thread", "fused")),
        ("process", "ppo-small", np.inf, 3),
        ("auto", "ppo-small", np.inf, 9),  # which tries another way: in its eighth update it is at "fused"
        *(
            ("sequential", "sac-small", np.nan, 5),
            ("thread", "dqn-small", np.nan, 5),
            ("fused", "dqn-small", np.nan, 5),
        ),
        *(("sequential", "ppo-small", 3e38, 3), ("fused", "ppo-gru", np.nan, 3)),  # too large a number is poison, too
    ],
)
def test_others_are_the_same_to_the_bit(name: str, case: str, poison: float, num_updates: int) -> None:
    at = 7 if name == "auto" else 2
    _, reports = assert_only_the_poisoned_one_is_skipped(name, case, poison, num_updates, at)
    assert reports[-1][SICK].diverged is None or at == num_updates - 1  # it learns on from what is not poisoned


def test_a_long_gradient_of_one_agent_does_not_shorten_another_s() -> None:
    """One clip over all agents, as elsewhere, would."""
    healthy = healthy_after("fused", "ppo-small", 3)
    others, _, reports = after("fused", "ppo-small", 1e6, 3)
    assert reports[2][SICK].metrics["gradient_norm"] > 1e3
    assert all(others[agent] == healthy[agent] for agent in healthy.keys() - {SICK})
    assert others[SICK] != healthy[SICK]


@pytest.mark.parametrize(
    ("case", "name"), [("dqn-small", "sequential"), ("dqn-small", "fused"), ("sac-small", "fused")]
)
def test_a_step_that_ends_in_no_numbers_is_undone(case: str, name: str) -> None:
    """Loss and gradient are finite, and what Adam makes of them is not."""
    config, *spaces = CASES[case]
    found = []
    for rate in (1e-3, 1e38):
        rates = {"agent_0": 1e-3, SICK: rate, "agent_2": 1e-3}
        kinds = {agent: (dataclasses.replace(config, learning_rate=own), *spaces) for agent, own in rates.items()}
        found.append(after(name, kinds, None, 3))
    (healthy, *_), (others, agents, reports) = found
    assert all(others[agent] == healthy[agent] for agent in healthy.keys() - {SICK})
    assert [[agent for agent, one in own.items() if one.diverged] for own in reports] == [[SICK]] * 3
    assert "after the update" in str(reports[0][SICK].diverged)
    assert agents[SICK].parameters.matrix.finite().all()
    assert (agents[SICK].counters["updates"], agents[SICK].counters["skipped"]) == (0, 3)
