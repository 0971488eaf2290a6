"""One agent's poisoned experience changes nothing in another, to the bit, in any mode. The poisoned one is named."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Plan
from parallel_envs.learners.updates import MODES
from parallel_envs.rollouts.replay import ReplayBuffer
from tests.learners.lives import CASES, learners, live, mode_of, plans, updated

POISON = {"inf": np.inf, "nan": np.nan, "huge": 3e38}
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


def after(name: str, case: Any, poison: float | None, num_updates: int = 5, at: int = 2) -> tuple[Any, Any, list[Any]]:
    """All agents after the last update. One of them is poisoned: the third, unless said otherwise."""
    agents = learners(case)
    reports = []
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


@pytest.mark.parametrize(
    ("name", "case", "poison"),
    [
        *((name, "ppo-small", "inf") for name in MODES),
        *((name, case, "nan") for name in ("sequential", "thread", "fused") for case in ("dqn-small", "sac-small")),
    ],
)
def test_others_are_the_same_to_the_bit(name: str, case: str, poison: str) -> None:
    num_updates = 3 if name == "process" else 5
    healthy, _, _ = after("sequential" if name == "process" else name, case, None, num_updates)
    others, agents, reports = after(name, case, POISON[poison], num_updates)
    for agent in healthy.keys() - {SICK}:
        assert others[agent] == healthy[agent]
    assert [agent for agent, report in reports[2].items() if report.diverged] == [SICK]
    assert agents[SICK].counters["skipped"] == 1
    assert reports[-1][SICK].diverged is None or num_updates == 3  # it learns on from what is not poisoned


def test_auto_keeps_agents_apart_while_it_tries_another_way() -> None:
    healthy, _, _ = after("auto", "ppo-small", None, 9, at=7)
    others, agents, reports = after("auto", "ppo-small", np.inf, 9, at=7)  # it is at "fused" by then
    assert all(others[agent] == healthy[agent] for agent in healthy.keys() - {SICK})
    assert [agent for agent, report in reports[7].items() if report.diverged] == [SICK]
    assert agents[SICK].counters["skipped"] == 1


@pytest.mark.parametrize("name", ["sequential", "fused"])
def test_numbers_that_are_too_large_are_poison_too(name: str) -> None:
    _, agents, reports = after(name, "ppo-small", POISON["huge"], 3)
    assert reports[2][SICK].diverged is not None
    assert [one.counters["skipped"] for one in agents.values()] == [0, 1, 0]


@pytest.mark.parametrize(
    ("case", "name"), [("dqn-small", "sequential"), ("dqn-small", "fused"), ("sac-small", "fused")]
)
def test_a_step_that_ends_in_no_numbers_is_undone(case: str, name: str) -> None:
    """Loss and gradient are finite, and what Adam makes of them is not."""
    config, *spaces = CASES[case]
    rates = {"agent_0": 1e-3, SICK: 1e38, "agent_2": 1e-3}
    kinds: Any = {agent: (dataclasses.replace(config, learning_rate=rate), *spaces) for agent, rate in rates.items()}
    others, agents, reports = after(name, kinds, None, 3)
    healthy, _, _ = after(
        name, {agent: (dataclasses.replace(config, learning_rate=1e-3), *spaces) for agent in rates}, None, 3
    )
    assert all(others[agent] == healthy[agent] for agent in healthy.keys() - {SICK})
    assert [[agent for agent, one in own.items() if one.diverged] for own in reports] == [[SICK]] * 3
    assert "after the update" in str(reports[0][SICK].diverged)
    assert agents[SICK].parameters.matrix.finite().all()
    assert (agents[SICK].counters["updates"], agents[SICK].counters["skipped"]) == (0, 3)


def test_so_it_is_with_what_adam_divides_by_nothing() -> None:
    """Of an epsilon that 32 bits cannot hold nothing is left, and many a gradient is 0."""
    config, *spaces = CASES["dqn-small"]
    _, agents, reports = after(
        "sequential", {SICK: (dataclasses.replace(config, adam_epsilon=1e-46), *spaces)}, None, 2
    )
    assert [own[SICK].diverged is not None for own in reports] == [True, True]
    assert agents[SICK].parameters.matrix.finite().all()


@pytest.mark.parametrize("name", ["sequential", "fused"])
def test_poison_of_the_memory_of_a_recurrent_agent(name: str) -> None:
    healthy, _, _ = after(name, "ppo-gru", None, 3)
    others, agents, reports = after(name, "ppo-gru", np.nan, 3)
    assert all(others[agent] == healthy[agent] for agent in healthy.keys() - {SICK})
    assert [agent for agent, report in reports[2].items() if report.diverged] == [SICK]
    assert [one.counters["skipped"] for one in agents.values()] == [0, 1, 0]


def test_a_long_gradient_of_one_agent_does_not_shorten_another_s() -> None:
    """One clip over all agents, as elsewhere, would."""
    healthy, _, _ = after("fused", "ppo-small", None, 3)
    others, _, reports = after("fused", "ppo-small", 1e6, 3)
    assert reports[2][SICK].metrics["gradient_norm"] > 1e3
    assert all(others[agent] == healthy[agent] for agent in healthy.keys() - {SICK})
    assert others[SICK] != healthy[SICK]
