"""Envs named by an id or a spec, and `gymnasium.make_vec`."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from parallel_envs import EnvError, ParallelEnvManager, vector_entry_point
from parallel_envs.testing import assert_same_batch
from tests.vector.conftest import Make
from tests.vector.small_envs import CountingEnv

OURS = "tests/Counting-v0"


def make_counting(**arguments: Any) -> CountingEnv:
    return CountingEnv(**arguments)


@pytest.fixture
def registered() -> Iterator[str]:
    """An id that this process alone knows."""
    gym.register(
        OURS,
        entry_point=make_counting,
        vector_entry_point=vector_entry_point(OURS, num_workers=1),
    )
    yield OURS
    del gym.registry[OURS]


@pytest.fixture
def unpicklable() -> Iterator[dict[str, str]]:
    """Registrations that cannot go to a worker. For each id, the part that the error is to name."""
    lock = threading.Lock()

    def make_locked(**arguments: Any) -> CountingEnv:
        with lock:
            return CountingEnv(**arguments)

    gym.register("tests/Locked-v0", entry_point=make_locked)
    gym.register("tests/LockInKwargs-v0", entry_point=make_counting, kwargs={"lock": lock})
    gym.register("tests/Missing-v0", entry_point="__main__:NoSuchEnv")
    parts = {
        "tests/Locked-v0": "entry_point -> variable 'lock'",
        "tests/LockInKwargs-v0": "kwargs['lock']",
        "tests/Missing-v0": "NoSuchEnv",
    }
    yield parts
    for name in parts:
        del gym.registry[name]


def test_an_id_makes_envs_with_its_spec(make: Make) -> None:
    envs = make("CartPole-v1", num_envs=2, env_kwargs={"render_mode": "rgb_array"})
    assert envs.spec is not None
    assert envs.spec.id == "CartPole-v1"
    assert envs.render_mode == "rgb_array"
    assert "CartPole-v1" in repr(envs)


def test_envs_of_an_id_are_those_of_gymnasium(make: Make) -> None:
    envs, reference = make("CartPole-v1", num_envs=3), gym.make_vec("CartPole-v1", 3, vectorization_mode="sync")
    assert_same_batch(envs.reset(seed=3), reference.reset(seed=3))
    reference.action_space.seed(0)
    for _ in range(60):
        actions = reference.action_space.sample()
        assert_same_batch(envs.step(actions), reference.step(actions))


def test_a_spec_makes_envs(make: Make) -> None:
    spec = gym.spec("CartPole-v1")
    assert make(spec, num_envs=2).reset(seed=0)[0].shape == (2, 4)
    assert spec == gym.spec("CartPole-v1")


def test_keyword_arguments_reach_each_env(make: Make, registered: str) -> None:
    assert make(registered, num_envs=2, env_kwargs={"length": 5}).get_attr("length") == (5, 5)


@pytest.mark.parametrize("context", ["fork", "forkserver", "spawn"])
def test_workers_know_what_this_process_has_registered(make_process: Make, registered: str, context: str) -> None:
    envs = make_process(registered, num_envs=2, num_workers=1, context=context)
    assert envs.reset(seed=0)[0].tolist() == [[0, 0], [0, 0]]


def test_factories_may_name_what_this_process_has_registered(make_process: Make, registered: str) -> None:
    envs = make_process([partial(gym.make, registered, length=4)] * 2)
    assert envs.get_attr("length") == (4, 4)


def test_make_vec_makes_a_manager(registered: str) -> None:
    envs: Any = gym.make_vec(registered, num_envs=3, vectorization_mode="vector_entry_point", length=2)
    with envs:
        assert isinstance(envs.unwrapped, ParallelEnvManager)
        assert envs.unwrapped.num_workers == 1
        assert envs.spec.id == registered
        envs.reset(seed=0)
        terminations = [envs.step(np.zeros(3, int))[2].tolist() for _ in range(2)]
        assert terminations == [[False] * 3, [True] * 3]


def test_unrelated_registrations_that_cannot_be_pickled_do_no_harm(
    make_process: Make, registered: str, unpicklable: dict[str, str]
) -> None:
    assert unpicklable
    assert make_process("CartPole-v1", num_envs=1).reset()[0].shape == (1, 4)
    assert make_process([lambda: gym.make(registered)]).reset()[0].shape == (1, 2)


def test_an_env_whose_registration_cannot_be_pickled_says_so(make_process: Make, unpicklable: dict[str, str]) -> None:
    for name, part in unpicklable.items():
        with pytest.raises(EnvError, match=re.escape(name)) as caught:
            make_process([partial(gym.make, name)])
        assert part in str(caught.value)


def test_an_id_whose_registration_cannot_be_pickled_says_so(make_process: Make, unpicklable: dict[str, str]) -> None:
    for name, part in unpicklable.items():
        with pytest.raises((TypeError, AttributeError), match=re.escape(name)) as caught:
            make_process(name, num_envs=1)
        assert part in str(caught.value)
