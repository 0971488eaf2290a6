"""Options of a loop, refused before anything starts where impossible; and its parts without processes or clocks."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import UpdateModeName
from parallel_envs.learners import IndependentLearners, PPOConfig
from parallel_envs.learners.algorithm import Plan, UpdateReport
from parallel_envs.learners.loops import LoopOptions, open_loop
from parallel_envs.learners.loops.asynchronous import FreeLoop, MinibatchSizes
from parallel_envs.learners.loops.learner_thread import SCHEDULES, LearnerThread, UpdateJob, WaitingAgent, ordered
from parallel_envs.learners.loops.loop import Lag, LoopReport, Shares, share_workers
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.testing import assert_same_batch
from tests.learners.loops.scenes import CASES, DQN, GRU, PPO, PRIORITIZED, SAC, advance, jobs_of, learners, unhurried
from tests.learners.test_independent import Pressing

MIXED: Any = {"red": DQN, "blue": PPO}
SIZES: dict[str, Any] = {"mode": "free", "queue": 2, "minibatch": (5, 10)}
MISSPELT = {"mode": "overlap", "worker_budget": 2, "learn_in": "serial", "batch": 3}
BUDGET: dict[str, Any] = {"mode": "free", "queue": 2}


@pytest.mark.parametrize(
    ("config", "update_mode", "how", "words"),
    [
        (MIXED, "sequential", {"mode": "overlap", "vtrace": True}, "agent 'red' learns by dqn from a replay"),
        (PPO, "sequential", {**BUDGET, "updates_per_step": 0.1}, "no agent learns from a replay buffer"),
        (PPO, "sequential", {**BUDGET, "minibatch": (8, 41)}, "agent 'red' learns from 40 rows at most"),
        (PPO, "sequential", MISSPELT, "batch=3 is no argument of train. Did you mean"),
        (PPO, "fused", SIZES, "need one size for all"),
        (PPO, "auto", SIZES, "need one size for all"),
    ],
)
def test_options_that_agents_cannot_have_are_refused_before_the_first_step(
    config: Any, update_mode: UpdateModeName, how: Any, words: str
) -> None:
    with learners(config, update_mode=update_mode) as made:
        with pytest.raises((ValueError, TypeError), match=words):
            made.train(100, **how)
        assert made.steps == 0


def test_a_budget_is_shared_out_and_never_exceeded() -> None:
    for budget in range(1, 9):
        for num_envs in range(9):
            for least in (0, 1):
                if budget < least + (num_envs > 0):
                    with pytest.raises(ValueError, match=f"A budget of {budget} workers was given; environments hold"):
                        share_workers(budget, num_envs, least)
                    continue
                shares = share_workers(budget, num_envs, least)
                assert shares.envs + shares.learning <= budget
                assert shares.learning >= least
                assert shares.envs == min(num_envs, budget - least)
    assert share_workers(4, 8, 1, env_workers=3) == Shares(3, 1)
    with pytest.raises(ValueError, match=r"budget of 4 .*hold 4 and learning needs at least 1, which makes 5"):
        share_workers(4, 8, 1, env_workers=4)


def test_in_one_thread_it_is_the_same_in_every_run_and_steps_without_due_updates_are_not_made_up_for() -> None:
    found = []
    for _ in range(2):
        with learners({"red": GRU, "blue": SAC}) as made:
            with open_loop(made, LoopOptions()), pytest.raises(RuntimeError, match="inside another"):
                made.train(10)
            made.train(200, mode="free", queue=2, learn_in="serial")
            found.append(made.states())
    assert_same_batch(found[0], found[1])
    with learners({"red": DQN, "blue": PPO}) as made:
        made.train(400)
        before, steps = made.agents["red"].version, made.agents["red"].counters["steps"]
        made.train(80, mode="free", queue=2, updates_per_step=0.5, learn_in="serial")
        assert made.agents["red"].version - before <= 0.5 * (made.agents["red"].counters["steps"] - steps) + 3


WAITING = [WaitingAgent("a", 10, 0.5, 7), WaitingAgent("b", 30, 0.1, 3), WaitingAgent("c", 20, 0.9, -1)]


def test_schedules_say_which_agent_learns_first_and_name_each_once() -> None:
    for name, order in (("round_robin", "cba"), ("most_data", "bca"), ("slowest", "cab")):
        assert ordered(SCHEDULES[name], WAITING) == list(order)
    for wrong in (["a"], ["a", "b", "b"], ["a", "b", "d"], ["a", "b", "c", "a"]):
        with pytest.raises(ValueError, match=r"put \['a', 'b', 'c'\] into the order"):
            ordered(lambda waiting, wrong=wrong: wrong, WAITING)  # type: ignore[misc]  # a default


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


def job(agent: str, num_fresh: int, version: int = 0) -> UpdateJob:
    return UpdateJob(agent, Plan({}, np.zeros(1), np.zeros(1)), np.zeros(1, np.int64), version, num_fresh)


@pytest.mark.parametrize(("schedule", "order"), [("most_data", "abdcb"), ("round_robin", "acdbb")])
def test_waiting_agents_learn_in_the_order_of_the_schedule(schedule: str, order: str) -> None:
    """`a` learns while the others come; an agent's own updates stay in their order."""
    with learners(PPO) as made:
        brain = made.agents["red"].parameters
        mode: Any = Gated(dict.fromkeys("abcd", brain))
        updates = LearnerThread(mode, SCHEDULES[schedule], at_once=False, merge=True)
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
        mode: Any = Gated(dict.fromkeys("ab", made.agents["red"].parameters))
        updates = LearnerThread(mode)

        def let_go() -> None:
            updates.wait_until(lambda updates: not updates.num_waiting)
            mode.gate.release()

        updates.submit([job("a", 1)])
        mode.begun.acquire()
        updates.submit([job("b", 1)])
        assert updates.num_waiting == 1
        other = threading.Thread(target=let_go, daemon=True)
        other.start()
        updates.stop()
        updates.stop()
        other.join()
        assert mode.order == ["a"]
        assert [result.job.agent for result in updates.take()] == ["a"]


def test_a_report_says_what_could_be_saved_and_what_was() -> None:
    nothing = LoopReport("sync", {}, {}, *[0.0] * 5)
    assert (nothing.bound, nothing.gain, str(nothing)) == (0.0, 0.0, "sync: nothing learnt yet")
    report = LoopReport("overlap", {"red": Lag(0, 1.0, 2)}, {"red": 0.25}, 6.0, 4.0, 3.0, 5.0, 9.0)
    assert [report.bound, report.gain] == pytest.approx([0.4, 0.1])
    assert report.described()["lag"] == {"red": {"min": 0, "mean": 1.0, "max": 2}}
    assert str(report) == (
        "overlap: lag 0 / 1.00 / 2 updates, collecting waited 3.0 s, learning 5.0 s, saved 10% of the time (40% at "
        "best)"
    )


def test_minibatches_grow_while_learning_is_behind_and_shrink_while_it_waits() -> None:
    waits = [(1, 0, 16), (3, 1, 32), (4, 1, 36), (4, 9, 18), (4, 9, 18), (4, 11, 9), (4, 12, 6), (4, 13, 6)]
    with learners({"red": DQN, "blue": PPO}) as made:
        sizes = MinibatchSizes(made.agents, (6, 36))
        assert sizes.sizes == {"red": 8, "blue": 20}
        for collect_waited, learn_waited, size in waits:
            sizes.adapt("red", collect_waited, learn_waited)
            algorithm: Any = made.agents["red"].algorithm
            assert sizes.sizes["red"] == algorithm.config.batch_size == size
        assert sizes.sizes["blue"] == 20
        sizes.restore()
        assert made.agents["red"].algorithm.config == DQN


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("case", ["ppo and sac", "dqn and ppo", "gru and ppo", "prioritized and sac"])
@pytest.mark.parametrize(("queue", "max_lag"), [(1, 0), (1, 3), (3, 2)])
def test_the_bounds_hold_whatever_the_timing(case: str, queue: int, max_lag: int) -> None:
    waiting = []
    with learners(CASES[case]) as made, unhurried(made, queue, mode="free", queue=queue, max_lag=max_lag) as loop:
        opened: Any = loop
        jobs = jobs_of(loop, lambda job: waiting.append(opened.updates.num_waiting))
        advance(loop, 60)
        report = loop.report()
        versions = {agent: one.version for agent, one in made.agents.items()}
    assert max(waiting) < queue
    for agent, lag in report.lags.items():
        stamps = np.concatenate([job.lags for job in jobs if job.agent == agent])
        assert 0 <= stamps.min() <= stamps.max() <= max_lag
        assert (lag.least, lag.most) == (stamps.min(), stamps.max())
        assert lag.mean == pytest.approx(stamps.mean())
    for agent, version in versions.items():  # everything that was planned has been learnt, in order
        assert [job.version for job in jobs if job.agent == agent] == list(range(version))


def test_a_lag_that_is_allowed_is_made_use_of_and_waiting_plans_are_not_overwritten() -> None:
    """The learner does not finish an update until the loop waits for it; a plan holds its steps all the while."""
    own: list[Any] = []
    with learners(PPO) as made, unhurried(made, 1, mode="free", queue=8, max_lag=4) as loop, held(loop):
        opened: Any = loop
        submit = opened.updates.submit

        def noted(jobs: list[Any]) -> None:
            own.extend(jobs)
            submit(jobs)

        opened.updates.submit = noted
        copies = jobs_of(loop)
        for _ in range(40):
            loop.advance()
        assert [set(job.lags.tolist()) for job in copies if job.agent == "red"] == [{0}, {1}, {2}, {3}]
        assert len(own) == 8
        for job, copy in zip(own, copies, strict=True):
            assert_same_batch(job.plan.arrays, copy.plan.arrays)


@contextlib.contextmanager
def held(loop: Any) -> Iterator[threading.Event]:
    """Keep the learner thread from learning until the event is set."""
    gate, mode = threading.Event(), loop.updates.mode

    def update(plans: Any) -> Any:
        gate.wait()
        return mode.update(plans)

    loop.updates.mode = SimpleNamespace(update=update, all_parameters=mode.all_parameters)
    try:
        yield gate
    finally:
        gate.set()


def below_and_above(learner: Any, ratio: float) -> tuple[float, float]:
    """Return how far an agent's updates are from the fewest, and from the most, that keep a ratio."""
    due = ratio * max(learner.counters["steps"] - learner.config.learning_starts, 0) + 1e-9
    since = ratio * learner.config.train_interval * learner.memory.num_rows
    return learner.version - (due - since - 1), due - learner.version


@pytest.mark.parametrize(
    "ratio", [1 / 3, pytest.param(0.02, marks=pytest.mark.slow), pytest.param(0.8, marks=pytest.mark.slow)]
)
def test_updates_per_step_is_kept_whatever_the_timing_and_after_loading(ratio: float) -> None:
    """Also above one update each time. The second round runs with new learners that load the states of the first."""
    kept: Any = None
    for seed in (4, 5):
        with (
            learners({"red": DQN, "blue": SAC}) as made,
            unhurried(made, seed, mode="free", queue=4, max_lag=2, updates_per_step=ratio) as loop,
        ):
            if kept is not None:
                made.load_states(kept)
            for _ in range(40):
                loop.advance()
                assert all(below_and_above(one, ratio)[1] >= 0 for one in made.agents.values())
            loop.settle()
            for one in made.agents.values():
                least, most = below_and_above(one, ratio)
                assert least >= 0
                assert most >= 0
                assert one.version > 0 or ratio < 0.1
            kept = made.states()
            if seed == 4:
                for agent, told in loop.report().updates_per_step.items():
                    assert told == pytest.approx(made.agents[agent].version / made.agents[agent].counters["steps"])


@pytest.mark.parametrize("how", [{"mode": "overlap"}, {"mode": "free", "queue": 2}])
def test_priorities_of_overwritten_steps_are_dropped(how: Any) -> None:
    """The buffer is so small that all its steps are overwritten before the update from them has finished."""
    config = dataclasses.replace(PRIORITIZED, buffer_size=12, train_interval=8)
    with (
        learners({"red": config, "blue": PPO}) as made,
        open_loop(made, LoopOptions(learn_in="thread", **how)) as loop,
        held(loop) as gate,
    ):
        memory: Any = made.agents["red"].memory
        told, jobs = noted_priorities(memory), jobs_of(loop)

        def go_on_until(is_so: Callable[[], bool]) -> None:
            while not is_so():
                loop.advance()

        go_on_until(lambda: any(job.agent == "red" for job in jobs))
        drawn_at = memory.num_added
        go_on_until(lambda: memory.num_added >= drawn_at + 12)
        gate.set()
        loop.settle()
        assert len(told) == 1
        assert set(memory.state()["arrays"]["priorities"]) == {1.0}  # as they were stored
        go_on_until(lambda: sum(job.agent == "red" for job in jobs) == 2)
        loop.settle()  # at once: all that was drawn is there still
        assert len(told) == 2
        assert len(set(memory.state()["arrays"]["priorities"])) > 2


def noted_priorities(memory: Any) -> list[Any]:
    """Return a list to which the memory's new priorities are added."""
    told, update = [], memory.update_priorities

    def noted(*given: Any, **named: Any) -> None:
        told.append(given)
        update(*given, **named)

    memory.update_priorities = noted
    return told


def test_minibatches_stay_within_their_bounds_and_configs_come_back() -> None:
    sizes: list[int] = []
    with learners(PPO) as made, unhurried(made, 1, mode="free", queue=2, minibatch=(5, 40)) as loop:
        assert isinstance(loop, FreeLoop)
        jobs = jobs_of(loop)
        advance(loop, 90)
        sizes = [job.plan.picks.shape[1] for job in jobs]
        assert made.agents["red"].algorithm.config is not PPO
    assert made.agents["red"].algorithm.config == PPO
    assert {5, 10, 20, 40} >= set(sizes)
    assert len(set(sizes)) > 1
    for bounds, size in (((5, 40), 20), ((24, 40), 24)):  # they keep their size in serial
        how = LoopOptions(mode="free", queue=2, learn_in="serial", minibatch=bounds)
        with learners(PPO) as made, open_loop(made, how) as one:
            jobs = jobs_of(one)
            advance(one, 40)
            assert {job.plan.picks.shape[1] for job in jobs} == {size}


def test_a_budget_that_environments_use_up_is_refused_and_another_bounds_the_workers_that_learn() -> None:
    with (
        MultiAgentEnvManager([Pressing] * 2, num_workers=2, context="fork") as envs,
        IndependentLearners(envs, PPOConfig(rollout_length=4, minibatch_size=4), update_mode="fused") as made,
    ):
        with pytest.raises(ValueError, match=r"A budget of 2 workers was given; environments hold 2 and learning"):
            made.train(10, mode="overlap", worker_budget=2)
        assert made.steps == 0
        made.train(10, mode="overlap", worker_budget=2, learn_in="serial")
        with pytest.raises(ValueError, match="environments hold 2 and learning needs at least 1, which makes 3"):
            made.train(10, mode="free", queue=3, worker_budget=2, learn_in="thread")
        made.train(10, mode="free", queue=3, worker_budget=3, learn_in="thread")
        assert made.steps >= 20
    with learners({"red": PPO, "blue": SAC}, update_mode="process", workers=2) as made:
        made.train(1, mode="overlap", worker_budget=1)
        mode: Any = made.mode
        assert mode._pool.num_workers == 1
