"""Parts of loops without processes or clocks: schedules, accounts, sizes of minibatches."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from parallel_envs.learners.algorithm import Plan, UpdateReport
from parallel_envs.learners.loops.free import MinibatchSizes
from parallel_envs.learners.loops.learner_thread import Job, LearnerThread, UpdateRunner
from parallel_envs.learners.loops.loop import Accounts, Lag
from parallel_envs.learners.loops.options import SCHEDULES, Candidate, ordered
from tests.learners.loops.scenes import DQN, PPO, learners

WAITING = [Candidate("a", 10, 0.5, 7), Candidate("b", 30, 0.1, 3), Candidate("c", 20, 0.9, -1)]


# ---- schedules ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "order"), [("round_robin", "cba"), ("most_data", "bca"), ("slowest", "cab")])
def test_schedules_say_who_learns_first(name: str, order: str) -> None:
    assert ordered(SCHEDULES[name], WAITING) == list(order)


@pytest.mark.parametrize("wrong", [["a"], ["a", "b", "b"], ["a", "b", "d"], ["a", "b", "c", "a"]])
def test_a_schedule_names_each_waiting_agent_once(wrong: list[str]) -> None:
    with pytest.raises(ValueError, match=r"put \['a', 'b', 'c'\] into the order"):
        ordered(lambda waiting: wrong, WAITING)


class Gated:
    """Updates that are let through one by one, with a record of the agents."""

    def __init__(self, all_parameters: Any) -> None:
        self.all_parameters = all_parameters
        self.order: list[str] = []
        self.begun, self.gate = threading.Semaphore(0), threading.Semaphore(0)

    def update(self, plans: Any) -> Any:
        self.order += plans
        self.begun.release()
        self.gate.acquire()
        return {agent: UpdateReport({}) for agent in plans}


def job(agent: str, num_fresh: int, version: int = 0) -> Job:
    return Job(agent, Plan({}, np.zeros(1), np.zeros(1)), np.zeros(1, np.int64), version, num_fresh)


@pytest.mark.parametrize(("schedule", "order"), [("most_data", "abdcb"), ("round_robin", "acdbb")])
def test_waiting_agents_learn_in_the_order_of_the_schedule(schedule: str, order: str) -> None:
    """`a` learns while the others come; an agent's own updates stay in their order."""
    with learners(PPO) as made:
        parameters = made.agents["red"].parameters
        mode: Any = Gated(dict.fromkeys("abcd", parameters))
        updates = LearnerThread(UpdateRunner(mode, SCHEDULES[schedule], at_once=False), merge=True)
        try:
            updates.submit([job("a", 1)])
            mode.begun.acquire()
            for agent, num_fresh, version in [("c", 5, 0), ("d", 8, 0), ("b", 9, 0), ("b", 2, 1)]:
                updates.submit([job(agent, num_fresh, version)])
            mode.gate.release(5)
            updates.wait_until(lambda updates: not updates.num_unfinished())
            assert "".join(mode.order) == order
            own = [result.job.version for result in updates.take() if result.job.agent == "b"]
            assert own == [0, 1]
        finally:
            mode.gate.release(9)
            updates.stop()


def test_a_learner_thread_that_is_stopped_ends_what_it_does_and_drops_what_waits() -> None:
    with learners(PPO) as made:
        mode: Any = Gated({"a": made.agents["red"].parameters, "b": made.agents["red"].parameters})
        updates = LearnerThread(UpdateRunner(mode))
        updates.submit([job("a", 1)])
        mode.begun.acquire()
        updates.submit([job("b", 1)])
        mode.gate.release()
        updates.stop()
        updates.stop()
        assert mode.order in (["a"], ["a", "b"])  # `b` may have been begun before the stop
        assert [result.job.agent for result in updates.take()] == mode.order


# ---- accounts -------------------------------------------------------------------------------------------------------


def test_accounts_say_what_could_be_saved_and_what_was() -> None:
    now = [0.0]
    accounts = Accounts("overlap", clock=lambda: now[0])
    with accounts.collecting():
        now[0] += 6.0
    with accounts.waiting():
        now[0] += 3.0
    accounts.learnt("red", np.array([0, 1, 1]))
    accounts.learnt("red", np.array([2]))
    accounts.learnt("blue", np.array([], np.int64))
    report = accounts.report(learnt=4.0, waited=5.0, lived={"red": 8, "blue": 8})
    assert report.lags == {"red": Lag(0, 1.0, 2)}
    assert report.updates_per_step == {"red": 0.25}
    assert report.bound == pytest.approx(0.4)
    assert report.gain == pytest.approx(0.1)
    assert (report.collect_waited, report.learn_waited) == (3.0, 5.0)
    assert report.described()["lag"] == {"red": {"min": 0, "mean": 1.0, "max": 2}}
    assert str(report) == (
        "overlap: lag 0 / 1.00 / 2 updates, collecting waited 3.0 s, learning 5.0 s, saved 10% of the time (40% at "
        "best)"
    )


def test_nothing_done_is_no_division_by_nothing() -> None:
    report = Accounts("sync", clock=lambda: 0.0).report(0.0, 0.0, {})
    assert (report.bound, report.gain, str(report)) == (0.0, 0.0, "sync: nothing learnt yet")


# ---- minibatches ----------------------------------------------------------------------------------------------------


def test_minibatches_grow_while_learning_is_behind_and_shrink_while_it_waits() -> None:
    with learners({"red": DQN, "blue": PPO}) as made:
        sizes = MinibatchSizes(made.agents, (6, 36))
        assert sizes.sizes == {"red": 8, "blue": 20}
        for collect_waited, learn_waited, size in [
            (1, 0, 16),
            (3, 1, 32),
            (4, 1, 36),
            (4, 9, 18),
            (4, 9, 18),
            (4, 11, 9),
        ]:
            sizes.adapt("red", collect_waited, learn_waited)
            assert sizes.sizes["red"] == made.agents["red"].algorithm.config.batch_size == size  # type: ignore[attr-defined]  # of DQN
        for waited in range(12, 15):
            sizes.adapt("red", 4, waited)
        assert sizes.sizes == {"red": 6, "blue": 20}
        sizes.restore()
        assert made.agents["red"].algorithm.config == DQN
