"""Sokoban: push the boxes onto the targets. Rooms can be solved, because they are made backwards from their end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Interval

from parallel_envs.groups.envs.base import Act, Count, Span, action_number, step_info
from parallel_envs.groups.envs.tiles import Picture, RoomConfig, RoomEnv, plain, with_disc, with_square
from parallel_envs.seeding import SeedTree

WALL, EMPTY, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)
"""Kinds of tiles, by number."""
SIGNS = {WALL: "#", EMPTY: "_", TARGET: "O", BOX_ON_TARGET: "√", BOX: "X", PLAYER: "P", PLAYER_ON_TARGET: "S"}
_ON_TARGET = {EMPTY: TARGET, BOX: BOX_ON_TARGET, PLAYER: PLAYER_ON_TARGET}
ACTIONS = {1: "Up", 2: "Down", 3: "Left", 4: "Right"}
DIM_ROOM = (6, 6)
Side = Annotated[int, Interval(ge=3, le=50)]


@dataclass(frozen=True, kw_only=True)
class SokobanConfig(RoomConfig):
    """Config of a `SokobanEnv`."""

    dim_room: tuple[Side, Side] = DIM_ROOM
    """Rows and columns, the outer walls included."""
    dim_x: Side | None = None
    """Rows, instead of the first of `dim_room`, which then has this value."""
    dim_y: Side | None = None
    """Columns, likewise."""
    num_boxes: Count = 3
    """Boxes, and as many targets."""
    search_depth: int = 300
    """The most moves of a solution; most solutions are far shorter."""
    min_solution_steps: Span | None = None
    """The fewest and the most moves of a solution: rooms outside are not used. None: any."""
    max_reset_tries: Count = 1000
    """Rooms that a reset tries before it raises an error."""
    step_reward: float = -0.1
    """Reward of each step."""
    box_reward: float = 1.0
    """Reward for a box that comes onto a target; subtracted for a box that leaves one."""
    success_reward: float = 10.0
    """Reward when all boxes are on targets."""
    _actions = ACTIONS
    _signs = SIGNS

    def __post_init__(self) -> None:
        super().__post_init__()
        rows, columns = self.dim_room
        if self.dim_room != DIM_ROOM:
            for name, given, size in (("dim_x", self.dim_x, rows), ("dim_y", self.dim_y, columns)):
                if given not in (None, size):
                    raise ValueError(f"{name}={given} and dim_room={[rows, columns]} contradict each other. Give one.")
        rows, columns = self.dim_x or rows, self.dim_y or columns
        self._replace(dim_room=(rows, columns))
        most = ((rows - 2) * (columns - 2) - 1) // 2
        if self.num_boxes > most:
            raise ValueError(
                f"num_boxes={self.num_boxes}: in a room of {rows} by {columns} there is space for {most} at most, with "
                "their targets and a player. Give fewer boxes or a larger room."
            )
        if self.min_solution_steps is not None:
            self._check_spans("min_solution_steps")


class SokobanEnv(RoomEnv):
    """Push the boxes onto the targets.

    Actions 1 to 4 go up, down, left, right, and push a box that is in the way if the tile behind it is free. Other
    moves have no effect (`action_is_effective` False).

    Rewards are those of gym-sokoban: -0.1 a step, 1 for a box that comes onto a target, -1 for one that leaves it, and
    10 more when all boxes are there, which terminates the episode.

    Rooms are made by this package, not by gym-sokoban's code, so a seed gives another room than there. `room.solution`
    holds actions that solve the room, for oracles; no state contains them.
    """

    room: Room
    _seed_name = "sokoban"
    _listed: ClassVar = {
        "Targets": (TARGET, BOX_ON_TARGET, PLAYER_ON_TARGET),
        "Boxes": (BOX,),
        "Boxes on target": (BOX_ON_TARGET,),
        "Player": (PLAYER,),
        "Player on target": (PLAYER_ON_TARGET,),
    }

    def __init__(self, config: SokobanConfig | None = None) -> None:
        super().__init__(config or SokobanConfig())

    def _begin(self, seeds: SeedTree, training: bool) -> None:
        config, generator = self.config, seeds.generator()
        steps = config.min_solution_steps or (1, config.search_depth)
        for _ in range(config.max_reset_tries):
            room = random_room(config.dim_room, config.num_boxes, config.search_depth, steps, generator)
            if room is not None:
                break
        else:
            raise ValueError(
                f"No room of {config.dim_room} with {config.num_boxes} boxes, search_depth={config.search_depth} and "
                f"min_solution_steps={config.min_solution_steps} was found in {config.max_reset_tries} tries. Ask for "
                "a larger room, fewer boxes, or a wider range of solutions."
            )
        self.room = room
        self._moves = moves(room.width)
        self._position = (room.player, room.boxes)
        self._on_target = 0  # no box begins there
        self._tiles = [WALL] * (room.height * room.width)
        self._signs = [config.grid_lookup[WALL]] * len(self._tiles)
        self._redraw(room.floor)

    def _act(self, action: Any) -> Act:
        config, room, before, on_target = self.config, self.room, self._position, self._on_target
        number = action if type(action) is int else action_number(action)  # a call less for nearly all
        move = None if number is None else self._moves.get(number)
        effective = False
        if move is not None:
            self._position = player, boxes = after(room.floor, before, move)
            if effective := player != before[0]:
                self._redraw((before[0], player, player + move) if boxes is not before[1] else (before[0], player))
                on_target = len(boxes & room.targets)
        won = on_target == config.num_boxes
        reward = config.step_reward + config.box_reward * (on_target - self._on_target)
        self._on_target = on_target
        info = step_info(won, move is not None, effective)
        info["boxes_on_target"] = on_target
        return reward + (config.success_reward if won else 0.0), won, info

    def _redraw(self, tiles: Boxes | tuple[int, ...]) -> None:
        """Draw these tiles again: a move changes two or three."""
        (player, boxes), targets, signs = self._position, self.room.targets, self.config.grid_lookup
        for tile in tiles:
            kind = PLAYER if tile == player else BOX if tile in boxes else EMPTY
            if tile in targets:
                kind = _ON_TARGET[kind]
            self._tiles[tile] = kind
            self._signs[tile] = signs[kind]

    def _kinds(self) -> list[list[int]]:
        width, kinds = self.room.width, self._tiles
        return [kinds[start : start + width] for start in range(0, len(kinds), width)]

    def _grid(self) -> str:
        width, signs = self.room.width, self._signs
        return "\n".join(["".join(signs[start : start + width]) for start in range(0, len(signs), width)])

    @staticmethod
    @cache
    def _stamps() -> Sequence[Picture]:
        floor = plain((210, 200, 180))
        target = with_disc(floor, (200, 60, 60), 3)
        box, box_on_target = with_square(floor, (160, 110, 50), 2), with_square(target, (90, 160, 70), 2)
        player = with_disc(floor, (50, 90, 200), 6)
        player_on_target = with_disc(with_disc(floor, (200, 60, 60), 7.5), (50, 90, 200), 6)
        return plain((90, 90, 100)), floor, target, box_on_target, box, player, player_on_target

    def metrics(self) -> Mapping[str, float]:
        """Return the boxes on targets, and the moves of the known solution."""
        return {"boxes_on_target": self._on_target, "solution_steps": len(self.room.solution)}


# ---- rooms ----------------------------------------------------------------------------------------------------------
#
# A floor is carved, the boxes stand on their targets, and moves are undone. A position that is reached by undoing moves
# is solved by doing them. Rooms are flat: the tile in row `r` and column `c` has the number `r * width + c`, so a move
# adds the same number wherever it is made. `search_depth` moves are undone in layers: every position of a layer, with
# every move, makes the next layer. A layer of more than `_WIDEST` positions is thinned at random. If none is, as in
# rooms of 6 by 6 with a single box, the solution is a shortest one.

Boxes = frozenset[int]
Position = tuple[int, Boxes]
"""The tile of the player, and the tiles of the boxes."""

_WIDEST = 64
_TURN_CHANCE = 0.35
_BRUSH_CHANCE = 0.45
_STEPS_PER_SIDE = 1.7
_DIRECTIONS = ((-1, 0), (1, 0), (0, -1), (0, 1))


@dataclass(frozen=True, slots=True)
class Room:
    """A room at the beginning of an episode."""

    height: int
    width: int
    floor: Boxes
    targets: Boxes
    boxes: Boxes
    player: int
    solution: tuple[int, ...]
    """Actions that solve it."""


def moves(width: int) -> dict[int, int]:
    """Return the numbers that the actions up, down, left, right add to the number of a tile."""
    return {1: -width, 2: width, 3: -1, 4: 1}


def after(floor: Boxes, position: Position, move: int) -> Position:
    """Return the position after a move: the same one if the move cannot be done."""
    player, boxes = position
    ahead = player + move
    if ahead not in floor:
        return position
    if ahead not in boxes:
        return ahead, boxes
    beyond = ahead + move
    if beyond not in floor or beyond in boxes:
        return position
    return ahead, boxes - {ahead} | {beyond}


def random_room(
    size: tuple[int, int],
    num_boxes: int,
    search_depth: int,
    solution_steps: tuple[int, int],
    generator: np.random.Generator,
) -> Room | None:
    """Return a room that can be solved in a number of moves in this range, or None if the attempt fails."""
    floor, width = carve(*size, generator), size[1]
    inside = sorted(floor)
    if len(inside) < 2 * num_boxes + 1:
        return None
    targets = frozenset(int(tile) for tile in generator.choice(inside, num_boxes, replace=False))
    # For each position the action that leads to the next one; solved positions need none.
    following: dict[Position, tuple[int, Position | None]] = {
        (player, targets): (0, None) for player in inside if player not in targets
    }
    layers = [list(following)]
    while len(layers) <= search_depth and layers[-1]:
        layer: list[Position] = []
        for position in layers[-1]:
            for action, before in _before(floor, position, width):
                if before not in following:
                    following[before] = (action, position)
                    layer.append(before)
        if len(layer) > _WIDEST:
            kept = generator.choice(len(layer), _WIDEST, replace=False)
            layer = [layer[index] for index in sorted(kept.tolist())]
        layers.append(layer)
    # Of the positions with no box on a target, take one with the boxes farthest from targets.
    places = [divmod(target, width) for target in targets]
    best, farthest = list[Position](), 1
    for layer in layers[solution_steps[0] : solution_steps[1] + 1]:
        for position in layer:
            if position[1] & targets:
                continue
            boxes = (divmod(box, width) for box in position[1])
            distance = sum(min(abs(row - to_row) + abs(column - to) for to_row, to in places) for row, column in boxes)
            if distance > farthest:
                best, farthest = [], distance
            if distance == farthest:
                best.append(position)
    if not best:
        return None
    found = best[int(generator.integers(len(best)))]
    way, (action, after_it) = list[int](), following[found]
    while after_it is not None:
        way.append(action)
        action, after_it = following[after_it]
    return Room(*size, floor, targets, found[1], found[0], tuple(way))


def _before(floor: Boxes, position: Position, width: int) -> Iterator[tuple[int, Position]]:
    """Yield the positions from which one action leads to this one, each with the action."""
    player, boxes = position
    for action, move in moves(width).items():
        came_from = player - move
        if came_from not in floor or came_from in boxes:
            continue
        yield action, (came_from, boxes)
        if player + move in boxes:
            yield action, (came_from, boxes - {player + move} | {player})


def carve(height: int, width: int, generator: np.random.Generator) -> Boxes:
    """Return a connected floor inside the outer walls: the way of a walk with random turns, and tiles around it."""

    def direction() -> tuple[int, int]:
        return _DIRECTIONS[int(generator.integers(4))]

    row, column = int(generator.integers(1, height - 1)), int(generator.integers(1, width - 1))
    step = direction()
    floor = {row * width + column}
    for _ in range(int(_STEPS_PER_SIDE * (height + width))):
        if generator.random() < _TURN_CHANCE:
            step = direction()
        row = min(max(row + step[0], 1), height - 2)
        column = min(max(column + step[1], 1), width - 2)
        floor.add(row * width + column)
        for chance, (down, right) in zip(generator.random(4), _DIRECTIONS, strict=True):
            if chance < _BRUSH_CHANCE and 0 < row + down < height - 1 and 0 < column + right < width - 1:
                floor.add((row + down) * width + column + right)
    return frozenset(floor)
