"""Learning and acting on a device. There is none here: `tests/device.py` stands in, and counts what is copied to it.

`cpu:0` stands in where the numbers matter: torch holds it for another device than "cpu".
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from parallel_envs.learners.agent import LearnerPolicy
from parallel_envs.learners.independent import IndependentLearners
from parallel_envs.learners.ppo import PPOConfig
from parallel_envs.learners.updates import AutoUpdates
from tests.device import CountedDevice
from tests.learners.lives import CASES, NUM_ROWS, learners, live, mode_of, plans, updated
from tests.learners.test_independent import DQN, PPO, SAC, learning

pytestmark = pytest.mark.usefixtures("meta_device")

GRU = PPOConfig(rollout_length=8, minibatch_size=16, num_epochs=1, network="gru", hidden=(8,), memory_size=8)


def places(module: torch.nn.Module) -> set[str]:
    return {tensor.device.type for tensor in (*module.parameters(), *module.buffers())}


# ---- updates --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["sequential", "fused"])
@pytest.mark.parametrize("case", ["ppo", "ppo-box", "ppo-gru", "ppo-cnn", "dqn", "dqn-prioritized", "sac"])
def test_an_update_stays_on_the_device(case: str, mode: str) -> None:
    """Experience goes there, flags of each step and the report come back. Parameters move in neither direction."""
    kind: Any = CASES[case]
    if case == "ppo-box":  # `meta` has no numbers to choose rows by, as running statistics do
        kind = PPOConfig(rollout_length=8, minibatch_size=8), *kind[1:]
    agents = learners({"red": kind, "blue": kind})
    live(agents, 0, 8)
    for one in agents.values():
        one.parameters.to("meta")
    size = agents["red"].parameters.matrix.weights.numel()
    with CountedDevice() as counted, mode_of(mode, agents) as way:
        for number in range(1, 6):  # the fused mode records its operations in the third
            drawn = plans(agents)
            counted.clear()
            for report in updated(way, agents, drawn).values():
                assert report.failure is None, report.failure.traceback
                assert report.metrics["steps"] > 0
            num_arrays = sum(len(plan.arrays) + len(plan.noise) + 2 for plan in drawn.values())
            assert size not in [int(np.prod(shape)) for shape in (*counted.sent, *counted.returned)]
            num_steps = sum(len(plan.picks) for plan in drawn.values())
            assert len(counted.sent) <= num_arrays + 2 * num_steps + 8
            assert len(counted.returned) <= 3 * num_steps + 16
            live(agents, number, 8)
    for one in agents.values():
        assert {tensor.device.type for tensor in one.parameters.tensors().values()} == {"meta"}
        assert places(one.parameters.module) == {"meta"}
        assert one.carry is None or one.carry.shape[0] == NUM_ROWS


# ---- acting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["sequential", "batch", "gpu", "thread"])
@pytest.mark.parametrize("config", [PPO, GRU], ids=["mlp", "gru"])
def test_a_batch_costs_one_transfer_each_way_and_an_update_none_for_acting(config: Any, strategy: str) -> None:
    with CountedDevice() as counted, learning(config, device="meta", strategy=strategy) as learners:
        networks = {agent: one.parameters.module.actor for agent, one in learners.agents.items()}
        for agent, network in networks.items():
            assert learners.policy.policy[agent].module is network  # type: ignore[index]  # one for each agent
            assert places(network) == {"meta"}
        if strategy == "thread":  # modes of torch hold for one thread only
            return
        num_batches = len(networks)
        if strategy != "sequential" and config is PPO:
            num_batches = len({policy.stack_signature() for policy in learners.policy.policy.values()})  # type: ignore[union-attr]
        learners.step()
        for _ in range(3):
            counted.clear()
            learners.step()
            assert counted.counts == (num_batches, num_batches)
        learners.train(40)
        assert all(one.counters["updates"] > 0 for one in learners.agents.values())
        counted.clear()
        learners.step()  # the first with the new weights: they are where they were
        assert counted.counts == (num_batches, num_batches)


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("how", [{}, {"mode": "overlap", "learn_in": "serial"}], ids=["sync", "overlap"])
@pytest.mark.parametrize("red", [PPO, DQN], ids=["ppo", "dqn"])
def test_states_come_from_the_device_and_return_to_it(red: Any, how: Any) -> None:
    with CountedDevice() as counted, learning({"red": red, "blue": SAC}, device="meta") as learners:
        learners.train(120, **how)
        assert all(one.counters["updates"] > 0 for one in learners.agents.values())
        for agent, one in learners.agents.items():
            assert learners.policy.policy[agent].module is one.parameters.module.actor  # type: ignore[index]
        before = counted.counts
        learners.load_states(learners.states())
        assert counted.counts > before
        assert learners.agents["red"].parameters.matrix.weights.is_meta


@pytest.mark.slow
def test_policies_in_workers_act_on_the_cpu_with_copies() -> None:
    with CountedDevice() as counted, learning(PPO, device="meta", strategy="process") as learners:
        for policy in learners.policy.policy.values():  # type: ignore[union-attr]
            assert places(policy.module) == {"cpu"}
        learners.train(80)
        size = sum(one.numel() for one in learners.agents["red"].parameters.module.actor.parameters())
        assert sum(int(np.prod(shape)) for shape in counted.returned) >= size, "one transfer for each update"


# ---- the network that acts is the one that learns -------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["sequential", "batch", "gpu"])
def test_agents_act_with_the_parameters_where_the_update_left_them(strategy: Any) -> None:
    """As if each policy had got a copy of the weights after each update."""
    how: dict[str, Any] = {"strategy": strategy, "device": "cpu:0" if strategy == "gpu" else "cpu"}
    with learning(PPO, **how) as learners:
        for _ in range(3):
            learners.train(40)
            observations = learners._observations
            assert observations is not None
            for agent, learner in learners.agents.items():
                policy = learner.policy()  # with a copy, as it is now
                policy.set_state(learners.policy.get_state()[agent][0])
                expected = policy.step_batch(observations[agent])
                before = learners.policy.get_state()
                rows = np.ones(len(expected), bool)
                np.testing.assert_array_equal(
                    learners.policy.step({agent: observations[agent]}, {agent: rows})[agent], expected
                )
                learners.policy.set_state(before)


def test_weights_that_are_loaded_into_the_policy_leave_the_learner_alone() -> None:
    with learning(PPO) as learners:
        agent, learner = next(iter(learners.agents.items()))
        own = {name: array.copy() for name, array in learner.parameters.arrays().items()}
        learners.policy.load_state_dict({agent: {n: w + 1 for n, w in learner.acting_weights().items()}})
        assert all((own[name] == array).all() for name, array in learner.parameters.arrays().items())
        policy: Any = learners.policy.policy[agent]  # type: ignore[index]
        assert isinstance(policy, LearnerPolicy)
        assert policy.module is not learner.parameters.module.actor


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_workers_do_not_learn_for_a_device() -> None:
    text = r"device='meta' was given with {}='process': worker processes learn on the CPU.* Give {}='"
    with pytest.raises(ValueError, match=text.format(*["update_mode"] * 2)):
        learning(PPO, device="meta", update_mode="process").__enter__()
    with learning(PPO, device="meta") as learners, pytest.raises(ValueError, match=text.format(*["learn_in"] * 2)):
        learners.train(40, mode="overlap")
    assert isinstance(learners, IndependentLearners)


def test_auto_tries_no_workers_for_a_device() -> None:
    agents = learners({"red": CASES["ppo"], "blue": CASES["ppo"]})
    for one in agents.values():
        one.parameters.to("meta")
    with AutoUpdates({agent: one.parameters for agent, one in agents.items()}) as auto:
        auto.seconds["sequential"] = [1.0] * 5
        with CountedDevice():
            live(agents, 0, 8)
            auto.update(plans(agents))
    assert auto._current.name == "fused"
    assert auto._untried in ([], ["thread"])
