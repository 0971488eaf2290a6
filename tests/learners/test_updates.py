"""All ways to run updates come to the same numbers, for every algorithm, and draw the same."""

from __future__ import annotations

import functools
import os
import signal
from typing import Any

import numpy as np
import pytest

from parallel_envs.errors import WorkerDied
from parallel_envs.learners.ppo import PPOConfig
from parallel_envs.learners.updates import MODES, AutoUpdates, ProcessUpdates
from tests.learners.lives import CASES, learners, live, mode_of, plans, updated

MANY = 200


def trained(name: str, case: Any, num_updates: int, *, num_agents: int = 3, everybody: bool = True) -> dict[str, Any]:
    """All there is of each agent after so many updates; not `everybody`: each sits out now and then."""
    agents = learners(case, num_agents)
    with mode_of(name, agents) as mode:
        for number in range(num_updates):
            live(agents, number)
            drawn = plans(agents)
            absent = list(agents)[number % 7 % len(agents)] if not everybody and number % 2 else None
            updated(mode, agents, {agent: plan for agent, plan in drawn.items() if agent != absent})
        states = {agent: one.state() for agent, one in agents.items()}
        states["metrics"] = {agent: one.metrics for agent, one in agents.items()}
    return states


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for agent in one.keys() - {"metrics"}:
        assert one[agent]["generator"] == other[agent]["generator"]
        assert one[agent]["counters"] == other[agent]["counters"]
        for name, array in one[agent]["arrays"].items():
            np.testing.assert_allclose(
                other[agent]["arrays"][name], array, rtol=0, atol=1e-5, err_msg=f"{agent} {name}"
            )
        for name, value in one["metrics"][agent].items():
            assert other["metrics"][agent][name] == pytest.approx(value, abs=1e-3, rel=1e-3), name


@pytest.mark.parametrize("case", [case for case in CASES if not case.endswith("-small")])
def test_fused_updates_are_the_sequential_ones(case: str) -> None:
    few = 3  # of very many kinks one is soon met, where rounding decides on which side
    assert_same(trained("sequential", case, few), trained("fused", case, few))


@pytest.mark.parametrize("case", ["ppo", "dqn", "sac"])
def test_they_still_are_after_two_hundred_updates(case: str) -> None:
    one, other = (trained(name, f"{case}-small", MANY, num_agents=2) for name in ("sequential", "fused"))
    assert_same(one, other)


def test_agents_may_sit_out() -> None:
    one, other = (trained(name, "ppo-small", 10, everybody=False) for name in ("sequential", "fused"))
    assert_same(one, other)


@pytest.mark.parametrize("name", ["thread", "process", "auto"])
def test_agents_of_different_kinds_come_to_the_same_in_every_mode(name: str) -> None:
    everyone = {f"{case}_{twin}": CASES[case] for case in ("ppo-small", "dqn-small") for twin in range(2)}
    everyone |= {case: CASES[case] for case in ("ppo-gru", "sac-small")}
    num_updates = 9 if name == "auto" else 3
    assert_same(trained("sequential", everyone, num_updates), trained(name, everyone, num_updates))


@pytest.mark.parametrize("name", ["thread", "process"])
def test_workers_come_to_the_very_same_after_two_hundred_updates(name: str) -> None:
    everyone = {case: CASES[case] for case in ("ppo-small", "dqn-small", "sac-small")}
    one, other = (trained(way, everyone, MANY) for way in ("sequential", name))
    assert_same(one, other)
    for agent in everyone:
        for part, array in one[agent]["arrays"].items():
            np.testing.assert_array_equal(other[agent]["arrays"][part], array, err_msg=f"{agent} {part}")


def test_learning_rates_may_differ_in_a_fused_group() -> None:
    kinds = {
        f"agent_{index}": (PPOConfig(rollout_length=8, minibatch_size=7, learning_rate=rate), *CASES["ppo"][1:])
        for index, rate in enumerate((1e-2, 1e-3, 3e-3))
    }
    assert_same(trained("sequential", kinds, 3), trained("fused", kinds, 3))


@pytest.mark.parametrize("name", ["fused", "thread", "process"])
def test_learning_rates_may_fall_each_in_its_own_way(name: str) -> None:
    small = functools.partial(PPOConfig, rollout_length=8, minibatch_size=12, hidden=(8,), learning_rate=1e-2)
    configs = {
        "steady": small(),
        "falls": small(learning_rate_end=1e-3, learning_rate_updates=2),
        "stops": small(learning_rate_end=0.0, learning_rate_updates=1),
    }
    kinds = {agent: (config, *CASES["ppo"][1:]) for agent, config in configs.items()}
    once, later = (trained("sequential", kinds, num_updates) for num_updates in (1, 3))
    assert_same(later, trained(name, kinds, 3))
    weights = [{agent: states[agent]["arrays"]["weights"] for agent in configs} for states in (once, later)]
    moved = {agent: not np.array_equal(weights[0][agent], weights[1][agent]) for agent in configs}
    assert moved == {"steady": True, "falls": True, "stops": False}


def test_learning_changes_the_weights() -> None:
    fresh, later = learners("ppo"), trained("fused", "ppo", 2)
    for agent, one in fresh.items():
        assert np.abs(one.state()["arrays"]["weights"] - later[agent]["arrays"]["weights"]).max() > 1e-4


def test_nobody_updates_nothing() -> None:
    for name in ("sequential", "fused", "auto"):
        with mode_of(name, learners("ppo")) as mode:
            assert mode.update({}) == {}


def test_auto_says_what_it_chose_and_why() -> None:
    agents = learners("dqn-small", 2)
    with mode_of("auto", agents, 1) as mode:  # one worker: threads and processes are not worth a try
        assert isinstance(mode, AutoUpdates)
        for number in range(12):
            assert mode.choice is None
            live(agents, number)
            updated(mode, agents, plans(agents))
        assert mode.seconds.keys() == {"sequential", "fused"}
        assert mode.choice == min(mode.seconds, key=lambda name: sorted(mode.seconds[name][3:])[1])
        assert mode.why.startswith(f"auto: {mode.choice} (sequential ")


# ---- workers --------------------------------------------------------------------------------------------------------


def pid_of(mode: Any, worker: int = 0) -> int:
    assert isinstance(mode, ProcessUpdates)
    return mode._pool.pid(worker)


def test_a_worker_that_is_killed_changes_nothing_and_numbers_put_in_by_the_caller_reach_it() -> None:
    results = []
    for name in ("sequential", "process"):
        agents, others = learners("ppo-small"), learners("ppo-small", seed=9)
        with mode_of(name, agents, 1) as mode:
            for number in range(4):
                live(agents, number)
                if number == 1 and name == "process":
                    os.kill(pid_of(mode), signal.SIGKILL)
                if number == 3:
                    agents["agent_1"].brain.load(others["agent_1"].brain.arrays())
                    mode.changed("agent_1")
                updated(mode, agents, plans(agents))
            results.append({agent: one.state() for agent, one in agents.items()})
            results[-1]["metrics"] = {agent: one.metrics for agent, one in agents.items()}
    assert_same(*results)


def test_a_worker_that_dies_again_and_again_is_an_error_that_names_its_agents(monkeypatch: pytest.MonkeyPatch) -> None:
    agents = learners({"lives": CASES["ppo"], "dies": CASES["ppo"]})
    live(agents, 0)
    monkeypatch.setattr(agents["dies"].algorithm, "loss", _end)
    before = {agent: one.state() for agent, one in agents.items()}
    with mode_of("process", agents) as mode:
        drawn = plans(agents)
        with pytest.raises(WorkerDied, match=r"\['dies'\].*signal 9"):
            mode.update(drawn)
        for name, array in agents["dies"].state()["arrays"].items():
            np.testing.assert_array_equal(array, before["dies"]["arrays"][name])
        assert mode.update({"lives": drawn["lives"]})["lives"].diverged is None


def _end(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def test_modes_are_told_by_name() -> None:
    assert set(MODES) == {"sequential", "thread", "process", "fused", "auto"}
