"""What the update of one agent raises is undone and told with its name; the others learn, in every mode."""

from __future__ import annotations

import dataclasses
import functools
import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import UpdateModeName
from parallel_envs.errors import RemoteTraceback
from parallel_envs.learners import DQNConfig, IndependentLearners, PPOConfig, UpdateFailed
from parallel_envs.learners.agent import AgentLearner
from parallel_envs.learners.algorithm import Plan
from parallel_envs.rollouts.replay import ReplayBuffer
from parallel_envs.testing import assert_same_batch
from tests.learners.lives import CASES, learners, live, mode_of, plans, updated
from tests.learners.test_independent import Poisoned, pressing

CONFIG, *SPACES = CASES["ppo-box"]  # which has statistics, too
OTHER = DQNConfig(batch_size=16, learning_starts=10, hidden=(8,), gradient_steps=3), *CASES["dqn-small"][1:]
ALONE: Any = {"before": CASES["ppo-small"], "fails": (CONFIG, *SPACES), "behind": OTHER}


def fail_while(flag: Path, countdown: list[int], method: Any, *given: Any) -> Any:
    """Do what the method does, and raise at the end of the second time."""
    result = method(*given)
    countdown[0] -= 1
    if flag.exists() and countdown[0] <= 0:
        raise OSError("not now")
    return result


def break_(one: Any, moment: str, flag: Path, times: int = 2) -> None:
    """Have an algorithm raise while the flag is there, the second time it comes to this moment (or the first)."""
    flag.touch()
    setattr(one.algorithm, moment, partial(fail_while, flag, [times], getattr(one.algorithm, moment)))


def everything(agents: Any) -> dict[str, Any]:
    return {agent: one.state() for agent, one in agents.items()}


def pair(kinds: Any) -> tuple[Any, Any]:
    """The same agents twice, all of which have lived: those that have learnt, and those that are to learn."""
    well, ill = learners(kinds), learners(kinds)
    for agents in (well, ill):
        live(agents, 0)
    with mode_of("sequential", well) as mode:
        updated(mode, well, plans(well))
    return well, ill


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("moment", ["should_stop", "see", "loss", "after_step", "after_update"])
@pytest.mark.parametrize("name", ["sequential", "thread", "fused", "process"])
def test_an_update_that_raises_is_undone_and_the_others_learn(name: str, moment: str, tmp_path: Path) -> None:
    """Whenever it raises. Then it is made again, as if nothing had been. A worker has all agents."""
    well, ill = pair(ALONE)
    if name == "fused":
        well = learners(ALONE)
        live(well, 0)
        with mode_of(name, well) as mode:
            updated(mode, well, plans(well))
    break_(ill["fails"], moment, tmp_path / "flag", 1 if moment in ("see", "after_update") else 2)
    before, drawn = ill["fails"].state(), plans(ill)
    with mode_of(name, ill, 1 if name == "process" else 2) as mode:
        reports = mode.update(drawn)
        learnt = {agent: report.learnt for agent, report in reports.items()}
        assert learnt == {"before": True, "fails": False, "behind": True}
        assert_same_batch(ill["fails"].state()["arrays"], before["arrays"])
        (tmp_path / "flag").unlink()
        reports |= mode.update({"fails": drawn["fails"]})
    for agent, report in reports.items():
        ill[agent].finish(report)
    assert_same_batch(everything(ill), everything(well))


def test_agents_that_are_computed_together_fail_together(tmp_path: Path) -> None:
    agents = learners({"one": CASES["ppo-small"], "alone": OTHER, "two": CASES["ppo-small"]})
    live(agents, 0)
    break_(agents["one"], "loss", tmp_path / "flag", 1)
    before = everything(agents)
    with mode_of("fused", agents) as mode:
        reports = updated(mode, agents, plans(agents))
    failures = {agent: report.failure for agent, report in reports.items() if report.failure is not None}
    error = UpdateFailed.of(failures)
    assert error.agents == ("one", "two")
    assert "Agents 'one', 'two', which learn together, have not learnt: the update raised OSError: not now." in str(
        error
    )
    for agent in failures:
        assert_same_batch(agents[agent].state()["arrays"], before[agent]["arrays"])
    assert [one.counters["skipped"] for one in agents.values()] == [1, 0, 1]
    assert not np.array_equal(agents["alone"].state()["arrays"]["weights"], before["alone"]["arrays"]["weights"])


PPO = PPOConfig(rollout_length=10, minibatch_size=20, num_epochs=2, hidden=(8,), learning_rate=1e-2)


def test_an_agent_that_has_diverged_beside_it_is_told_too(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    with pressing(Poisoned) as envs, IndependentLearners(envs, PPO, update_mode="sequential") as made:
        break_(made.agents["blue"], "loss", tmp_path / "flag", 1)
        with caplog.at_level(logging.WARNING), pytest.raises(UpdateFailed, match="'blue'"):
            made.train(100)
        assert "Agent 'red' has not learnt: its loss or its gradient was not finite" in caplog.text
        assert [one.counters["skipped"] for one in made.agents.values()] == [1, 1]


def test_ctrl_c_in_the_middle_of_an_update_undoes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one, which is not waited with."""
    for name in ("sequential", "fused"):
        agents = learners("ppo-small", 2)
        live(agents, 0)
        before, drawn = everything(agents), plans(agents)
        for one in agents.values():
            monkeypatch.setattr(one.algorithm, "after_step", interrupted)
        with mode_of(name, agents) as mode, pytest.raises(KeyboardInterrupt):
            mode.update(drawn)
        for agent, one in agents.items():
            assert_same_batch(one.state()["arrays"], before[agent]["arrays"])


def interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


def test_what_is_remembered_behind_an_update_that_raised_is_nothing(tmp_path: Path) -> None:
    agents = learners("ppo-gru", 1)
    (learner,) = agents.values()
    for number in range(2):
        live(agents, number)
        if number:
            break_(learner, "loss", tmp_path / "flag", 1)
        with mode_of("sequential", agents) as mode:
            updated(mode, agents, plans(agents))
        assert ("carry" in learner.state()["arrays"]) is (number == 0)


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


def bytes_of(learner: AgentLearner) -> dict[str, bytes]:
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
        return {agent: bytes_of(one) for agent, one in agents.items()}, agents, reports


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
        ("sequential", "sac-small", np.nan, 4),
        ("thread", "dqn-small", np.nan, 4),
        ("fused", "ppo-small", np.inf, 4),
        ("process", "ppo-small", np.inf, 3),
        ("auto", "ppo-small", np.inf, 9),  # which tries another way: in its eighth update it is at "fused"
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


@pytest.mark.parametrize(("case", "name"), [("dqn-small", "sequential"), ("sac-small", "fused")])
def test_a_step_that_ends_in_no_numbers_is_undone(case: str, name: str) -> None:
    """Loss and gradient are finite, and what Adam makes of them is not."""
    config, *spaces = CASES[case]
    found = []
    for rate in (1e-3, 1e38):
        rates = {"agent_0": 1e-3, SICK: rate, "agent_2": 1e-3}
        kinds = {agent: (dataclasses.replace(config, learning_rate=own), *spaces) for agent, own in rates.items()}
        found.append(after(name, kinds, None, 2))
    (healthy, *_), (others, agents, reports) = found
    assert all(others[agent] == healthy[agent] for agent in healthy.keys() - {SICK})
    assert [[agent for agent, one in own.items() if one.diverged] for own in reports] == [[SICK]] * 2
    assert "after the update" in str(reports[0][SICK].diverged)
    assert agents[SICK].parameters.matrix.finite().all()
    assert (agents[SICK].counters["updates"], agents[SICK].counters["skipped"]) == (0, 2)


def test_a_step_that_adam_divides_by_nothing_is_undone() -> None:
    """Of an epsilon that 32 bits cannot hold nothing is left, and many a gradient is 0."""
    config, *spaces = CASES["dqn-small"]
    kinds = {SICK: (dataclasses.replace(config, adam_epsilon=1e-46), *spaces)}
    _, agents, reports = after("sequential", kinds, None, 2)
    assert [own[SICK].diverged is not None for own in reports] == [True, True]
    assert agents[SICK].parameters.matrix.finite().all()


@pytest.mark.parametrize(
    ("mode", "how"),
    [
        *((mode, {}) for mode in ("sequential", "thread", "fused", "process")),
        ("sequential", {"mode": "overlap", "learn_in": "process"}),
        ("sequential", {"mode": "free", "queue": 2, "learn_in": "thread"}),
        *(
            pytest.param(mode, how, marks=pytest.mark.slow)
            for mode, how in [
                ("auto", {}),
                *(("sequential", {"mode": "overlap", "learn_in": place}) for place in ("thread", "serial")),
                *(("sequential", {"mode": "free", "queue": 2, "learn_in": place}) for place in ("serial", "process")),
            ]
        ),
    ],
)
def test_learners_name_the_agent_and_count_the_others_also_while_collecting(
    mode: UpdateModeName, how: Any, tmp_path: Path
) -> None:
    """And go on when the reason is gone."""
    with pressing() as envs, IndependentLearners(envs, PPO, update_mode=mode, workers=1) as made:
        red, blue = made.agents.values()
        break_(red, "should_stop", tmp_path / "flag")
        before = made.states()
        with pytest.raises(OSError, match=r"^Agent 'red' has not learnt: the update raised OSError: not now\.") as told:
            made.train(400, **how)
        error: Any = told.value
        assert isinstance(error, UpdateFailed)
        assert error.agents == ("red",)
        assert isinstance(error.__cause__, RemoteTraceback if "process" in (mode, how.get("learn_in")) else OSError)
        assert (red.counters["updates"], red.counters["skipped"]) == (0, 1)
        after = made.states()
        assert_same_batch(after["red"]["arrays"], before["red"]["arrays"])
        if how.get("mode") != "free":  # there it may not have come to its turn
            assert (blue.counters["updates"], blue.acting_version, made.updates) == (1, 1, 1)
            assert not np.array_equal(after["blue"]["arrays"]["weights"], before["blue"]["arrays"]["weights"])
        (tmp_path / "flag").unlink()
        made.train(200, **how)
        assert red.counters["updates"] >= 1
        assert blue.counters["updates"] >= 2
