"""Options of a loop: impossible ones are refused before anything starts, with advice."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_envs.choices import UpdateModeName
from parallel_envs.learners import IndependentLearners, PPOConfig
from parallel_envs.learners.loops import LoopOptions
from parallel_envs.learners.loops.options import Shares, fewest_workers, share_workers, wanted_workers
from parallel_envs.multiagent import MultiAgentEnvManager
from tests.learners.loops.scenes import DQN, PPO, SAC, learners
from tests.learners.test_independent import Pressing


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"mode": "overlp"}, "mode='overlp' is unknown. Choose one of .* Did you mean 'overlap'"),
        ({"learn_in": "gpu"}, "learn_in='gpu' is unknown. Choose one of 'process', 'thread', 'serial'"),
        ({"schedule": "most-data"}, "Did you mean 'most_data'"),
        ({"mode": "free"}, "without a bound of its queue.*Give queue="),
        ({"mode": "free", "queue": 0}, "queue=0 is too small. Give at least 1"),
        ({"mode": "free", "queue": 2, "max_lag": -1}, "max_lag=-1 is below 0. Give 0 or more"),
        ({"mode": "free", "queue": 2, "updates_per_step": 0.0}, "updates_per_step=0.0 allows no updates"),
        ({"mode": "free", "queue": 2, "minibatch": (9, 3)}, r"minibatch=\(9, 3\) has its bounds the wrong way round"),
        ({"mode": "overlap", "queue": 2}, "queue=2 contradicts mode='overlap', whose lag is exactly one update"),
        ({"mode": "overlap", "max_lag": 2}, "max_lag=2 contradicts mode='overlap'"),
        ({"updates_per_step": 0.5}, "updates_per_step=0.5 contradicts mode='sync', where nothing ever waits"),
        ({"mode": "overlap", "minibatch": (4, 8)}, "which is the same in every run"),
        ({"vtrace": True}, "vtrace=True with mode='sync'"),
        ({"mode": "free", "queue": 2, "updates_per_step": "x"}, "updates_per_step='x' allows no updates"),
        ({"mode": "free", "queue": 2, "minibatch": 4}, "minibatch=4 is no pair of bounds"),
        ({"mode": "free", "queue": 2, "minibatch": (4, 8, 16)}, "is no pair of bounds"),
        ({"mode": "overlap", "vtrace": "no"}, "vtrace='no' is neither True nor False"),
        ({"mode": np.zeros(2)}, r"mode=array.* is unknown. Choose one of"),
        ({"worker_budget": 2.0}, "worker_budget=2.0 is not a whole number"),
        ({"mode": "free", "queue": 2, "max_lag": True}, "max_lag=True is not a whole number"),
        ({"mode": "free", "queue": 2, "updates_per_step": float("nan")}, "updates_per_step=nan allows no updates"),
        ({"worker_budget": 0}, "worker_budget=0 is too small. Give at least 1"),
    ],
)
def test_contradicting_options_are_refused(how: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        LoopOptions(**how)


@pytest.mark.parametrize(
    ("config", "how", "words"),
    [
        ({"red": DQN, "blue": PPO}, {"mode": "overlap", "vtrace": True}, "agent 'red' learns by dqn from a replay"),
        (PPO, {"mode": "free", "queue": 2, "updates_per_step": 0.1}, "no agent learns from a replay buffer"),
        (PPO, {"mode": "free", "queue": 2, "minibatch": (8, 41)}, "agent 'red' learns from 40 rows at most"),
        (
            PPO,
            {"mode": "overlap", "worker_budget": 2, "learn_in": "serial", "batch": 3},
            "batch=3 is no argument of train. Did you mean",
        ),
    ],
)
def test_options_that_agents_cannot_have_are_refused_before_the_first_step(config: Any, how: Any, words: str) -> None:
    with learners(config) as made:
        with pytest.raises((ValueError, TypeError), match=words):
            made.train(100, **how)
        assert made.steps == 0


@pytest.mark.parametrize("update_mode", ["fused", "auto"])
def test_minibatches_of_other_sizes_are_not_for_updates_that_may_be_fused(update_mode: UpdateModeName) -> None:
    with learners(PPO, update_mode=update_mode) as made:
        with pytest.raises(ValueError, match="need one size for all"):
            made.train(100, mode="free", queue=2, minibatch=(5, 10))
        assert made.steps == 0


# ---- budgets --------------------------------------------------------------------------------------------------------


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


def test_environments_that_hold_more_than_is_left_are_told_with_the_numbers() -> None:
    assert share_workers(4, 8, 1, env_workers=3) == Shares(3, 1)
    with pytest.raises(ValueError, match=r"budget of 4 .*hold 4 and learning needs at least 1, which makes 5"):
        share_workers(4, 8, 1, env_workers=4)


@pytest.mark.parametrize(
    ("asked", "fewest", "most"),
    [
        (("sync", "process", "sequential"), 0, 0),
        (("sync", "process", "process"), 1, 3),
        (("overlap", "process", "fused"), 1, 1),
        (("overlap", "process", "process"), 1, 3),
        (("overlap", "thread", "sequential"), 1, 1),
        (("overlap", "serial", "sequential"), 0, 0),
    ],
)
def test_fewest_and_wanted_workers(asked: tuple[str, str, str], fewest: int, most: int) -> None:
    assert fewest_workers(*asked) == fewest
    assert wanted_workers(*asked, num_agents=3, workers=4) == most


def test_a_budget_that_environments_use_up_is_refused_before_anything_starts() -> None:
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


def test_a_budget_bounds_the_workers_that_learn() -> None:
    with learners({"red": PPO, "blue": SAC}, update_mode="process", workers=2) as made:
        made.train(1, mode="overlap", worker_budget=1)
        mode: Any = made.mode
        assert mode._pool.num_workers == 1
