from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parallel_envs.groups.envs.sokoban import SokobanConfig, SokobanEnv
from parallel_envs.groups.envs.sokoban_rooms import Room, after, carve, longest_solution, most_boxes, most_floor, moves
from parallel_envs.groups.envs.tiles import TILE
from tests.groups.envs.solvers import shortest_pushes

SMALL = SokobanConfig(num_boxes=1)


def played(env: SokobanEnv, actions: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
    total, outcome = 0.0, None
    for action in actions:
        outcome = env.step(action)
        total += outcome[1]
    assert outcome is not None
    return outcome[0], total, *outcome[2:]


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
        SokobanConfig(dim_room=(3, 7), num_boxes=1),
        SokobanConfig(dim_room=(7, 9), num_boxes=2),
        SokobanConfig(dim_room=(10, 10), num_boxes=4, search_depth=40),
    ],
    ids=lambda config: f"{config.dim_room}-{config.num_boxes}",
)
def test_rooms_are_solved_by_their_solutions(config: SokobanConfig) -> None:
    env = SokobanEnv(config)
    for seed in range(15):
        env.reset(seed)
        room = env.room
        assert len(room.targets) == len(room.boxes) == config.num_boxes
        assert room.targets.isdisjoint(room.boxes)
        assert room.player not in room.boxes
        assert 1 <= len(room.solution) <= config.search_depth
        assert solves(room, room.solution)


def test_a_solver_that_sees_the_text_alone_wins_as_fast_as_the_solution() -> None:
    env = SokobanEnv(SMALL)
    for seed in range(60):
        way = shortest_pushes(env.reset(seed))
        assert way is not None
        assert len(way) == len(env.room.solution)
        _, total, terminated, truncated, info = played(env, way)
        assert (terminated, truncated, info["success"]) == (True, False, True)
        assert total == pytest.approx(11.0 - 0.1 * len(way))
        assert env.metrics() == {"boxes_on_target": 1, "solution_steps": len(way)}
        with pytest.raises(RuntimeError, match="Call reset"):
            env.step(1)


def test_the_solver_wins_with_several_boxes() -> None:
    env = SokobanEnv(SokobanConfig(num_boxes=2))
    for seed in range(12):
        way = shortest_pushes(env.reset(seed))
        assert way is not None
        assert played(env, way)[4]["success"] is True


def test_solutions_are_as_long_as_asked_for() -> None:
    env = SokobanEnv(SokobanConfig(num_boxes=1, min_solution_steps=(5, 8)))
    for seed in range(25):
        way = shortest_pushes(env.reset(seed))
        assert way is not None
        assert 5 <= len(way) <= 8


def test_search_depth_bounds_the_solution() -> None:
    env = SokobanEnv(SokobanConfig(search_depth=4, num_boxes=1))
    lengths = []
    for seed in range(30):
        env.reset(seed)
        lengths.append(len(env.room.solution))
    assert max(lengths) == 4


@settings(max_examples=40)
@given(st.integers(3, 14), st.integers(3, 14), st.integers(0, 2**31))
def test_floors_are_connected_and_inside_the_walls(height: int, width: int, seed: int) -> None:
    floor = carve(height, width, np.random.default_rng(seed))
    for tile in floor:
        row, column = divmod(tile, width)
        assert 0 < row < height - 1
        assert 0 < column < width - 1
    reached, edge = {min(floor)}, [min(floor)]
    while edge:
        tile = edge.pop()
        for move in moves(width).values():
            if tile + move in floor and tile + move not in reached:
                reached.add(tile + move)
                edge.append(tile + move)
    assert reached == floor


@settings(max_examples=60)
@given(st.integers(3, 50), st.integers(3, 50), st.integers(0, 2**31))
def test_no_floor_is_larger_than_the_limit(height: int, width: int, seed: int) -> None:
    assert len(carve(height, width, np.random.default_rng(seed))) <= most_floor(height, width)


@pytest.mark.parametrize("size", [(3, 5), (3, 9), (4, 5), (5, 5)])
def test_what_the_limits_allow_is_not_refused_where_it_can_be(size: tuple[int, int]) -> None:
    """The tightest rooms that are known to be made: each is made, and its solution is within the limit."""
    num_boxes = {(3, 5): 1, (3, 9): 2, (4, 5): 2, (5, 5): 3}[size]
    assert num_boxes <= most_boxes(*size)
    env = SokobanEnv(SokobanConfig(dim_room=size, num_boxes=num_boxes))
    env.reset(0)
    assert len(env.room.solution) <= longest_solution(*size, num_boxes)


def test_boxes_are_pushed_and_never_pulled_nor_two_at_a_time() -> None:
    corridor = frozenset(range(1, 7))
    assert after(corridor, (1, frozenset({2})), 1) == (2, frozenset({3}))
    assert after(corridor, (2, frozenset({3})), -1) == (1, frozenset({3}))
    assert after(corridor, (1, frozenset({2, 3})), 1) == (1, frozenset({2, 3}))
    assert after(corridor, (5, frozenset({6})), 1) == (5, frozenset({6}))
    assert after(corridor, (1, frozenset({5})), -1) == (1, frozenset({5}))


def test_rewards_are_those_of_gym_sokoban() -> None:
    env = SokobanEnv(SokobanConfig(dim_room=(3, 7), num_boxes=1))
    for seed in range(40):
        env.reset(seed)
        *before, last = env.room.solution
        for action in before:
            assert env.step(action)[1] == pytest.approx(-0.1)
        assert env.step(last)[1] == pytest.approx(10.9)


def test_a_box_that_leaves_its_target_costs_what_it_brought() -> None:
    env = SokobanEnv(SokobanConfig(dim_room=(8, 8), num_boxes=2, max_steps=None, success_reward=0.0, step_reward=0.0))
    seen = set()
    draw = np.random.default_rng(0)
    for seed in range(12):
        env.reset(seed)
        on_target = 0
        for _ in range(400):
            _, reward, terminated, _, info = env.step(int(draw.integers(1, 5)))
            assert reward == info["boxes_on_target"] - on_target
            on_target = info["boxes_on_target"]
            seen.add(reward)
            if terminated:
                break
    assert {-1.0, 0.0, 1.0} <= seen


def test_the_text_is_what_is_there_after_every_step() -> None:
    env = SokobanEnv(SokobanConfig(max_steps=None))
    draw = np.random.default_rng(1)
    for seed in range(8):
        text = env.reset(seed)
        for _ in range(60):
            text, _, terminated, _, info = env.step(int(draw.integers(1, 5)))
            player, boxes = env._position
            cells = [sign for line in text.split("\n") for sign in line]
            assert {place for place, sign in enumerate(cells) if sign in "X√"} == boxes
            assert [place for place, sign in enumerate(cells) if sign in "PS"] == [player]
            assert {place for place, sign in enumerate(cells) if sign in "O√S"} == env.room.targets
            assert cells.count("√") == info["boxes_on_target"]
            if terminated:
                break


def test_steps_in_vain_count_and_change_nothing() -> None:
    env = SokobanEnv(SokobanConfig(dim_room=(3, 7), num_boxes=1, max_steps=3))
    before = env.reset(0)
    for number in range(3):
        state, reward, terminated, truncated, info = env.step(1)  # up is a wall
        assert (state, reward, terminated) == (before, -0.1, False)
        assert truncated is (number == 2)
        assert (info["action_is_valid"], info["action_is_effective"]) == (True, False)


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


def test_signs_and_names_can_be_others() -> None:
    env = SokobanEnv(SokobanConfig(grid_lookup={0: "W", 1: "."}, action_lookup={1: "North"}))
    assert set(env.reset(0)) >= {"W", ".", "P"}
    assert env.action_lookup == {1: "North", 2: "Down", 3: "Left", 4: "Right"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"dim_room": (2, 6)}, r"dim_room\[0\]=2 is out of range. Give a whole number from 3 to 50"),
        ({"dim_room": 6}, "dim_room=6 is not a pair"),
        ({"dim_room": (7, 7), "dim_y": 9}, r"dim_y=9 and dim_room=\[7, 7\] contradict each other. Give one"),
        ({"dim_x": 4, "dim_y": 4, "num_boxes": 1}, r"dim_room=\(4, 4\) leaves no row or column of three tiles"),
        ({"dim_x": 5, "dim_y": 3, "num_boxes": 2}, "num_boxes=2: in a room of 5 by 3 there is space for 1 at most"),
        ({"dim_room": (3, 30), "num_boxes": 3}, "num_boxes=3: in a room of 3 by 30 there is space for 2 at most"),
        ({"dim_room": (50, 50), "num_boxes": 256}, "num_boxes=256: in a room of 50 by 50 there is space for 255 at"),
        ({"min_solution_steps": (1, 2)}, r"min_solution_steps\[1\]=2 is out of range. Give a whole number from 3 up"),
        (
            {"dim_room": (3, 5), "num_boxes": 1, "min_solution_steps": (6, 9)},
            r"min_solution_steps\[0\]=6 is out of range. Give a whole number from 1 to 5",
        ),
        ({"search_depth": 2}, "search_depth=2 is out of range. Give a whole number from 3 up"),
        ({"num_boxes": 0}, "num_boxes=0 is out of range"),
        ({"num_boxes": True}, "num_boxes=True is not a whole number"),
        ({"max_steps": 0}, "max_steps=0 is out of range"),
        ({"search_depth": 5, "min_solution_steps": (6, 9)}, r"min_solution_steps\[0\]=6 is out of range"),
        ({"min_solution_steps": (9, 6)}, "ends before it begins"),
        ({"step_reward": float("nan")}, "step_reward=nan is out of range"),
        ({"observation_format": "grids"}, r"observation_format='grids' is unknown. Did you mean 'grid'\?"),
        ({"grid_lookup": {7: "x"}}, "grid_lookup={7: 'x'} is not a mapping"),
        ({"action_lookup": {1: ""}}, r"action_lookup\[1\]='' is not a text"),
        ({"action_lookup": {1: "Down"}}, "one name for two actions: 1 is 'Down', and 2 is 'Down'"),
        ({"action_lookup": {3: "n", 4: " N"}}, "one name for two actions: 3 is 'n', and 4 is ' N'"),
    ],
)
def test_configs_that_cannot_be_are_named(fields: dict[str, Any], words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        SokobanConfig(**fields)


def test_rooms_that_are_not_found_are_named() -> None:
    config = SokobanConfig(dim_room=(3, 5), num_boxes=1, min_solution_steps=(5, 95), max_reset_tries=3)
    with pytest.raises(ValueError, match=r"No room of \(3, 5\) with 1 boxes.* in 3 tries"):
        SokobanEnv(config).reset(0)


def test_lists_as_yaml_has_them_do_for_pairs() -> None:
    given: Any = [5, 7]
    assert SokobanConfig(dim_room=given) == SokobanConfig(dim_room=(5, 7))
    assert SokobanConfig(dim_x=5, dim_y=7).dim_room == (5, 7)
    assert SokobanConfig(dim_room=(5, 7), dim_y=7).dim_room == (5, 7)
