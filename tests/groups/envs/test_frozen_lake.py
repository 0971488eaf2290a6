from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.groups.envs.frozen_lake import FrozenLakeConfig, FrozenLakeEnv, can_be_crossed, make_map
from parallel_envs.groups.envs.tiles import TILE
from tests.groups.envs.solvers import best_actions, way_over_ice

FIRM = FrozenLakeConfig(is_slippery=False)


def test_firm_ice_is_crossed_by_who_sees_the_text_alone() -> None:
    for config in (FIRM, FrozenLakeConfig(is_slippery=False, size=8, p=0.7)):
        env = FrozenLakeEnv(config)
        for seed in range(25):
            *before, last = way_over_ice(env.reset(seed))
            for action in before:
                state, reward, terminated, truncated, info = env.step(action)
                assert (reward, terminated, truncated, info["success"]) == (0.0, False, False, False)
                assert info["action_is_effective"] is True
            state, reward, terminated, _, info = env.step(last)
            assert (reward, terminated, info["success"]) == (1.0, True, True)
            assert "√" in state
            assert env.metrics() == {"tiles_to_goal": 0}


def test_slippery_ice_is_crossed_more_often_by_who_knows_the_chances() -> None:
    env = FrozenLakeEnv()
    wins = {"best": 0, "random": 0}
    draw = np.random.default_rng(0)
    for seed in range(30):
        for player in wins:
            env.reset(seed)
            best = best_actions(env._lake, sweeps=60)
            over = False
            while not over:
                action = best[env._place] + 1 if player == "best" else int(draw.integers(1, 5))
                _, reward, terminated, truncated, _ = env.step(action)
                over = terminated or truncated
                wins[player] += reward == 1.0
    assert wins["best"] >= 22
    assert wins["best"] >= 2 * wins["random"]


def test_it_is_gymnasiums_own_lake_underneath() -> None:
    env = FrozenLakeEnv()
    for seed in range(5):
        env.reset(seed)
        own = gymnasium.make("FrozenLake-v1", desc=env._map, is_slippery=True).unwrapped
        assert own.P == env._lake.unwrapped.P  # type: ignore[attr-defined]  # the table of FrozenLake


def test_slippery_ice_goes_astray_and_firm_ice_does_not() -> None:
    astray = {}
    for slippery in (False, True):
        env = FrozenLakeEnv(FrozenLakeConfig(is_slippery=slippery, size=6, p=1.0, max_steps=None))
        env.reset(0)
        astray[slippery] = 0
        for _ in range(200):
            before, _ = env._place, env.step(3)
            astray[slippery] += env._place - before not in (0, 1)
            env.step(1)
    assert astray[False] == 0
    assert astray[True] > 50


@settings(max_examples=60)
@given(st.integers(2, 9), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_maps_can_always_be_crossed(size: int, p: float, seed: int) -> None:
    lake = make_map(size, p, np.random.default_rng(seed))
    assert [len(line) for line in lake] == [size] * size
    assert (lake[0][0], lake[-1][-1]) == ("S", "G")
    assert set("".join(lake[:1]) + "".join(lake[1:])) <= set("SGFH")
    assert can_be_crossed(np.array([[tile != "H" for tile in line] for line in lake]))


def test_maps_have_as_much_ice_as_asked_for() -> None:
    draw = np.random.default_rng(0)
    ice = {
        p: np.mean([sum(line.count("F") for line in make_map(8, p, draw)) for _ in range(30)]) / 62 for p in (0.7, 0.95)
    }
    assert 0.68 < ice[0.7] < 0.85
    assert 0.93 < ice[0.95] < 0.98
    assert make_map(3, 1.0, draw) == ["SFF", "FFF", "FFG"]


def test_a_wall_of_holes_cannot_be_crossed() -> None:
    frozen = np.ones((4, 4), bool)
    assert can_be_crossed(frozen)
    frozen[2, :] = False
    assert not can_be_crossed(frozen)
    assert not can_be_crossed(np.eye(3, dtype=bool))


def test_a_hole_is_the_end_and_is_shown() -> None:
    env = FrozenLakeEnv(FrozenLakeConfig(is_slippery=False, p=0.5))
    ends = set()
    for seed in range(30):
        env.reset(seed)
        for action in (3, 2, 3, 2, 3, 2):
            state, reward, terminated, _, info = env.step(action)
            if terminated:
                ends.add("X" in state)
                assert (reward == 1.0) == info["success"] == ("√" in state) != ("X" in state)
                break
    assert ends == {True, False}


def test_episodes_are_truncated_where_the_config_says() -> None:
    env = FrozenLakeEnv(FrozenLakeConfig(is_slippery=False, max_steps=4))
    env.reset(0)
    outcomes = [env.step(4) for _ in range(4)]  # up, against the edge
    assert [truncated for _, _, _, truncated, _ in outcomes] == [False, False, False, True]
    assert not any(info["action_is_effective"] for *_, info in outcomes)


def test_pictures_and_coordinates_show_the_lake() -> None:
    env = FrozenLakeEnv(FrozenLakeConfig(size=5, render_mode="rgb_array", observation_format="coord"))
    state = env.reset(2)
    [image] = state["images"]
    assert (state["text"], image.dtype, image.shape) == ("", np.uint8, (5 * TILE, 5 * TILE, 3))
    text = env.render("text")
    lines = ["Board size: 5 rows x 5 cols (zero-indexed).", "Start: (0, 0)", "Goal: (4, 4)", "Player: (0, 0)"]
    assert text.split("\n")[:4] == lines
    assert text.split("\n")[4:][0].startswith("Holes: (")
    player, corner = image[:TILE, :TILE], image[-TILE:, -TILE:]
    assert not np.array_equal(player, corner)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"size": 1}, "size=1 is out of range. Give a whole number from 2 to 100"),
        ({"p": 1.2}, "p=1.2 is out of range. Give a number from 0 to 1"),
        ({"p": "high"}, "p='high' is not a number"),
        ({"is_slippery": 1}, "is_slippery=1 is neither true nor false"),
        ({"max_steps": 0}, "max_steps=0 is out of range"),
        ({"action_lookup": {0: "Left"}}, "is not a mapping of numbers from"),
        ({"action_lookup": {1: " DOWN "}}, "one name for two actions: 1 is ' DOWN ', and 2 is 'Down'"),
    ],
)
def test_configs_that_cannot_be_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        FrozenLakeConfig(**fields)
