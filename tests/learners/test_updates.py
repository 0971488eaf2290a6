"""All update modes compute the same numbers, for every algorithm, and draw the same random numbers."""

from __future__ import annotations

import dataclasses
import functools
import os
import signal
import threading
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parallel_envs.engine import Death
from parallel_envs.engine.worker_group import LostWorker
from parallel_envs.errors import WorkerDied, WorkerTimeout
from parallel_envs.learners.ppo import PPOConfig
from parallel_envs.learners.updates import AutoUpdates, ProcessUpdates
from parallel_envs.learners.updates import mode as update_modes
from parallel_envs.learners.updates.process import AN_UPDATE, GIVEN_UP, worker_fault
from parallel_envs.testing import assert_same_batch
from tests.learners.lives import CASES, learners, live, mode_of, plans, time_is_up_when, updated


def trained(name: str, case: Any, num_updates: int, *, num_agents: int = 3, everybody: bool = True) -> dict[str, Any]:
    """Return each agent's state after so many updates; not `everybody`: each agent sits out now and then."""
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
            found = other[agent]["arrays"][name]
            np.testing.assert_allclose(found, array, rtol=0, atol=1e-5, err_msg=f"{agent} {name}")
        for name, value in one["metrics"][agent].items():
            assert other["metrics"][agent][name] == pytest.approx(value, abs=1e-3, rel=1e-3), name


STEADY = [case for case in CASES if not case.endswith(("-small", "-cnn"))]
"""Cases without jumps where rounding decides, except for pictures."""
SLOW = ("ppo", "ppo-multi", "dqn-hysteretic-lenient")  # others in this file are like them


@pytest.mark.parametrize(
    "case", [*(pytest.param(case, marks=[pytest.mark.slow] if case in SLOW else []) for case in STEADY), "ppo-cnn"]
)
def test_fused_updates_are_the_sequential_ones(case: str) -> None:
    few = 3  # of very many kinks one is soon met, where rounding decides on which side
    one, other = (trained(name, case, few, num_agents=2) for name in ("sequential", "fused"))
    assert_same(one, other)
    if case == "ppo-cnn":  # pictures are not stacked: they come to the very same
        assert_same_batch(other["agent_0"]["arrays"], one["agent_0"]["arrays"])


def small(case: str) -> Any:
    """The same algorithm with a network and minibatches that take little time, and without kinks in its network."""
    config, *spaces = CASES[case]
    own: dict[str, Any] = {"gradient_steps": 1, "activation": "tanh"}
    if isinstance(config, PPOConfig):
        own = {"num_epochs": 1 if config.target_kl is None else 2, "minibatch_size": 24}
    return dataclasses.replace(config, hidden=(8,), **own), *spaces


@pytest.mark.parametrize("name", ["fused", pytest.param("thread", marks=pytest.mark.slow)])
def test_agents_may_sit_out_stop_early_and_have_learning_rates_of_their_own(name: str) -> None:
    """One sits out now and then, one goes beyond its target_kl, one's rate falls, and one's ends."""
    config = functools.partial(PPOConfig, rollout_length=8, minibatch_size=12, num_epochs=4, hidden=(8,))
    configs = {
        "slow": config(learning_rate=1e-5, target_kl=0.01),
        "rash": config(learning_rate=0.1, target_kl=0.01),
        "falls": config(learning_rate=1e-2, learning_rate_end=1e-3, learning_rate_updates=2, learning_rate_steady=1),
        "stops": config(learning_rate=1e-2, learning_rate_end=0.0, learning_rate_updates=1),
    }
    kinds: Any = {agent: (own, *CASES["ppo"][1:]) for agent, own in configs.items()}
    for everybody in (True, False):
        once, later = (trained("sequential", kinds, number, everybody=everybody) for number in (2, 5))
        other = trained(name, kinds, 5, everybody=everybody)
        assert_same(later, other)
        steps = {agent: metrics["steps"] for agent, metrics in other["metrics"].items()}
        assert steps["slow"] == steps["falls"] == 8
        assert 0 < steps["rash"] < 8
        for agent in ("falls", "stops"):
            moved = not np.array_equal(once[agent]["arrays"]["weights"], later[agent]["arrays"]["weights"])
            assert moved is (agent != "stops")


ALL = [pytest.param(name, STEADY, 200, marks=pytest.mark.slow) for name in ("fused", "thread", "process")]


@pytest.mark.parametrize(("name", "cases", "number"), [("fused", ["ppo"], 60), ("process", ["ppo"], 60), *ALL])
def test_many_updates_later_every_mode_has_come_to_the_same(name: str, cases: list[str], number: int) -> None:
    """An agent of each case; where some are computed in one pass, two."""
    kinds = {f"{case} {twin}": small(case) for twin in range(2 if name == "fused" else 1) for case in cases}
    one, other = (trained(mode, kinds, number) for mode in ("sequential", name))
    assert_same(one, other)
    for agent in kinds:
        assert one[agent]["counters"]["updates"] == number
        if name != "fused":
            assert_same_batch(other[agent]["arrays"], one[agent]["arrays"])  # to the bit


@pytest.mark.parametrize("name", ["thread", pytest.param("process", marks=pytest.mark.slow), "auto"])
def test_agents_of_different_kinds_come_to_the_same_in_every_mode(name: str) -> None:
    everyone = {f"{case}_{twin}": CASES[case] for case in ("ppo-small", "dqn-small") for twin in range(2)}
    everyone |= {case: CASES[case] for case in ("ppo-gru", "sac-small")}
    num_updates = 9 if name == "auto" else 3
    assert_same(trained("sequential", everyone, num_updates), trained(name, everyone, num_updates))


def test_no_thread_goes_on_behind_ctrl_c(monkeypatch: pytest.MonkeyPatch) -> None:
    began, go, ended = threading.Event(), threading.Event(), []
    wait, strikes = futures.wait, [KeyboardInterrupt()]

    def slow(parameters: Any, plan: Any) -> None:
        began.set()
        go.wait()
        ended.append(parameters)

    def struck(asked: Any) -> Any:
        if not strikes:
            go.set()
            return wait(asked)
        began.wait()
        raise strikes.pop()

    monkeypatch.setattr(update_modes, "try_update", slow)
    monkeypatch.setattr(update_modes, "wait", struck)
    agents = learners("ppo-small", 3)
    live(agents, 0)
    with mode_of("thread", agents, 1) as mode:
        with pytest.raises(KeyboardInterrupt):
            mode.update(plans(agents))
        was_waited_for = go.is_set()
        go.set()
    assert was_waited_for
    assert ended == [agents["agent_0"].parameters]


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


def test_partial_rounds_are_not_lost_while_auto_measures_workers() -> None:
    results = []
    for name in ("sequential", "auto"):
        agents = learners("ppo-small", 2)
        with mode_of(name, agents, 1) as mode:
            if isinstance(mode, AutoUpdates):
                mode._largest = 2
                mode._turn_to("process")
            for number in range(3):
                live(agents, number)
                drawn = plans(agents)
                updated(mode, agents, {agent: drawn[agent] for agent in agents if agent == "agent_0" or number != 1})
        results.append({agent: one.state()["arrays"] for agent, one in agents.items()})
    assert_same_batch(results[1], results[0])


def pid_of(mode: Any, worker: int = 0) -> int:
    return int(mode._pool.pid(worker))


def test_a_worker_that_is_killed_or_stopped_changes_nothing_and_numbers_put_in_by_the_caller_reach_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    results, lost = [], dict[int, int]()
    for name in ("sequential", "process"):
        agents, others = learners("ppo-small"), learners("ppo-small", seed=9)
        with mode_of(name, agents, 1) as mode:
            for number in range(4):
                live(agents, number)
                if number in (1, 2) and name == "process":
                    time_is_up_when(mode, lambda pid: pid == lost.get(2))
                    lost[number] = pid_of(mode)
                    os.kill(lost[number], signal.SIGKILL if number == 1 else signal.SIGSTOP)
                if number == 3:
                    agents["agent_1"].parameters.load(others["agent_1"].parameters.arrays())
                    mode.changed("agent_1")
                updated(mode, agents, plans(agents))
            results.append({agent: one.state() for agent, one in agents.items()})
            results[-1]["metrics"] = {agent: one.metrics for agent, one in agents.items()}
    assert_same(*results)
    killed, stopped = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert f"(pid {lost[1]}), was killed by signal 9 (SIGKILL) during an update." in killed
    assert f"(pid {lost[2]}), was not done with an update within 600.0 seconds" in stopped


@pytest.mark.slow
def test_workers_that_hang_or_die_twice_in_an_update_are_named_each_with_its_own_agents(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """A loss that never returns, and one that ends its process. Then no agent has learnt, and all can."""
    agents, inside = learners(dict.fromkeys(("hangs", "dies", "lives"), CASES["ppo-small"])), tmp_path / "inside"
    live(agents, 0)
    monkeypatch.setattr(agents["hangs"].algorithm, "loss", partial(hang, inside))
    monkeypatch.setattr(agents["dies"].algorithm, "loss", die)
    before = {agent: one.state()["arrays"] for agent, one in agents.items()}
    with mode_of("process", agents) as mode:
        time_is_up_when(mode, lambda pid: inside.exists() and inside.read_text() == str(pid))
        pool: Any = mode._pool  # type: ignore[attr-defined]  # the engine's pool, as process mode has
        monkeypatch.setattr(pool, "stack", partial(pool.stack, timeout=60.0))  # it answers, whenever it is scheduled
        first = [pid_of(mode, worker) for worker in (0, 1)]
        drawn = plans(agents)
        with pytest.raises(WorkerTimeout) as caught:
            mode.update(drawn)
        text, (note,) = str(caught.value), caught.value.__notes__
        assert caught.value.workers == (0,)
        for words in (
            "Worker 0, which learns for ['hangs', 'lives'] (pid ",
            "within 600.0 seconds and was ended. Give a larger update_timeout if updates take so long.",
            "It was the second time in a row",
            "in hang",
        ):
            assert words in text
        assert "engine/worker.py" not in text
        for words in ("Worker 1, which learns for ['dies'] (pid ", "by signal 9 (SIGKILL) during an update", "second"):
            assert words in note
        (warned,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
        assert [f"(pid {pid})" in warned for pid in first] == [True, True]
        assert [f"(pid {pid})" in text + note for pid in first] == [False, False]
        assert warned.count("takes its place and does the same again") == 2
        for agent, one in agents.items():
            assert_same_batch(one.state()["arrays"], before[agent])
        assert mode.update({"lives": drawn["lives"]})["lives"].diverged is None


def die(*_: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def die_while(flag: Path, loss: Any, *given: Any) -> Any:
    return die() if flag.exists() else loss(*given)


@pytest.mark.slow
def test_where_a_worker_dies_twice_no_agent_has_learnt_and_all_can(tmp_path: Path) -> None:
    """Not even those whose own worker lives on: no caller would come to know of it."""
    agents, flag = learners(dict.fromkeys(("dies", "lives"), CASES["ppo-small"])), tmp_path / "flag"
    live(agents, 0)
    before, drawn = {agent: one.state()["arrays"] for agent, one in agents.items()}, plans(agents)
    flag.touch()
    agents["dies"].algorithm.loss = partial(die_while, flag, agents["dies"].algorithm.loss)  # type: ignore[method-assign]
    with mode_of("process", agents) as mode:
        with pytest.raises(WorkerDied, match=r"for \['dies'\].* the second time in a row"):
            mode.update(drawn)
        for agent, one in agents.items():
            assert_same_batch(one.state()["arrays"], before[agent])
        flag.unlink()
        assert [report.learnt for report in updated(mode, agents, drawn).values()] == [True, True]


def test_ctrl_c_between_the_restart_and_the_build_of_a_worker_is_mended_by_the_next_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agents = learners(dict.fromkeys(("red", "blue"), CASES["ppo-small"]))
    live(agents, 0)
    drawn = plans(agents)
    with mode_of("process", agents, 1) as mode:
        os.kill(pid_of(mode), signal.SIGKILL)
        with monkeypatch.context() as patch:
            patch.setattr(mode, "_build_hosts", struck)
            with pytest.raises(KeyboardInterrupt):
                mode.update(drawn)
        assert [report.learnt for report in updated(mode, agents, drawn).values()] == [True, True]


def struck(*_: Any) -> Any:
    raise KeyboardInterrupt


def hang(inside: Path, *_: Any) -> Any:
    """Never return. The file `inside` names the process."""
    inside.write_text(str(os.getpid()))
    threading.Event().wait()


class Stillborn:
    """Host that ends its process."""

    def __init__(self, *_: Any) -> None:
        os._exit(4)


def test_a_worker_that_dies_before_it_has_begun_is_replaced_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    agents = learners({"red": CASES["ppo-small"]})
    live(agents, 0)
    monkeypatch.setattr(ProcessUpdates, "host", Stillborn)
    with pytest.raises(WorkerDied, match=r"^Worker 0, which learns for \['red'\] .* during its start.*second time"):
        mode_of("process", agents)
    (warned,) = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "exit code 4 during its start." in warned
    assert "Another worker takes its place" in warned


def test_a_death_is_told_with_the_last_output() -> None:
    error = worker_fault(LostWorker(2, 77, Death(2, 77, 3, ("one", "two"))), ["a", "b"], AN_UPDATE, GIVEN_UP)
    assert isinstance(error, WorkerDied)
    assert (error.worker, error.pid, error.exitcode) == (2, 77, 3)
    assert str(error).startswith("Worker 2, which learns for ['a', 'b'] (pid 77), ended with exit code 3 during an")
    assert str(error).endswith("Its last output:\n  one\n  two")
