"""Learning on a device. There is none here: torch's `meta` device stands in, which computes shapes and no numbers.

It refuses operations that mix its tensors with those of the CPU, as any device does, and `numpy()` of its tensors.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode

from parallel_envs.learners.ppo import PPOConfig
from tests.learners.lives import CASES, NUM_ROWS, learners, live, mode_of, plans, updated
from tests.learners.test_independent import DQN, PPO, SAC, learning


class Ones(TorchFunctionMode):
    """Numbers that are copied from the `meta` device are all 1, and true."""

    num_copies = 0

    def __torch_function__(self, function: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        if function in (torch.Tensor.cpu, torch.Tensor.tolist, torch.Tensor.__bool__) and given[0].is_meta:
            self.num_copies += 1
            return function(torch.ones(given[0].shape, dtype=given[0].dtype))
        return function(*given, **(named or {}))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sequential", "fused"])
@pytest.mark.parametrize("case", ["ppo", "ppo-box", "ppo-gru", "ppo-cnn", "dqn", "dqn-prioritized", "sac"])
def test_an_update_stays_on_the_device(case: str, mode: str) -> None:
    kind: Any = CASES[case]
    if case == "ppo-box":  # `meta` has no numbers to choose rows by, as running statistics do
        kind = PPOConfig(rollout_length=8, minibatch_size=8), *kind[1:]
    agents = learners({"red": kind, "blue": kind})
    live(agents, 0, 8)
    for one in agents.values():
        one.parameters.to("meta")
    with Ones(), mode_of(mode, agents) as way:
        for number in range(1, 5):  # the fused mode records its operations in the third
            for report in updated(way, agents, plans(agents)).values():
                assert report.failure is None, report.failure
                assert report.metrics["steps"] > 0
            live(agents, number, 8)
    for one in agents.values():
        assert {tensor.device.type for tensor in one.parameters.tensors().values()} == {"meta"}
        assert {tensor.device.type for tensor in one.parameters.module.parameters()} == {"meta"}
        assert one.carry is None or one.carry.shape[0] == NUM_ROWS


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("how", [{}, {"mode": "overlap", "learn_in": "serial"}], ids=["sync", "overlap"])
@pytest.mark.parametrize("red", [PPO, DQN], ids=["ppo", "dqn"])
def test_agents_act_here_with_weights_from_the_device_which_are_kept_and_loaded(red: Any, how: Any) -> None:
    with Ones() as copied, learning({"red": red, "blue": SAC}, device="meta") as learners:
        learners.train(120, **how)
        assert all(one.counters["updates"] > 0 for one in learners.agents.values())
        for agent in learners.agents:
            module = learners.policy.policy[agent].module  # type: ignore[index]  # one for each agent
            assert {tensor.device.type for tensor in module.parameters()} == {"cpu"}
        before = copied.num_copies
        learners.load_states(learners.states())
        assert copied.num_copies > before
        assert learners.agents["red"].parameters.matrix.weights.is_meta
