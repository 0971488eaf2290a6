"""The same rollouts, to the bit, whoever plays them: one env, or any backend, worker count and autoreset mode."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs import ParallelEnvManager, collect
from parallel_envs.rollouts import Rollouts
from parallel_envs.testing import ScriptedEnv, assert_same_batch
from tests.rollouts.players import LENGTHS, Counting, Loose, Remembering, by_observation, content, scripted
from tests.vector.conftest import Make

NUM_ROLLOUTS = 11
INFO_KEYS = ("int", "float32", "bool", "not there")
POLICIES: dict[str, Callable[[], Any]] = {
    "function": lambda: by_observation,
    "agent": Remembering,
    "batch": Counting,
    "random": lambda: None,
}

modes = pytest.mark.parametrize("mode", list(AutoresetMode))
policies = pytest.mark.parametrize("name", POLICIES)


def collected(envs: Any, name: str, num_rollouts: int = NUM_ROLLOUTS, **settings: Any) -> Rollouts:
    settings = {"seed": 7, "info_keys": INFO_KEYS, "tasks": tasks_of(num_rollouts), **settings}
    return collect(envs, POLICIES[name](), num_rollouts, random_actions=name == "random", **settings)


def tasks_of(num_rollouts: int) -> list[str]:
    return [f"task {place % 4}" for place in range(num_rollouts)]


@cache
def reference(name: str) -> Rollouts:
    """What one env plays, one rollout after another."""
    return collected(scripted(), name)


def assert_same(rollouts: Rollouts, expected: Rollouts) -> None:
    assert_same_batch(content(rollouts), content(expected))


def test_a_rollout_is_what_the_env_plays_by_itself() -> None:
    rollouts, env = reference("function"), scripted()
    for rollout in rollouts:
        observation, _ = env.reset(seed=rollout.seed, options={"task": rollout.task})
        for step in range(len(rollout)):
            assert_same_batch(rollout.observations[step], observation)
            action = by_observation(observation)
            observation, reward, terminated, truncated, info = env.step(np.int64(action))
            assert (rollout.actions[step], rollout.rewards[step]) == (action, reward)
            assert (rollout.terminated[step], rollout.truncated[step]) == (terminated, truncated)
            assert_same_batch(rollout.next_observations[step], observation)
            assert [rollout.infos[key][step] for key in INFO_KEYS] == [info.get(key) for key in INFO_KEYS]
        assert env.ended
    assert len({len(rollout) for rollout in rollouts}) > 2


@pytest.mark.slow(sample=True)
@modes
@pytest.mark.parametrize("copy", [True, False])
@pytest.mark.parametrize(("num_envs", "num_workers"), [(5, 2), (1, 1), (2, 2), (13, 3)])
def test_all_play_what_one_env_plays(
    make: Make, num_envs: int, num_workers: int, copy: bool, mode: AutoresetMode
) -> None:
    fns = [partial(scripted, reuse_buffers=not copy)] * num_envs
    envs = make(fns, num_workers=num_workers, autoreset_mode=mode, copy=copy)
    for name in POLICIES:
        for exact in (False, True):  # rows of these are computed alone anyhow
            assert_same(collected(envs, name, exact=exact), reference(name))


class ScriptedAsFloat32(Loose):
    """What `Loose` observes, in the type that its space says."""

    def _observe(self) -> Any:
        return np.asarray(super()._observe(), np.float32)


@pytest.mark.slow(sample=True)
@modes
def test_observations_come_in_the_types_of_the_space_in_every_mode(make: Make, mode: AutoresetMode) -> None:
    loose = partial(Loose, reuse_buffers=True)
    rollouts = collect(make([loose] * 2, autoreset_mode=mode), by_observation, 4, seed=1)
    assert_same(rollouts, collect(ScriptedAsFloat32(), by_observation, 4, seed=1))
    assert {rollout.chain.dtype.name for rollout in rollouts} == {"float32"}


def test_what_was_played_before_has_no_say() -> None:
    with ParallelEnvManager([scripted] * 3, backend="serial") as envs:
        envs.reset(seed=99)
        envs.step(np.zeros(3, np.int64))
        for _ in range(2):
            assert_same(collected(envs, "batch"), reference("batch"))


@policies
def test_twenty_are_ten_and_ten_more(name: str) -> None:
    envs = scripted()
    together = collected(envs, name, 20, tasks=None)
    first, second = (collected(envs, name, 10, tasks=None, first_id=first_id) for first_id in (0, 10))
    counted_anew = [(*one[:4], *one[5:]) for one in content([*first, *second])]
    assert_same_batch(counted_anew, [(*one[:4], *one[5:]) for one in content(together)])


@settings(max_examples=20)
@given(st.data())
def test_no_lengths_and_numbers_make_a_difference(data: st.DataObject) -> None:
    factory = partial(ScriptedEnv, episode_lengths=data.draw(st.lists(st.integers(1, 9), min_size=1, max_size=4)))
    name, num_rollouts = data.draw(st.sampled_from(sorted(POLICIES))), data.draw(st.integers(1, 9))
    max_steps, mode = data.draw(st.none() | st.integers(1, 6)), data.draw(st.sampled_from(AutoresetMode))
    expected = collected(factory(), name, num_rollouts, max_steps=max_steps)
    fns = [factory] * data.draw(st.integers(1, 6))
    num_workers = data.draw(st.integers(1, len(fns)))
    for backend in ("serial", "thread"):
        with ParallelEnvManager(fns, num_workers=num_workers, backend=backend, autoreset_mode=mode) as envs:
            assert_same(collected(envs, name, num_rollouts, max_steps=max_steps), expected)


def test_seeds_make_all_the_difference() -> None:
    assert {one.seed for one in reference("function")}.isdisjoint(
        {one.seed for one in collected(scripted(), "function", seed=8)}
    )
    assert len({one.seed for one in reference("function")}) == NUM_ROLLOUTS
    assert {len(one) for one in reference("function")} <= set(LENGTHS)
