"""A row's actions depend on its own rollout only."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

from parallel_envs.learners.meta import AGENT_ARCHS
from parallel_envs.learners.meta.agent import MetaPolicy, make_algorithm, read_algorithm
from parallel_envs.learners.meta.memory import GRU, MemoryConfig
from parallel_envs.learners.parameters import AgentParameters
from parallel_envs.policies import Rows
from tests.learners.meta.families import PPO

ROWS, SEEN = 6, 8
FAST_WEIGHTS = MemoryConfig("fast_weights", 5, 6)


def policy(arch: AGENT_ARCHS, space: Any, deterministic: bool = False, form: MemoryConfig = GRU) -> MetaPolicy:
    given = {**PPO, "memory_size": 33, "hidden": [37]} if arch is not AGENT_ARCHS.Markov else {"name": "ppo"}
    seen = Box(-np.inf, np.inf, (SEEN,), np.float32)
    algorithm = make_algorithm(read_algorithm(given, arch), arch, seen, space, form)
    return MetaPolicy(AgentParameters(algorithm, 3).module.actor, algorithm, deterministic=deterministic)


def acted(one: MetaPolicy, observations: Any, state: Any, seeds: list[int]) -> tuple[Any, Any]:
    rows = Rows([np.random.default_rng(seed) for seed in seeds], lambda: list(observations))
    return one.act(observations, state, np.zeros(len(seeds), np.bool_), rows)


def remembered(one: MetaPolicy, source: np.random.Generator) -> tuple[Any, ...]:
    return tuple(source.standard_normal(part.shape).astype(np.float32) for part in one.initial_state(ROWS))


@pytest.mark.parametrize(("arch", "form"), [*((arch, GRU) for arch in AGENT_ARCHS), (AGENT_ARCHS.Memory, FAST_WEIGHTS)])
@pytest.mark.parametrize("space", [Discrete(5), Box(-1.0, 1.0, (3,), np.float32)], ids=["discrete", "box"])
def test_a_row_does_not_depend_on_what_the_others_do(arch: AGENT_ARCHS, form: MemoryConfig, space: Any) -> None:
    """To the bit, in batches of the same shape: others see, remember and draw something else altogether."""
    one, source = policy(arch, space, form=form), np.random.default_rng(0)
    for row in range(ROWS):
        seen = source.standard_normal((2, ROWS, SEEN)).astype(np.float32)
        states = [remembered(one, source) for _ in "ab"]
        seen[1, row] = seen[0, row]
        for mine, other in zip(*states, strict=True):
            other[row] = mine[row]
        seeds = [[row if place == row else 100 * which + place for place in range(ROWS)] for which in (1, 2)]
        first, then = (acted(one, seen[which], states[which], seeds[which]) for which in (0, 1))
        np.testing.assert_array_equal(first[0][row], then[0][row])
        for mine, other in zip(first[1], then[1], strict=True):
            np.testing.assert_array_equal(mine[row], other[row])


@pytest.mark.parametrize("form", [GRU, FAST_WEIGHTS])
def test_a_row_by_itself_is_the_same_up_to_rounding(form: MemoryConfig) -> None:
    one, source = policy(AGENT_ARCHS.Memory, Box(-1.0, 1.0, (3,), np.float32), form=form), np.random.default_rng(1)
    seen = source.standard_normal((ROWS, SEEN)).astype(np.float32)
    state = remembered(one, source)
    together, after = acted(one, seen, state, list(range(ROWS)))
    for row in range(ROWS):
        alone, own = acted(one, seen[[row]], tuple(part[[row]] for part in state), [row])
        np.testing.assert_allclose(alone[0], together[row], atol=1e-5)
        np.testing.assert_allclose(own[0][0], after[0][row], atol=1e-5)


def test_actions_depend_on_memory() -> None:
    one = policy(AGENT_ARCHS.Memory, Box(-1.0, 1.0, (3,), np.float32), deterministic=True)
    seen = np.zeros((2, SEEN), np.float32)
    state = (np.stack([np.zeros(33), np.ones(33)]).astype(np.float32),)
    actions, _ = acted(one, seen, state, [0, 0])
    assert np.abs(actions[0] - actions[1]).max() > 1e-6


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
