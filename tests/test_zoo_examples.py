"""The multi-agent examples: they run, and agents that are not there neither learn nor count."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from parallel_envs.multiagent import MultiAgentEnvManager
from tests.benchmarks.zoo_stage import LeavingAgents
from tests.test_examples import EXAMPLES, output_of

NUM_ENVS = 2


class LeavingOneByOne(LeavingAgents):
    """Three agents with nothing much to choose; agent `i` leaves in step `i + 1`, and each step pays 1."""

    def action_space(self, agent: str) -> Any:
        return Discrete(2)


@pytest.fixture
def ppo() -> Iterator[ModuleType]:
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("shared_ppo_spread", EXAMPLES / "shared_ppo_spread.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@contextmanager
def collector(ppo: ModuleType) -> Iterator[Any]:
    with MultiAgentEnvManager([LeavingOneByOne] * NUM_ENVS, backend="serial") as envs:
        rows = envs.as_vector_env()
        yield ppo.Collector(rows, ppo.Network(rows), seed=1)


def test_random_play_tells_returns_and_speed() -> None:
    pytest.importorskip("mpe2")
    shown = output_of("pettingzoo_random.py", "--num-envs", "2", "--steps", "60").splitlines()
    assert [line.split(":")[0] for line in shown[:3]] == ["agent_0", "agent_1", "agent_2"]
    assert all(line.endswith("in 4 episodes") for line in shown[:3])
    assert shown[3].startswith("116 steps of 3 agents each, ")  # two of the sixty rows only reset


def test_shared_ppo_trains() -> None:
    pytest.importorskip("mpe2")
    pytest.importorskip("torch")
    shown = output_of("shared_ppo_spread.py", "--total-steps", "900", "--num-envs", "4", "--num-steps", "52")
    assert "800 steps   mean return of the last  32 episodes" in shown  # 4 updates of 52 rows, of which 50 are steps


def test_rows_that_do_not_act_do_not_count(ppo: ModuleType) -> None:
    with collector(ppo) as collecting:
        rollout = collecting.collect(9)
    assert collecting.num_steps == 7 * NUM_ENVS  # three steps, a reset, three steps, a reset, one step
    assert (
        list(collecting.returns) == [6.0] * 2 * NUM_ENVS
    )  # the first agent has one step, the next two, the last three
    first_env = rollout.alive[:4, :3].tolist()
    assert first_env == [[True, True, True], [False, True, True], [False, False, True], [False, False, False]]
    assert rollout.ended[:4, :3].tolist() == [
        [True, False, False],
        [False, True, False],
        [False, False, True],
        [False, False, False],
    ]


def test_rows_that_do_not_act_have_no_advantage_and_pass_none_on(ppo: ModuleType) -> None:
    import torch

    with collector(ppo) as collecting:
        rollout = collecting.collect(4)
    rollout.values[:] = 0.0
    rollout.values[~rollout.alive] = 1e6
    found = rollout.advantages(torch.full((3 * NUM_ENVS,), 1e6), gamma=1.0, gae_lambda=1.0)
    expected = [[1.0, 2.0, 3.0], [0.0, 1.0, 2.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    np.testing.assert_array_equal(found.numpy(), np.tile(expected, NUM_ENVS))


def test_a_truncated_agent_would_have_gone_on(ppo: ModuleType) -> None:
    import torch

    rollout = ppo.Rollout(2, 1, 1)
    rollout.rewards[0, 0] = 1.0
    rollout.values[1, 0] = 10.0  # of the last thing it saw, which lies in the row after its end
    rollout.alive[0, 0] = rollout.ended[0, 0] = True
    found = rollout.advantages(torch.zeros(1), gamma=0.5, gae_lambda=1.0)
    assert found[:, 0].tolist() == [6.0, 0.0]
    rollout.terminated[0, 0] = True
    assert rollout.advantages(torch.zeros(1), gamma=0.5, gae_lambda=1.0)[:, 0].tolist() == [1.0, 0.0]
