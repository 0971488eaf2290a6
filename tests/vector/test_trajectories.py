"""Every backend, start method and worker count gives Gymnasium's own trajectories, to the bit."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from parallel_envs.testing import InfoKind, RewardKind, ScriptedEnv, check_vector_env
from tests.strategies import scripted_factories
from tests.word_space import WordSpace

MODES = ("NextStep", "SameStep", "Disabled")
NUM_WORKERS = (1, 2, 5)

# Each with its own place in memory, its own way through the pipe, or its own trap.
EVERYTHING = spaces.Dict(
    {
        "empty": spaces.Box(0, 1, (2, 0)),
        "flags": spaces.MultiBinary((2, 2)),
        "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
        "half": spaces.Box(-np.inf, np.inf, (3,), np.float16),
        "image": spaces.Box(0, 255, (5, 4, 3), np.uint8),
        "one of": spaces.OneOf([spaces.Discrete(3), spaces.Text(4), spaces.Box(0, 1, (2,))]),
        "point": spaces.Box(-1, 1, ()),
        "sequence": spaces.Sequence(spaces.Box(0, 1, (2,)), stack=True),
        "shifted": spaces.Discrete(3, start=-2),
        "text": spaces.Text(8, min_length=0),
        "tuple": spaces.Tuple([spaces.MultiDiscrete([2, 3]), WordSpace()]),
    }
)

everything = partial(
    ScriptedEnv,
    EVERYTHING,
    EVERYTHING,
    episode_lengths=(4, 7, 1, 5),
    endings=("terminated", "truncated", "both"),
    rewards=tuple(RewardKind),
    infos=tuple(InfoKind),
    reuse_buffers=True,
)

RUNTIMES = [("process", "fork"), ("process", "forkserver"), ("process", "spawn"), ("serial", None), ("thread", None)]


@pytest.mark.slow(sample=True)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("num_workers", NUM_WORKERS)
@pytest.mark.parametrize(("backend", "context"), RUNTIMES)
def test_trajectories_are_gymnasiums(backend: str, context: str | None, num_workers: int, mode: str) -> None:
    check_vector_env(
        everything,
        seed=11,
        num_steps=18,  # of episodes of 4, 7, 1 and 5
        num_envs=5,
        backend=backend,
        context=context,
        num_workers=num_workers,
        autoreset_mode=mode,
    )


def test_spaces_may_be_given_and_envs_may_differ_in_bounds() -> None:
    single, batched = spaces.Box(-9, 9, (3,)), spaces.Box(-9, 9, (3, 3))
    check_vector_env(ScriptedEnv, seed=2, num_steps=20, num_workers=2, observation_mode=(batched, single))
    factories = [partial(ScriptedEnv, spaces.Box(0, high, (3,), np.float32)) for high in (1, 2, 3)]
    check_vector_env(factories, seed=2, num_steps=20, num_workers=2, observation_mode="different")


quick = partial(settings, derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("backend", ["serial", "thread"])
@quick(max_examples=12)
@given(factory=scripted_factories(), mode=st.sampled_from(MODES), num=st.sampled_from(NUM_WORKERS))
def test_any_space_in_this_process(backend: str, factory: Any, mode: str, num: int) -> None:
    check_vector_env(factory, seed=7, num_steps=12, num_envs=5, backend=backend, num_workers=num, autoreset_mode=mode)


@quick(max_examples=6)
@given(
    factory=scripted_factories(),
    mode=st.sampled_from(MODES),
    num=st.sampled_from([1, 2]),
    shared_memory=st.sampled_from([None, False]),
)
def test_any_space_in_processes(factory: Any, mode: str, num: int, shared_memory: bool | None) -> None:
    check_vector_env(
        factory, seed=7, num_steps=12, num_envs=3, num_workers=num, shared_memory=shared_memory, autoreset_mode=mode
    )
