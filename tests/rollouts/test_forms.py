"""What collecting gives: rollouts, transitions and sequences, for spaces of every kind. Nothing crosses an end."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs import ParallelEnvManager, collect
from parallel_envs.rollouts import Rollouts
from parallel_envs.testing import InfoKind, ScriptedEnv, assert_same_batch
from tests.rollouts.players import Acting, Counting, Lasting, content, zeros
from tests.strategies import any_spaces
from tests.vector.conftest import Make
from tests.vector.small_envs import ChosenInfoEnv

LENGTHS = [3, 1, 4, 2]
modes = pytest.mark.parametrize("mode", list(AutoresetMode))


SPACES: dict[str, Any] = {
    "box": spaces.Box(-1, 1, (2, 3)),
    "discrete": spaces.Discrete(4, start=-1),
    "multi_discrete": spaces.MultiDiscrete([2, 3]),
    "text": spaces.Text(5),
    "graph": spaces.Graph(spaces.Box(-1, 1, (2,)), spaces.Discrete(3)),
    "dict": spaces.Dict({"position": spaces.Box(-1, 1, (2,)), "word": spaces.Text(3), "turn": spaces.Discrete(3)}),
    "tuple": spaces.Tuple([spaces.Discrete(2), spaces.Dict({"inner": spaces.MultiBinary(3)})]),
}


def lasting(mode: AutoresetMode = AutoresetMode.NEXT_STEP, num_envs: int = 3) -> Rollouts:
    """Rollouts of the lengths above that observe (length, step)."""
    with ParallelEnvManager([Lasting] * num_envs, backend="serial", autoreset_mode=mode) as envs:
        return collect(envs, Counting(), len(LENGTHS), tasks=LENGTHS, seed=2)


def test_rollouts_are_a_sequence_in_the_order_of_ids() -> None:
    rollouts = lasting()
    assert isinstance(rollouts[1:], Rollouts)
    assert [one.id for one in rollouts[1:3]] == [1, 2]
    assert [one.id for one in Rollouts([*rollouts[2:], *rollouts[:2]])] == [0, 1, 2, 3]
    assert (rollouts.total_rewards.tolist(), rollouts.num_steps) == ([6.0, 1.0, 10.0, 3.0], 10)
    assert repr(rollouts[2]) == "Rollout(2, task 2, 4 steps, total reward 10)"
    assert repr(rollouts) == "Rollouts(4 rollouts, 10 steps)"
    for form in (Rollouts().transitions, Rollouts().sequences):
        with pytest.raises(ValueError, match="no rollouts"):
            form()


@modes
def test_transitions_are_every_step_and_cross_no_end(mode: AutoresetMode) -> None:
    transitions = lasting(mode).transitions()
    assert len(transitions) == sum(LENGTHS)
    assert transitions.rollout_ids.tolist() == transitions.task_ids.tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 3, 3]
    lengths, steps = transitions.observations.T
    assert transitions.next_observations.T.tolist() == [lengths.tolist(), (steps + 1).tolist()]
    assert (transitions.terminated == (steps + 1 == lengths)).all()
    assert not transitions.truncated.any()
    assert transitions.records["steps"].tolist() == steps.tolist()


def test_sequences_are_whole_episodes_filled_up_with_zeros() -> None:
    rollouts = lasting()
    sequences = rollouts.sequences()
    assert sequences.lengths.tolist() == LENGTHS
    assert sequences.mask.tolist() == [[step < length for step in range(4)] for length in LENGTHS]
    names = ["observations", "next_observations", "actions", "rewards", "previous_actions", "previous_rewards"]
    names += ["terminated", "truncated"]
    columns = [(getattr(sequences, name), [getattr(one, name) for one in rollouts]) for name in names]
    for batch, parts in [*columns, (sequences.records["draw"], [one.records["draw"] for one in rollouts])]:
        for row, part in zip(batch, parts, strict=True):
            assert_same_batch(row[: len(part)], part)
            assert not row[len(part) :].any()
    assert (len(sequences), sequences.task_ids.tolist()) == (4, [0, 1, 2, 3])


def assert_every_form_holds(make: Any, observed: Any, acted: Any, mode: AutoresetMode) -> None:
    factory = partial(ScriptedEnv, observed, acted, reuse_buffers=True)
    expected = collect(factory(), None, 3, random_actions=True, seed=3)
    with make([factory] * 2, autoreset_mode=mode) as envs:
        rollouts = collect(envs, None, 3, random_actions=True, seed=3)
    assert_same_batch(content(rollouts), content(expected))
    assert_leads_through(factory, expected)
    transitions, sequences = expected.transitions(), expected.sequences()
    assert (len(transitions), len(sequences)) == (expected.num_steps, 3)
    first, length = expected[0], len(expected[0])
    columns, actions = first._columns, first._action_columns

    def cut(columns: Any, batch: Any) -> Any:
        return columns.apply(batch, lambda part: part[:length])

    assert_same_batch(cut(columns, transitions.observations), first.observations)
    assert_same_batch(cut(columns, transitions.next_observations), first.next_observations)
    assert_same_batch(cut(actions, actions.row(sequences.actions, 0)), first.actions)
    assert_same_batch(cut(actions, actions.row(sequences.previous_actions, 0)), first.previous_actions)


def assert_leads_through(factory: Any, rollouts: Rollouts) -> None:
    """The stored actions lead a plain env through the stored observations."""
    env = factory()
    for rollout in rollouts:
        columns, action_columns = rollout._columns, rollout._action_columns
        assert_same_batch(columns.row(rollout.chain, 0), columns.fitted(env.reset(seed=rollout.seed)[0]))
        for step in range(len(rollout)):
            observation, reward, *_ = env.step(action_columns.row(rollout.actions, step))
            assert reward == rollout.rewards[step]
            assert_same_batch(columns.row(rollout.chain, step + 1), columns.fitted(observation))
        assert env.ended


@settings(max_examples=15)
@given(observed=any_spaces(), acted=any_spaces(), mode=st.sampled_from(AutoresetMode))
def test_whatever_the_spaces_are(observed: Any, acted: Any, mode: AutoresetMode) -> None:
    assert_every_form_holds(partial(ParallelEnvManager, backend="serial"), observed, acted, mode)


@pytest.mark.slow(sample=True)
@modes
def test_spaces_of_every_kind(make: Make, mode: AutoresetMode) -> None:
    assert_every_form_holds(make, spaces.Dict(SPACES), spaces.Tuple(SPACES.values()), mode)


def test_actions_may_be_a_list_of_one_for_each_row(make_serial: Make) -> None:
    space = spaces.Dict({"move": spaces.Box(-1, 1, (2,)), "say": spaces.Text(3)})
    action = {"move": np.array([0.5, -0.5], np.float32), "say": "ab"}
    envs = make_serial([partial(ScriptedEnv, action_space=space)] * 2)
    listed = collect(envs, Acting(lambda observations, state, resets, rows: [action] * len(rows)), 3)
    assert_same_batch(content(listed), content(collect(envs, lambda observation: action, 3)))
    assert listed[0].actions["say"] == ("ab",) * len(listed[0])


@pytest.mark.slow(sample=True)
@modes
def test_infos_of_every_kind_are_those_of_the_env(make: Make, mode: AutoresetMode) -> None:
    factory = partial(ScriptedEnv, infos=list(InfoKind), episode_lengths=[4, 9, 2])
    keys = [
        "odd",
        "third",
        "fifth",
        "text",
        "nothing",
        "float16",
        "bool",
        "bool_",
        "table",
        "nested",
        "vector",
        "point",
        "none_such",
    ]
    envs, env = make([factory] * 3, num_workers=2, autoreset_mode=mode), factory()
    for rollout in collect(envs, Acting(zeros), 5, info_keys=keys, seed=4):
        env.reset(seed=rollout.seed)
        for step, action in enumerate(rollout.actions):
            *_, info = env.step(action)
            for key in keys:
                np.testing.assert_equal(rollout.infos[key][step], info.get(key))


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_an_env_may_have_infos_called_as_ours_are(make_serial: Make, mode: AutoresetMode) -> None:
    info = {"final_obs": np.full(2, 77), "final_info": {"a": 1}}
    envs = make_serial([partial(ChosenInfoEnv, info, info)] * 2, autoreset_mode=mode)
    assert {rollout.chain[-1, 1] for rollout in collect(envs, Acting(zeros), 3)} == {3}


@modes
def test_a_rollout_ends_with_the_last_observation_of_its_own_episode(mode: AutoresetMode) -> None:
    for rollout, length in zip(lasting(mode), LENGTHS, strict=True):
        assert rollout.chain.tolist() == [[length, step] for step in range(length + 1)]
        assert rollout.observations.tolist() == [[length, step] for step in range(length)]
        assert rollout.next_observations.tolist() == [[length, step + 1] for step in range(length)]
        assert rollout.rewards.tolist() == [float(step + 1) for step in range(length)]
        assert rollout.total_reward == sum(range(length + 1))
        assert rollout.previous_actions.tolist() == [0, *rollout.actions[:-1]]
        assert rollout.previous_rewards.tolist() == [0, *rollout.rewards[:-1]]
        assert np.array_equal(rollout.records["previous_action"], rollout.previous_actions)
        assert np.array_equal(rollout.records["previous_reward"], rollout.previous_rewards)
        assert rollout.records["steps"].tolist() == list(range(length))
        assert rollout.records["draw"].shape == (length, 2)


@modes
def test_terminated_truncated_and_cut_off_are_told_apart(make_serial: Make, mode: AutoresetMode) -> None:
    for ending in ("terminated", "truncated", "both"):
        envs = make_serial([partial(ScriptedEnv, episode_lengths=[3], endings=[ending])] * 2, autoreset_mode=mode)
        for rollout in collect(envs, Acting(zeros), 3):
            assert rollout.terminated.tolist() == [False, False, ending != "truncated"]
            assert rollout.truncated.tolist() == [False, False, ending != "terminated"]
    rollouts = collect(make_serial([Lasting] * 2, autoreset_mode=mode), Acting(zeros), 4, tasks=LENGTHS, max_steps=3)
    assert [len(rollout) for rollout in rollouts] == [3, 1, 3, 2]
    assert [bool(rollout.terminated[-1]) for rollout in rollouts] == [True, True, False, True]
    assert [bool(rollout.truncated[-1]) for rollout in rollouts] == [False, False, True, False]
    assert rollouts[2].next_observations[-1].tolist() == [4, 3]
