"""What acting sees and remembers at the ends of inner and outer episodes, against a loop written by hand.

The loop knows the bare environment and the bare network, nothing of wrappers, collection or batches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, flatdim, flatten
from gymnasium.vector import AutoresetMode

from parallel_envs.learners.meta import AGENT_ARCHS, Learner
from parallel_envs.learners.meta.agent import MetaPolicy, make_algorithm, read_algorithm
from parallel_envs.learners.meta.memory import GRU, MemoryConfig
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.rollouts import Rollout
from parallel_envs.seeding import SeedTree
from tests.learners.meta.families import FAST, PPO, Scripted, settings

ROWS, SEEN = 6, 8


def policy(arch: AGENT_ARCHS, space: Any, deterministic: bool = False, form: MemoryConfig = GRU) -> MetaPolicy:
    given = {**PPO, "memory_size": 33, "hidden": [37]} if arch is not AGENT_ARCHS.Markov else {"name": "ppo"}
    seen = Box(-np.inf, np.inf, (SEEN,), np.float32)
    algorithm = make_algorithm(read_algorithm(given, arch), arch, seen, space, form)
    return MetaPolicy(AgentParameters(algorithm, 3).module.actor, algorithm, deterministic=deterministic)


def test_memory_markov_does_not_see_the_step_before() -> None:
    one = policy(AGENT_ARCHS.Memory_Markov, Discrete(5), deterministic=True)
    seen = np.random.default_rng(2).standard_normal((1, SEEN)).astype(np.float32)
    other = seen.copy()
    other[:, -6:] += 5.0  # five numbers of the previous action, one of the reward
    module: Any = one.module
    with torch.no_grad():
        assert torch.equal(module(torch.tensor(seen)), module(torch.tensor(other)))
        other[:, 0] += 1.0
        assert not torch.equal(module(torch.tensor(seen)), module(torch.tensor(other)))
    assert one.initial_state(3) == ()


EPISODES = 3
SPACES = [Discrete(3), Box(-1.0, 2.0, (2,), np.float32)]

modes = pytest.mark.parametrize("mode", list(AutoresetMode))
spaces = pytest.mark.parametrize("space", SPACES, ids=["discrete", "box"])
archs = pytest.mark.parametrize("arch", ["memory", "memory_markov", "markov", "fast weights"])


@dataclass(frozen=True)
class Told:
    """The records of one rollout."""

    features: Any
    actions: Any
    rewards: Any
    outputs: Any


def by_hand(learner: Learner, rollout: Rollout, space: Any) -> Told:
    """Return what a rollout should hold, computed by hand step by step."""
    env, actor, head = Scripted(space), learner.agent.parameters.module.actor, learner.agent.algorithm.head
    draws = SeedTree(learner._tree.child("rollouts").seed()).child("rollout", rollout.id, "policy").generator()
    memory = actor.initial_state(1) if hasattr(actor, "initial_state") else None
    observation, _ = env.reset(seed=rollout.seed, options={"task": rollout.task})
    action: Any = np.zeros(flatdim(space))
    reward, ended, episode = 0.0, 0.0, 0
    told: list[tuple[Any, ...]] = []
    while episode < EPISODES:
        before = [action, [reward]] if learner.settings.policy.arch != "markov" else []
        features = np.concatenate([observation, [ended], *before]).astype(np.float32)
        with torch.inference_mode():
            if memory is None:
                out = actor(torch.tensor(features[None]))
            else:
                out, memory = actor(torch.tensor(features[None]), memory)
        chosen = head.choose(out.numpy(), None, head.noise(draws, 1))[0]
        observation, reward, terminated, truncated, _ = env.step(chosen)
        action, ended = flatten(space, chosen), float(terminated or truncated)
        told.append((features, chosen, reward, out[0].numpy()))
        if terminated or truncated:
            episode += 1
            observation, _ = env.reset(options={"task": rollout.task}) if episode < EPISODES else (observation, {})
    return Told(*map(np.array, zip(*told, strict=True)))


def rollouts_of(arch: str, space: Any, mode: AutoresetMode, exact: bool = True) -> Learner:
    """A learner with 7 rollouts in 3 environments, its weights drawn large so that what it sees decides."""
    given = settings(policy__arch=arch, train__exact=exact, env__num_envs=3)
    if arch == "fast weights":
        given["policy"] |= {"arch": "memory", "memory": FAST}
    given["env"] |= {"manager_options": {"autoreset_mode": mode}, "env_kwargs": {"action_space": space}}
    if arch == "markov":
        given["policy"]["algorithm"] = {"name": "ppo", "hidden": [16], "minibatch_size": 24}
    given["policy"]["algorithm"] = {**given["policy"]["algorithm"], "policy_gain": 1.0}
    learner = Learner(given)
    learner.agent.parameters.matrix.weights.mul_(3.0)
    learner.collect_rollouts_parallel(7, parallel_env=learner.train_env_parallel)
    return learner


@pytest.mark.slow(sample=True)
@archs
@spaces
@modes
def test_rollouts_are_those_of_a_loop_by_hand(arch: str, space: Any, mode: AutoresetMode) -> None:
    with rollouts_of(arch, space, mode) as learner:
        lengths = set()
        for rollout in learner.last_rollouts:
            told = by_hand(learner, rollout, space)
            np.testing.assert_array_equal(rollout.observations, told.features)
            np.testing.assert_array_equal(rollout.actions, told.actions)
            np.testing.assert_array_equal(rollout.rewards, told.rewards)
            lengths.add(len(rollout))
        assert len(learner.last_rollouts) == 7
        assert lengths == {sum((3, 5, 2))}


@pytest.mark.slow(sample=True)
@archs
@spaces
def test_learning_sees_what_acting_saw(arch: str, space: Any) -> None:
    """The outputs that PPO computes from whole sequences are those by which the actions were chosen."""
    with rollouts_of(arch, space, AutoresetMode.NEXT_STEP) as learner:
        algorithm, module = learner.agent.algorithm, learner.agent.parameters.module
        plan = algorithm.draw(learner.agent.to_batch.trajectory(learner.last_rollouts), np.random.default_rng(0))
        with torch.no_grad():
            outputs, *_ = algorithm.see(module, {name: torch.tensor(array) for name, array in plan.arrays.items()})
        for row, rollout in enumerate(learner.last_rollouts):
            told = by_hand(learner, rollout, space)
            np.testing.assert_allclose(outputs[row, :-1].numpy(), told.outputs, atol=2e-5)


@pytest.mark.parametrize("arch", ["memory", "fast weights"])
def test_the_memory_of_one_task_is_not_taken_to_the_next(arch: str) -> None:
    """Two rollouts on one task, with the same draws, are the same whatever was played in their environment before."""
    with rollouts_of(arch, SPACES[0], AutoresetMode.NEXT_STEP) as learner:
        late = learner.last_rollouts[6]
        learner._num_rollouts = late.id
        learner.collect_rollouts_parallel(1, parallel_env=learner.train_env_parallel)
        np.testing.assert_array_equal(learner.last_rollouts[0].actions, late.actions)


@pytest.mark.parametrize("arch", ["memory", "fast weights"])
def test_inner_boundaries_are_remembered(arch: str) -> None:
    """With its memory emptied at inner boundaries the agent would have acted otherwise."""
    with rollouts_of(arch, SPACES[1], AutoresetMode.NEXT_STEP) as learner:
        (rollout, *_), actor = learner.last_rollouts, learner.agent.parameters.module.actor
        second = rollout.observations[int(np.flatnonzero(rollout.observations[:, 3])[0])]
        with torch.inference_mode():
            fresh, _ = actor(torch.tensor(second[None]), actor.initial_state(1))
        told = by_hand(learner, rollout, SPACES[1])
        place = int(np.flatnonzero(told.features[:, 3])[0])
        assert np.abs(fresh.numpy()[0] - told.outputs[place]).max() > 1e-2
