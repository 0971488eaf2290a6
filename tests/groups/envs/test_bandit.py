from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from parallel_envs.groups.envs.bandit import ARM_NAMES, BanditConfig, BanditEnv

HIGHER = {high for pairs in ARM_NAMES.values() for _, high in pairs}


def arm_of(env: BanditEnv, higher: bool) -> int:
    """Who knows the names finds the arm."""
    assert env.action_lookup is not None
    return next(int(arm) for arm, name in env.action_lookup.items() if (name in HIGHER) is higher)


def test_who_knows_the_names_wins_and_is_paid_more_in_the_mean() -> None:
    env = BanditEnv()
    paid: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(400):
        for higher, rewards in paid.items():
            env.reset(seed)
            _, reward, terminated, truncated, info = env.step(arm_of(env, higher))
            assert (terminated, truncated, info["success"]) == (True, False, higher)
            rewards.append(reward)
    assert set(paid[False]) == {0.1}
    assert set(paid[True]) == {0.0, 1.0}
    assert 0.19 < np.mean(paid[True]) < 0.31


def test_either_arm_may_stand_first_and_the_question_names_both() -> None:
    env = BanditEnv()
    firsts = set()
    for seed in range(20):
        question = env.reset(seed)
        assert env.action_lookup is not None
        assert all(name in question for name in env.action_lookup.values())
        assert list(env.action_lookup) == [1, 2]
        firsts.add(env.action_lookup[1] in HIGHER)
    assert firsts == {True, False}


def test_validation_has_names_of_its_own() -> None:
    env = BanditEnv()
    names: dict[str, set[str]] = {"train": set(), "val": set()}
    for mode, found in names.items():
        for seed in range(100):
            env.reset(seed, mode)
            assert env.action_lookup is not None
            found.update(env.action_lookup.values())
    assert names["train"] == {name for pair in ARM_NAMES["train"] for name in pair}
    assert names["val"] == {name for pair in ARM_NAMES["test"] for name in pair}
    assert names["train"].isdisjoint(names["val"])


def test_names_can_be_given() -> None:
    env = BanditEnv(BanditConfig(lo_arm_name="Bond", hi_arm_name="Share", action_space_start=0))
    env.reset(0, "val")
    assert env.action_lookup is not None
    assert set(env.action_lookup.items()) in ({(0, "Bond"), (1, "Share")}, {(0, "Share"), (1, "Bond")})
    arm = next(arm for arm, name in env.action_lookup.items() if name == "Share")
    assert env.step(arm)[4]["success"] is True


def test_members_of_a_group_are_equally_lucky() -> None:
    config = BanditConfig(noise=0.5, num_pulls=6)
    mixed, high = BanditEnv(config), BanditEnv(config)
    mixed.reset(9)
    high.reset(9)
    best, other = arm_of(high, True), arm_of(high, False)
    always = [high.step(best)[1] for _ in range(6)]
    sometimes = [mixed.step(arm)[1] for arm in (best, other) * 3]
    assert sometimes[::2] == always[::2]
    assert all(a != b for a, b in zip(sometimes[1::2], always[1::2], strict=True))


def test_noise_has_the_spread_that_was_asked_for() -> None:
    env = BanditEnv(BanditConfig(noise=0.3, num_pulls=4000))
    env.reset(1)
    rewards = [env.step(arm_of(env, False))[1] for _ in range(4000)]
    assert np.mean(rewards) == pytest.approx(0.1, abs=0.02)
    assert np.std(rewards) == pytest.approx(0.3, abs=0.02)


def test_success_is_to_have_pulled_the_higher_arm_more_often() -> None:
    env = BanditEnv(BanditConfig(num_pulls=3))
    env.reset(0)
    best, other = arm_of(env, True), arm_of(env, False)
    outcomes = [env.step(arm) for arm in (other, best, best)]
    assert [info["success"] for *_, info in outcomes] == [False, False, True]
    assert [terminated for _, _, terminated, _, _ in outcomes] == [False, False, True]
    assert env.metrics() == {"best_arm_lead": pytest.approx(1 / 3)}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"split": "tset"}, r"split='tset' is unknown. Did you mean 'test'\?"),
        ({"lo_arm_name": "Bond"}, "lo_arm_name='Bond' and hi_arm_name=None are no pair"),
        ({"lo_arm_name": "Bond", "hi_arm_name": "Bond"}, "lo_arm_name='Bond' and hi_arm_name='Bond' are one name"),
        ({"lo_arm_name": "Bond", "hi_arm_name": "bond "}, "lo_arm_name='Bond' and hi_arm_name='bond ' are one name"),
        ({"hi_arm_hiscore_prob": 1.5}, "hi_arm_hiscore_prob=1.5 is out of range"),
        ({"hi_arm_hiscore_prob": 0.05}, "pay 0.05 in the mean, no more than lo_arm_score=0.1"),
        ({"noise": -1}, "noise=-1 is out of range. Give a number from 0 up"),
        ({"num_pulls": 0}, "num_pulls=0 is out of range"),
        ({"render_mode": "rgb_array"}, "render_mode='rgb_array' is unknown. Give one of 'text'"),
    ],
)
def test_configs_that_cannot_be_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        BanditConfig(**fields)
