"""The bandit, the frozen lake and Sokoban."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.groups.envs.bandit import ARM_NAMES, BanditConfig, BanditEnv
from parallel_envs.groups.envs.frozen_lake import FrozenLakeConfig, FrozenLakeEnv, can_be_crossed, make_map
from parallel_envs.groups.envs.sokoban import (
    Room,
    SokobanConfig,
    SokobanEnv,
    after,
    moves,
)
from parallel_envs.groups.envs.tiles import TILE
from tests.groups.envs.solvers import best_actions, shortest_pushes, way_over_ice

# ---- bandit ---------------------------------------------------------------------------------------------------------

HIGHER = {high for pairs in ARM_NAMES.values() for _, high in pairs}


def arm_of(env: BanditEnv, higher: bool) -> int:
    """The names tell the arms."""
    assert env.action_lookup is not None
    return next(int(arm) for arm, name in env.action_lookup.items() if (name in HIGHER) is higher)


def test_a_player_that_knows_the_names_wins_and_is_paid_more_in_the_mean() -> None:
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


def test_either_arm_may_stand_first_the_question_names_both_and_validation_has_its_own_names() -> None:
    env = BanditEnv()
    names: dict[str, set[str]] = {"train": set(), "val": set()}
    firsts = set()
    for mode, found in names.items():
        for seed in range(100):
            question = env.reset(seed, mode)
            assert env.action_lookup is not None
            assert all(name in question for name in env.action_lookup.values())
            assert list(env.action_lookup) == [1, 2]
            firsts.add(env.action_lookup[1] in HIGHER)
            found.update(env.action_lookup.values())
    assert firsts == {True, False}
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
    assert [np.mean(rewards), np.std(rewards)] == pytest.approx([0.1, 0.3], abs=0.02)


def test_success_is_to_have_pulled_the_higher_arm_more_often() -> None:
    env = BanditEnv(BanditConfig(num_pulls=3))
    env.reset(0)
    best, other = arm_of(env, True), arm_of(env, False)
    outcomes = [env.step(arm) for arm in (other, best, best)]
    assert [info["success"] for *_, info in outcomes] == [False, False, True]
    assert [terminated for _, _, terminated, _, _ in outcomes] == [False, False, True]
    assert env.metrics() == {"best_arm_lead": pytest.approx(1 / 3)}


# ---- frozen lake ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"size": 8, "p": 0.7}])
def test_firm_ice_is_crossed_by_a_player_that_sees_the_text_alone(fields: dict[str, Any]) -> None:
    env = FrozenLakeEnv(FrozenLakeConfig(is_slippery=False, **fields))
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


def test_slippery_ice_is_gymnasiums_and_crossed_more_often_by_a_player_that_knows_the_chances() -> None:
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
        if seed < 5:
            own: Any = gymnasium.make("FrozenLake-v1", desc=env._map, is_slippery=True).unwrapped
            assert own.P == env._lake.unwrapped.P  # type: ignore[attr-defined]  # the table of FrozenLake
    assert wins["best"] >= 22
    assert wins["best"] >= 2 * wins["random"]


@pytest.mark.parametrize("slippery", [False, True])
def test_slippery_ice_goes_astray_and_firm_ice_does_not(slippery: bool) -> None:
    env = FrozenLakeEnv(FrozenLakeConfig(is_slippery=slippery, size=6, p=1.0, max_steps=None))
    env.reset(0)
    astray = 0
    for _ in range(200):
        before, _ = env._place, env.step(3)
        astray += env._place - before not in (0, 1)
        env.step(1)
    assert astray > 50 if slippery else astray == 0


@settings(max_examples=60)
@given(st.integers(2, 9), st.floats(0.0, 1.0), st.integers(0, 2**31))
def test_maps_can_always_be_crossed(size: int, p: float, seed: int) -> None:
    lake = make_map(size, p, np.random.default_rng(seed))
    assert [len(line) for line in lake] == [size] * size
    assert (lake[0][0], lake[-1][-1]) == ("S", "G")
    assert set("".join(lake)) <= set("SGFH")
    frozen = np.array([[tile != "H" for tile in line] for line in lake])
    assert can_be_crossed(frozen)
    frozen[size // 2, :] = False
    assert not can_be_crossed(frozen)


def test_maps_have_as_much_ice_as_asked_for() -> None:
    draw = np.random.default_rng(0)
    ice = {
        p: np.mean([sum(line.count("F") for line in make_map(8, p, draw)) for _ in range(30)]) / 62 for p in (0.7, 0.95)
    }
    assert 0.68 < ice[0.7] < 0.85
    assert 0.93 < ice[0.95] < 0.98
    assert make_map(3, 1.0, draw) == ["SFF", "FFF", "FFG"]


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


def test_pictures_and_coordinates_show_the_lake() -> None:
    env = FrozenLakeEnv(FrozenLakeConfig(size=5, render_mode="rgb_array", observation_format="coord"))
    state = env.reset(2)
    [image] = state["images"]
    assert (state["text"], image.dtype, image.shape) == ("", np.uint8, (5 * TILE, 5 * TILE, 3))
    lines = ["Board size: 5 rows x 5 cols (zero-indexed).", "Start: (0, 0)", "Goal: (4, 4)", "Player: (0, 0)"]
    *told, holes = env.render("text").split("\n")[:5]
    assert told == lines
    assert holes.startswith("Holes: (")
    assert not np.array_equal(image[:TILE, :TILE], image[-TILE:, -TILE:])


# ---- both boards ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("env", "action", "most", "paid"),
    [
        (FrozenLakeEnv(FrozenLakeConfig(is_slippery=False, max_steps=4)), 4, 4, 0.0),  # up, against the edge
        (SokobanEnv(SokobanConfig(dim_room=(3, 7), num_boxes=1, max_steps=3)), 1, 3, -0.1),  # up is a wall
    ],
)
def test_steps_in_vain_count_and_change_nothing(env: Any, action: int, most: int, paid: float) -> None:
    before = env.reset(0)
    for number in range(most):
        state, reward, terminated, truncated, info = env.step(action)
        assert (state, reward, terminated) == (before, paid, False)
        assert truncated is (number == most - 1)
        assert (info["action_is_valid"], info["action_is_effective"]) == (True, False)


# ---- Sokoban --------------------------------------------------------------------------------------------------------

SMALL = SokobanConfig(num_boxes=1)


def solves(room: Room, actions: tuple[int, ...]) -> bool:
    """Whether the actions solve the room, none of them in vain."""
    positions = [(room.player, room.boxes)]
    for action in actions:
        positions.append(after(room.floor, positions[-1], moves(room.width)[action]))
    return positions[-1][1] == room.targets and all(before != now for before, now in pairwise(positions))


@pytest.mark.parametrize(
    "config",
    [
        SMALL,
        SokobanConfig(),
        SokobanConfig(num_boxes=1, search_depth=4),
        SokobanConfig(dim_room=(3, 7), num_boxes=1),
        SokobanConfig(dim_room=(7, 9), num_boxes=2),
        SokobanConfig(dim_room=(10, 10), num_boxes=4, search_depth=40),
    ],
    ids=lambda config: f"{config.dim_room}-{config.num_boxes}-{config.search_depth}",
)
def test_rooms_are_solved_by_their_solutions_within_the_depth(config: SokobanConfig) -> None:
    env = SokobanEnv(config)
    lengths = []
    for seed in range(30):
        env.reset(seed)
        room = env.room
        assert len(room.targets) == len(room.boxes) == config.num_boxes
        assert room.targets.isdisjoint(room.boxes)
        assert room.player not in room.boxes
        lengths.append(len(room.solution))
        assert solves(room, room.solution)
    assert 1 <= min(lengths) <= max(lengths) <= config.search_depth
    assert config.search_depth > 4 or max(lengths) == 4


@pytest.mark.parametrize(
    ("fields", "shortest", "longest", "num_seeds"), [({}, 1, 99, 60), ({"min_solution_steps": (5, 8)}, 5, 8, 25)]
)
def test_a_solver_that_sees_the_text_alone_wins_as_fast_as_the_solution(
    fields: dict[str, Any], shortest: int, longest: int, num_seeds: int
) -> None:
    env = SokobanEnv(SokobanConfig(num_boxes=1, **fields))
    for seed in range(num_seeds):
        way = shortest_pushes(env.reset(seed))
        assert way is not None
        assert shortest <= len(way) == len(env.room.solution) <= longest
        outcomes = [env.step(action) for action in way]
        assert [reward for _, reward, *_ in outcomes] == pytest.approx([-0.1] * (len(way) - 1) + [10.9])
        assert [terminated for _, _, terminated, _, _ in outcomes] == [False] * (len(way) - 1) + [True]
        assert (outcomes[-1][3], outcomes[-1][4]["success"]) == (False, True)
        assert env.metrics() == {"boxes_on_target": 1, "solution_steps": len(way)}
        with pytest.raises(RuntimeError, match="Call reset"):
            env.step(1)


def test_the_solver_wins_with_several_boxes() -> None:
    env = SokobanEnv(SokobanConfig(num_boxes=2))
    for seed in range(12):
        way = shortest_pushes(env.reset(seed))
        assert way is not None
        assert [env.step(action) for action in way][-1][4]["success"] is True


@pytest.mark.parametrize("size", [(3, 5), (3, 9), (4, 5), (5, 5)])
def test_what_the_limits_allow_is_not_refused_where_it_can_be(size: tuple[int, int]) -> None:
    """The tightest rooms that are known to be made: each is made, and its solution is within the limit."""
    num_boxes = {(3, 5): 1, (3, 9): 2, (4, 5): 2, (5, 5): 3}[size]
    env = SokobanEnv(SokobanConfig(dim_room=size, num_boxes=num_boxes))
    env.reset(0)
    moves_needed = len(env.room.solution), len(env.room.solution)
    SokobanConfig(dim_room=size, num_boxes=num_boxes, min_solution_steps=moves_needed)


def test_a_box_that_leaves_its_target_costs_what_it_brought_and_the_text_is_what_is_there() -> None:
    env = SokobanEnv(SokobanConfig(dim_room=(8, 8), num_boxes=2, max_steps=None, success_reward=0.0, step_reward=0.0))
    seen = set()
    draw = np.random.default_rng(0)
    for seed in range(12):
        env.reset(seed)
        on_target = 0
        for _ in range(400):
            text, reward, terminated, _, info = env.step(int(draw.integers(1, 5)))
            assert reward == info["boxes_on_target"] - on_target
            on_target = info["boxes_on_target"]
            seen.add(reward)
            player, boxes = env._position
            cells = [sign for line in text.split("\n") for sign in line]
            assert {place for place, sign in enumerate(cells) if sign in "X√"} == boxes
            assert [place for place, sign in enumerate(cells) if sign in "PS"] == [player]
            assert {place for place, sign in enumerate(cells) if sign in "O√S"} == env.room.targets
            assert cells.count("√") == on_target
            if terminated:
                break
    assert {-1.0, 0.0, 1.0} <= seen


def test_pictures_show_the_room_tile_by_tile() -> None:
    env = SokobanEnv(SokobanConfig(num_boxes=1, dim_x=5, dim_y=7, render_mode="rgb_array"))
    state = env.reset(0)
    assert state["text"] == ""
    [image] = state["images"]
    assert (image.dtype, image.shape) == (np.uint8, (5 * TILE, 7 * TILE, 3))
    text = env.render("text")
    tiles: dict[str, set[bytes]] = {}
    for row, line in enumerate(text.split("\n")):
        for column in range(7):
            tile = image[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
            tiles.setdefault(line[column], set()).add(tile.tobytes())
    assert all(len(pictures) == 1 for pictures in tiles.values())
    assert len(set.union(*tiles.values())) == len(tiles) == 5
    image[:] = 0  # the caller's own
    assert env.render("rgb_array").any()


def test_coordinates_say_where_everything_is() -> None:
    env = SokobanEnv(SokobanConfig(num_boxes=1, observation_format="grid_coord"))
    state = env.reset(4)
    words, grid = state.split("\nGrid Map: \n")
    assert words.splitlines()[:2] == ["Coordinates: ", "Board size: 6 rows x 6 cols (zero-indexed)."]
    assert len(words.splitlines()) == 5  # one for each kind but the floor and the walls
    for kind, sign in {"Player": "P", "Boxes": "X", "Targets": "O"}.items():
        [(row, column)] = re.findall(rf"^{kind}: \((\d+), (\d+)\)$", state, re.MULTILINE)
        assert grid.split("\n")[int(row)][int(column)] == sign


def test_signs_and_names_can_be_others_and_rooms_that_are_not_found_are_named() -> None:
    env = SokobanEnv(SokobanConfig(grid_lookup={0: "W", 1: "."}, action_lookup={1: "North"}))
    assert set(env.reset(0)) >= {"W", ".", "P"}
    assert env.action_lookup == {1: "North", 2: "Down", 3: "Left", 4: "Right"}
    config = SokobanConfig(dim_room=(3, 5), num_boxes=1, min_solution_steps=(5, 95), max_reset_tries=3)
    with pytest.raises(ValueError, match=r"No room of \(3, 5\) with 1 boxes.* in 3 tries"):
        SokobanEnv(config).reset(0)
