"""Families of tasks, and multi-episode envs on them: k inner episodes are one rollout."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from parallel_envs import MultiEpisodeWrapper, collect
from parallel_envs.testing import BanditEnv, GridNaviEnv, PointRobotEnv, TabularMDPEnv, assert_same_batch
from tests.rollouts.players import NUM_ACTIONS, Acting, Counting, Lasting, content, zeros
from tests.vector.conftest import Make

FAMILIES = [BanditEnv, GridNaviEnv, PointRobotEnv, TabularMDPEnv]

modes = pytest.mark.parametrize("mode", list(AutoresetMode))


def several(family: Any, num_episodes: int) -> MultiEpisodeWrapper:
    return MultiEpisodeWrapper(family(), num_episodes)


def lasting_several() -> MultiEpisodeWrapper:
    return MultiEpisodeWrapper(Lasting(), 3, horizon=20)


@pytest.mark.parametrize("num_episodes", [1, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_collected_the_same_by_all(make: Make, family: Any, num_episodes: int) -> None:
    factory = partial(several, family, num_episodes)
    tasks = family.sample_tasks(5)
    expected = collect(factory(), None, 5, tasks, random_actions=True, seed=1)
    rollouts = collect(make([factory] * 3, num_workers=2), None, 5, tasks, random_actions=True, seed=1)
    assert_same_batch(content(rollouts), content(expected))
    assert [rollout.task for rollout in rollouts] == tasks
    assert [len(rollout) for rollout in rollouts] == [num_episodes * family().horizon] * 5


@modes
def test_inner_episodes_are_one_rollout_and_their_ends_are_told(make: Make, mode: AutoresetMode) -> None:
    envs = make([lasting_several] * 2, autoreset_mode=mode)
    keys = ("done_mdp", "inner_episode", "inner_final_obs", "inner_terminated")
    rollouts = collect(envs, Counting(), 4, tasks=[2, 1, 4, 2], seed=1, info_keys=keys)
    for rollout, length in zip(rollouts, [2, 1, 4, 2], strict=True):
        steps = range(1, 3 * length + 1)
        assert [bool(done) for done in rollout.infos["done_mdp"]] == [step % length == 0 for step in steps]
        assert rollout.infos["inner_episode"] == [(step - 1) // length for step in steps]
        assert rollout.terminated.tolist() == [step == 3 * length for step in steps]
        ends = [None if last is None else last.tolist() for last in rollout.infos["inner_final_obs"]]
        assert ends == [[length, length, 1] if step % length == 0 else None for step in steps]
        assert [step is not None for step in rollout.infos["inner_terminated"]] == [e is not None for e in ends]
        observed = [[length, step % length if step < 3 * length else length, step % length == 0] for step in steps]
        assert rollout.next_observations.tolist() == observed
        assert rollout.records["steps"].tolist() == list(range(3 * length))


def test_the_policy_remembers_over_inner_episodes_and_forgets_between_rollouts(make: Make) -> None:
    resets: list[int] = []

    def act(observations: Any, state: Any, marked: Any, rows: Any) -> Any:
        resets.append(int(marked.sum()))
        return zeros(observations, state, marked, rows)

    collect(make([lasting_several] * 2), Acting(act), 5, tasks=[2] * 5)
    assert sum(resets) == 5


def test_every_action_of_a_family_is_drawn_from_its_own_rollout(make: Make) -> None:
    factory = partial(several, GridNaviEnv, 2)
    tasks = GridNaviEnv.sample_tasks(6)
    rollouts = collect(make([factory] * 2), None, 6, tasks, random_actions=True)
    assert len({tuple(rollout.actions.tolist()) for rollout in rollouts}) == 6
    assert np.concatenate([rollout.actions for rollout in rollouts]).max() > NUM_ACTIONS
