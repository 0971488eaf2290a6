"""Policies whose networks are computed on a device: `tests/device.py` counts what is copied to it and back."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

torch = pytest.importorskip("torch")

from parallel_envs.evaluation import BadEvaluation, evaluate  # noqa: E402
from parallel_envs.policies.base import AgentPolicy  # noqa: E402
from parallel_envs.rollouts.networks import Mlp, markov_policy  # noqa: E402
from parallel_envs.wrappers import TorchPolicy  # noqa: E402
from tests.device import CountedDevice  # noqa: E402

pytestmark = pytest.mark.usefixtures("meta_device")

CART = "CartPole-v1"
SPACES = (one := gym.make(CART)).observation_space, one.action_space


def mlp_policy() -> TorchPolicy:
    return TorchPolicy(Mlp(4, 2, (8,)), SPACES[1])


class Networked(AgentPolicy):
    """Has a network, and cannot be told a device."""

    def __init__(self) -> None:
        self.network = Mlp(4, 2)

    def step(self, observation: Any) -> Any:
        return int(self.network(torch.as_tensor(observation)).argmax())


@pytest.mark.parametrize("strategy", ["sequential", "gpu"])
def test_each_action_costs_one_transfer_each_way_and_given_policies_stay_where_they_are(strategy: Any) -> None:
    policy = mlp_policy()
    with CountedDevice() as counted:
        result = evaluate(CART, policy, 2, device="meta", parallel_policy=strategy)
    num_actions = sum(record.length for record in result.episodes)
    num_seen = counted.sent.count((1, 4)) + counted.sent.count((1, 1, 4))
    assert num_actions <= num_seen <= num_actions + 2, "the rehearsals act once more"
    assert len(counted.returned) == num_seen
    assert {tensor.device.type for tensor in policy.module.parameters()} == {"cpu"}
    assert result.settings["device"] == "meta"


@pytest.mark.slow
def test_a_device_that_computes_gives_the_numbers_of_the_cpu_in_workers_too() -> None:
    policies = {"torch": mlp_policy(), "batch": markov_policy(*SPACES, hidden=(8,)), "none": lambda seen: 0}
    plain, here, there = (
        evaluate(CART, policies, 2, device=device, jobs=jobs, versus=False)
        for device, jobs in (("cpu", 0), ("cpu:0", 0), ("cpu:0", 2))
    )
    assert "device" not in plain.settings, "results are as earlier versions wrote them"
    assert [one.returns for one in plain.episodes] == [one.returns for one in here.episodes]
    assert [one.returns for one in plain.episodes] == [one.returns for one in there.episodes]


def test_what_cannot_be_computed_there_is_refused_before_anything_is_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadEvaluation, match=r"The network of 'Networked' would not be computed on device='meta'"):
        evaluate(CART, Networked(), 1, device="meta")
    with pytest.raises(BadEvaluation, match=r"^device='cudaa' is unknown.* Did you mean 'cuda'\?$"):
        evaluate(CART, "random", 1, device="cudaa")
    file = tmp_path / "missions.yaml"
    file.write_text("missions: {cart: {env: CartPole-v1, device: cuda:9}}")
    with pytest.raises(BadEvaluation, match=r"^The mission 'cart': device='cuda:9' was requested, but"):
        evaluate(str(file), "random", 1)
    module = sys.modules["parallel_envs.evaluation.evaluate"]  # the package has a function of this name
    monkeypatch.setattr(module, "find_device", lambda name: "cuda:0")
    with pytest.raises(BadEvaluation, match="context='fork' and CUDA do not go together"):
        evaluate(str(file), "random", 1, jobs=1, context="fork")


def test_a_mission_has_a_device_of_its_own_and_another_one_is_not_resumed(tmp_path: Path) -> None:
    file, saved = tmp_path / "missions.yaml", tmp_path / "result.json"
    file.write_text("missions: {here: {env: CartPole-v1}, there: {env: CartPole-v1, device: meta}}")
    with CountedDevice() as counted:
        result = evaluate(str(file), mlp_policy(), 1, save=saved)
    length = next(record.length for record in result.episodes if record.mission == "there")
    assert length <= counted.sent.count((1, 4)) <= length + 1
    assert result.settings["missions"]["there"]["device"] == "meta"
    with pytest.raises(BadEvaluation, match="made with device='cpu', and 'cpu:0' is requested"):
        evaluate(str(file), mlp_policy(), 1, device="cpu:0", resume=saved)
