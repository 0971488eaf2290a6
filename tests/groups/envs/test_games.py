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
from tests.groups.envs.solvers import shortest_pushes, way_over_ice

# ---- bandit ---------------------------------------------------------------------------------------------------------

HIGHER = {high for pairs in ARM_NAMES.values() for _, high in pairs}
MODES = {"train": "train", "val": "test"}


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
    assert (set(paid[False]), set(paid[True])) == ({0.1}, {0.0, 1.0})
    assert 0.19 < np.mean(paid[True]) < 0.31


def test_either_arm_may_stand_first_the_question_names_both_and_validation_has_its_own_names() -> None:
    own = BanditEnv(BanditConfig(lo_arm_name="Bond", hi_arm_name="Share", action_space_start=0))
    wanted = {mode: {name for pair in ARM_NAMES[split] for name in pair} for mode, split in MODES.items()}
    for env, names in ((BanditEnv(), wanted), (own, {mode: {"Bond", "Share"} for mode in MODES})):
        orders = set()
        for mode in MODES:
            found = set[str]()
            for seed in range(100):
                question, lookup = env.reset(seed, mode), env.action_lookup or {}
                assert list(lookup) == [env.config.action_space_start, env.config.action_space_start + 1]
                assert all(name in question for name in lookup.values())
                orders.add(next(iter(lookup.values())) in HIGHER | {"Share"})
                found.update(lookup.values())
            assert found == names[mode]
        assert orders == {True, False}
    assert wanted["train"].isdisjoint(wanted["val"])
    assert own.step(next(arm for arm, name in (own.action_lookup or {}).items() if name == "Share"))[4]["success"]


def test_members_of_a_group_are_equally_lucky_and_noise_has_the_spread_that_was_asked_for() -> None:
    config = BanditConfig(noise=0.5, num_pulls=6)
    mixed, high, noisy = (
        BanditEnv(config),
        BanditEnv(config),
        BanditEnv(BanditConfig(noise=0.3, num_pulls=4000)),
    )
    for env in (mixed, high, noisy):
        env.reset(9)
    best, other = arm_of(high, True), arm_of(high, False)
    always = [high.step(best)[1] for _ in range(6)]
    sometimes = [mixed.step(arm)[1] for arm in (best, other) * 3]
    assert sometimes[::2] == always[::2]
    assert all(a != b for a, b in zip(sometimes[1::2], always[1::2], strict=True))
    rewards = [noisy.step(arm_of(noisy, False))[1] for _ in range(4000)]
    assert [np.mean(rewards), np.std(rewards)] == pytest.approx([0.1, 0.3], abs=0.02)


def test_success_is_to_have_pulled_the_higher_arm_more_often() -> None:
    env = BanditEnv(BanditConfig(num_pulls=3))
    env.reset(0)
    outcomes = [env.step(arm_of(env, higher)) for higher in (False, True, True)]
    assert [(info["success"], over) for _, _, over, _, info in outcomes] == [(False, False)] * 2 + [(True, True)]
    assert env.metrics() == {"best_arm_lead": pytest.approx(1 / 3)}


# ---- frozen lake ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{}, {"size": 8, "p": 0.7}])
def test_firm_ice_is_crossed_by_a_player_that_sees_the_text_alone(fields: dict[str, Any]) -> None:
    env = FrozenLakeEnv(FrozenLakeConfig(is_slippery=False, **fields))
    for seed in range(25):
        *before, last = way_over_ice(env.reset(seed))
        for action in before:
            _, *told, info = env.step(action)
            assert (told, info["success"], info["action_is_effective"]) == ([0.0, False, False], False, True)
        state, reward, terminated, _, info = env.step(last)
        assert (reward, terminated, info["success"], "√" in state) == (1.0, True, True, True)
        assert env.metrics() == {"tiles_to_goal": 0}


@pytest.mark.parametrize("slippery", [False, True])
def test_slippery_ice_is_gymnasiums_and_goes_astray_and_firm_ice_does_not(slippery: bool) -> None:
    env = FrozenLakeEnv(FrozenLakeConfig(is_slippery=slippery))
    for seed in range(3):
        env.reset(seed)
        own: Any = gymnasium.make("FrozenLake-v1", desc=env._map, is_slippery=slippery).unwrapped
        assert own.P == env._lake.unwrapped.P  # type: ignore[attr-defined]  # the table of FrozenLake
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
    assert ([len(line) for line in lake], lake[0][0], lake[-1][-1]) == ([size] * size, "S", "G")
    assert set("".join(lake)) <= set("SGFH")
    frozen = np.array([[tile != "H" for tile in line] for line in lake])
    assert can_be_crossed(frozen)
    frozen[size // 2, :] = False
    assert not can_be_crossed(frozen)


def test_a_hole_is_the_end_and_is_shown() -> None:
    env = FrozenLakeEnv(FrozenLakeConfig(is_slippery=False, p=0.5))
    ends = set()
    for seed in range(30):
        env.reset(seed)
        for state, reward, terminated, _, info in map(env.step, (3, 2, 3, 2, 3, 2)):
            if terminated:
                ends.add("X" in state)
                assert (reward == 1.0) == info["success"] == ("√" in state) != ("X" in state)
                break
    assert ends == {True, False}


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


@pytest.mark.parametrize(
    ("env", "rows", "columns"),
    [
        (FrozenLakeEnv(FrozenLakeConfig(size=5, render_mode="rgb_array")), 5, 5),
        (SokobanEnv(SokobanConfig(num_boxes=1, dim_x=5, dim_y=7, render_mode="rgb_array")), 5, 7),
    ],
)
def test_pictures_show_the_room_tile_by_tile(env: Any, rows: int, columns: int) -> None:
    state = env.reset(2)
    [image] = state["images"]
    assert (state["text"], image.dtype, image.shape) == ("", np.uint8, (rows * TILE, columns * TILE, 3))
    tiles: dict[str, set[bytes]] = {}
    for place, sign in enumerate(env.render("text").replace("\n", "")):
        row, column = divmod(place, columns)
        tile = image[row * TILE : (row + 1) * TILE, column * TILE : (column + 1) * TILE]
        tiles.setdefault(sign, set()).add(tile.tobytes())
    assert [len(pictures) for pictures in tiles.values()] == [1] * len(tiles)
    assert len(set.union(*tiles.values())) == len(tiles) >= 4
    image[:] = 0  # the caller's own
    assert env.render("rgb_array").any()


def test_coordinates_say_where_everything_is() -> None:
    lake = FrozenLakeEnv(FrozenLakeConfig(size=5, observation_format="coord"))
    told = "Board size: 5 rows x 5 cols (zero-indexed).\nStart: (0, 0)\nGoal: (4, 4)\nPlayer: (0, 0)\nHoles: ("
    assert lake.reset(2).startswith(told)
    state = SokobanEnv(SokobanConfig(num_boxes=1, observation_format="grid_coord")).reset(4)
    words, grid = state.split("\nGrid Map: \n")
    assert words.splitlines()[:2] == ["Coordinates: ", "Board size: 6 rows x 6 cols (zero-indexed)."]
    assert len(words.splitlines()) == 5  # one for each kind but the floor and the walls
    for kind, sign in {"Player": "P", "Boxes": "X", "Targets": "O"}.items():
        [(row, column)] = re.findall(rf"^{kind}: \((\d+), (\d+)\)$", state, re.MULTILINE)
        assert grid.split("\n")[int(row)][int(column)] == sign


# ---- Sokoban --------------------------------------------------------------------------------------------------------


def solves(room: Room, actions: tuple[int, ...]) -> bool:
    """Whether the actions solve the room, none of them in vain."""
    positions = [(room.player, room.boxes)]
    for action in actions:
        positions.append(after(room.floor, positions[-1], moves(room.width)[action]))
    return positions[-1][1] == room.targets and all(before != now for before, now in pairwise(positions))


@pytest.mark.parametrize(
    ("size", "num_boxes", "search_depth"),
    [((6, 6), 3, 300), ((6, 6), 1, 4), ((3, 7), 1, 300), ((7, 9), 2, 300), ((10, 10), 4, 40)],
)
def test_rooms_are_solved_by_their_solutions_within_the_depth(
    size: tuple[int, int], num_boxes: int, search_depth: int
) -> None:
    env = SokobanEnv(SokobanConfig(dim_room=size, num_boxes=num_boxes, search_depth=search_depth))
    lengths = []
    for seed in range(20):
        env.reset(seed)
        room = env.room
        assert len(room.targets) == len(room.boxes) == num_boxes
        assert room.targets.isdisjoint(room.boxes)
        assert room.player not in room.boxes
        lengths.append(len(room.solution))
        assert solves(room, room.solution)
    assert 1 <= min(lengths) <= max(lengths) <= search_depth
    assert search_depth > 4 or max(lengths) == 4


@pytest.mark.parametrize(
    ("fields", "shortest", "longest", "num_seeds"),
    [({}, 1, 99, 40), ({"min_solution_steps": (5, 8)}, 5, 8, 20), ({"num_boxes": 2}, 1, 99, 8)],
)
def test_a_solver_that_sees_the_text_alone_wins_as_fast_as_the_solution(
    fields: dict[str, Any], shortest: int, longest: int, num_seeds: int
) -> None:
    env = SokobanEnv(SokobanConfig(**{"num_boxes": 1, **fields}))
    for seed in range(num_seeds):
        way = shortest_pushes(env.reset(seed))
        assert way is not None
        outcomes = [env.step(action) for action in way]
        assert (*outcomes[-1][2:4], outcomes[-1][4]["success"]) == (True, False, True)
        if "num_boxes" not in fields:
            assert shortest <= len(way) == len(env.room.solution) <= longest
            assert [reward for _, reward, *_ in outcomes] == pytest.approx([-0.1] * (len(way) - 1) + [10.9])
            assert not any(terminated for _, _, terminated, _, _ in outcomes[:-1])
            assert env.metrics() == {"boxes_on_target": 1, "solution_steps": len(way)}


def test_tight_rooms_can_be_made() -> None:
    for size, num_boxes in (((3, 5), 1), ((3, 9), 2), ((4, 5), 2), ((5, 5), 3)):
        SokobanEnv(SokobanConfig(dim_room=size, num_boxes=num_boxes)).reset(0)


def test_a_box_that_leaves_its_target_costs_what_it_brought_and_the_text_is_what_is_there() -> None:
    env = SokobanEnv(SokobanConfig(dim_room=(8, 8), num_boxes=2, max_steps=None, success_reward=0.0, step_reward=0.0))
    seen, draw = set(), np.random.default_rng(0)
    for seed in range(12):
        env.reset(seed)
        on_target, terminated, steps = 0, False, 0
        while not terminated and (steps := steps + 1) <= 400:
            text, reward, terminated, _, info = env.step(int(draw.integers(1, 5)))
            assert reward == info["boxes_on_target"] - on_target
            on_target = info["boxes_on_target"]
            seen.add(reward)
            cells = text.replace("\n", "")
            shown = [{place for place, sign in enumerate(cells) if sign in signs} for signs in ("PS", "X√", "O√S")]
            assert shown == [{env._position[0]}, env._position[1], env.room.targets]
            assert cells.count("√") == on_target
    assert {-1.0, 0.0, 1.0} <= seen


def test_signs_and_names_can_be_others_and_rooms_that_are_not_found_are_named() -> None:
    env = SokobanEnv(SokobanConfig(grid_lookup={0: "W", 1: "."}, action_lookup={1: "North"}))
    assert set(env.reset(0)) >= {"W", ".", "P"}
    assert env.action_lookup == {1: "North", 2: "Down", 3: "Left", 4: "Right"}
    config = SokobanConfig(dim_room=(3, 5), num_boxes=1, min_solution_steps=(5, 95), max_reset_tries=3)
    with pytest.raises(ValueError, match=r"No room of \(3, 5\) with 1 boxes.* in 3 tries"):
        SokobanEnv(config).reset(0)
