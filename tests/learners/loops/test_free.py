"""The free loop: its bounds hold whatever the timing."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel_envs.learners.loops import LoopOptions, open_loop
from parallel_envs.learners.loops.free import FreeLoop
from parallel_envs.testing import assert_same_batch
from tests.learners.loops.scenes import CASES, DQN, GRU, PPO, PRIORITIZED, SAC, advance, jobs_of, learners, unhurried


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


def test_steps_without_due_updates_are_not_made_up_for() -> None:
    with learners({"red": DQN, "blue": PPO}) as made:
        made.train(400)
        before, steps = made.agents["red"].version, made.agents["red"].counters["steps"]
        made.train(80, mode="free", queue=2, updates_per_step=0.5, learn_in="serial")
        assert made.agents["red"].version - before <= 0.5 * (made.agents["red"].counters["steps"] - steps) + 3


@pytest.mark.parametrize("how", [{"mode": "overlap"}, {"mode": "free", "queue": 2}])
def test_priorities_of_overwritten_steps_are_dropped(how: Any) -> None:
    """The ring is so small that all of it is overwritten before an update from its steps comes back."""
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


def test_in_one_thread_it_is_the_same_in_every_run() -> None:
    found = []
    for _ in range(2):
        with learners({"red": GRU, "blue": SAC}) as made:
            with open_loop(made, LoopOptions()), pytest.raises(RuntimeError, match="inside another"):
                made.train(10)
            made.train(200, mode="free", queue=2, learn_in="serial")
            found.append(made.states())
    assert_same_batch(found[0], found[1])


def test_minibatches_stay_within_their_bounds_and_configs_come_back() -> None:
    sizes: list[int] = []
    with learners(PPO) as made, unhurried(made, 1, mode="free", queue=2, minibatch=(5, 40)) as loop:
        assert isinstance(loop, FreeLoop)
        jobs = jobs_of(loop)
        advance(loop, 150)
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
