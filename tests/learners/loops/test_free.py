"""Each side as fast as it can: within bounds that hold whatever the timing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parallel_envs.learners.loops import LoopOptions, open_loop
from parallel_envs.learners.loops.free import FreeLoop
from parallel_envs.testing import assert_same_batch
from tests.learners.loops.scenes import CASES, DQN, GRU, PPO, SAC, advance, jobs_of, learners, unhurried


@pytest.mark.parametrize("case", ["ppo and sac", "dqn and ppo", "gru and ppo", "prioritized and sac"])
@pytest.mark.parametrize(("queue", "max_lag"), [(1, 0), (1, 3), (3, 2)])
def test_the_bounds_hold_whatever_the_timing(case: str, queue: int, max_lag: int) -> None:
    waiting = []
    with learners(CASES[case]) as made, unhurried(made, queue, mode="free", queue=queue, max_lag=max_lag) as loop:
        side: Any = loop
        jobs = jobs_of(loop, lambda job: waiting.append(side.side.num_waiting))
        advance(loop, 60)
        report = loop.report()
        versions = {agent: one.version for agent, one in made.agents.items()}
    assert max(waiting) < queue
    assert max(int(job.lags.max()) for job in jobs) <= max_lag
    assert min(int(job.lags.min()) for job in jobs) >= 0
    assert all(lag.most <= max_lag for lag in report.lags.values())
    for agent, version in versions.items():  # everything that was planned has been learnt, in order
        assert [job.version for job in jobs if job.agent == agent] == list(range(version))


def test_a_lag_that_is_allowed_is_made_use_of() -> None:
    """A learner that never comes to its end until it must."""
    with (
        learners(PPO) as made,
        unhurried(made, 1, mode="free", queue=8, max_lag=3) as loop,
        held(loop),
    ):
        jobs = jobs_of(loop)
        for _ in range(39):  # the next step would wait
            loop.advance()
        assert [set(job.lags.tolist()) for job in jobs if job.agent == "red"] == [{0}, {1}, {2}]


@contextlib.contextmanager
def held(loop: Any) -> Iterator[None]:
    """Keeps the side that learns from learning."""
    gate, mode = threading.Event(), loop.side.learner.mode

    def update(plans: Any) -> Any:
        gate.wait()
        return mode.update(plans)

    loop.side.learner.mode = SimpleNamespace(update=update, brains=mode.brains)
    try:
        yield
    finally:
        gate.set()


@pytest.mark.parametrize("ratio", [0.02, 0.05])
def test_updates_per_step_is_never_exceeded(ratio: float) -> None:
    with (
        learners({"red": DQN, "blue": SAC}) as made,
        unhurried(made, 4, mode="free", queue=4, updates_per_step=ratio) as loop,
    ):
        for _ in range(80):
            loop.advance()
            for learner in made.agents.values():
                assert learner.version <= ratio * learner.counters["steps"]
        loop.settle()
        for learner in made.agents.values():
            most = ratio * learner.counters["steps"]
            assert most - 2 <= learner.version <= most


def test_what_waits_is_not_written_over() -> None:
    """Two rollouts later a plan still holds what was lived, though their half of the memory holds something else."""
    own: list[Any] = []
    with (
        learners(PPO) as made,
        unhurried(made, 1, mode="free", queue=8, max_lag=4) as loop,
        held(loop),
    ):
        side: Any = loop
        submit = side.side.submit

        def noted(jobs: list[Any]) -> None:
            own.extend(jobs)
            submit(jobs)

        side.side.submit = noted
        copies = jobs_of(loop)
        for _ in range(40):
            loop.advance()
        assert len(own) == 8
        for job, copy in zip(own, copies, strict=True):
            assert_same_batch(job.plan.arrays, copy.plan.arrays)


def test_in_one_thread_it_is_the_same_in_every_run() -> None:
    found = []
    for _ in range(2):
        with learners({"red": GRU, "blue": SAC}) as made:
            made.train(200, mode="free", queue=2, learn_in="serial")
            found.append(made.states())
    assert_same_batch(found[0], found[1])


def test_agents_get_better() -> None:
    with learners({"red": PPO, "blue": PPO}) as made:
        made.train(1600, mode="free", queue=4, max_lag=2, learn_in="thread", vtrace=True)
        assert made.returns()["red"] > 3.5  # 2.5 by chance, 5 at best


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


def test_a_loop_inside_another_is_refused() -> None:
    with learners(PPO) as made, open_loop(made, LoopOptions()), pytest.raises(RuntimeError, match="inside another"):
        made.train(10)


def test_lags_are_those_of_the_stamps() -> None:
    with learners({"red": PPO, "blue": SAC}) as made, unhurried(made, 3, mode="free", queue=3, max_lag=2) as loop:
        jobs = jobs_of(loop)
        advance(loop, 60)
        lag = loop.report().lags["red"]
    lags = np.concatenate([job.lags for job in jobs if job.agent == "red"])
    assert (lag.least, lag.most) == (lags.min(), lags.max())
    assert lag.mean == pytest.approx(lags.mean())
