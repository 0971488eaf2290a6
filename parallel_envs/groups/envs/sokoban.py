"""Sokoban: push the boxes onto the targets. `sokoban_rooms` makes the rooms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from parallel_envs.choices import RenderMode, TileFormat
from parallel_envs.groups.envs import base as fields
from parallel_envs.groups.envs import tiles
from parallel_envs.groups.envs.base import Step, StepCount, action_number, step_info
from parallel_envs.groups.envs.sokoban_rooms import (
    Boxes,
    Room,
    after,
    longest_solution,
    most_boxes,
    moves,
    random_room,
)
from parallel_envs.seeding import SeedTree

KINDS = ("wall", "empty", "target", "box on target", "box", "player", "player on target")
"""Kinds of tiles, by their number in `grid_lookup`."""
WALL, EMPTY, TARGET, BOX_ON_TARGET, BOX, PLAYER, PLAYER_ON_TARGET = range(7)

GRID_LOOKUP = {0: "#", 1: "_", 2: "O", 3: "√", 4: "X", 5: "P", 6: "S"}
DIM_ROOM = (6, 6)
ACTIONS = {1: "Up", 2: "Down", 3: "Left", 4: "Right"}


@dataclass(frozen=True, kw_only=True)
class SokobanConfig:
    """Config of a `SokobanEnv`."""

    dim_room: fields.Span = DIM_ROOM
    """Rows and columns, the outer walls included."""
    dim_x: int | None = None
    """Rows, instead of the first of `dim_room`, which then has this value."""
    dim_y: int | None = None
    """Columns, likewise."""
    num_boxes: int = 3
    """Boxes, and as many targets."""
    search_depth: int = 300
    """The most moves of a solution; most solutions are far shorter."""
    min_solution_steps: fields.Span | None = None
    """The fewest and the most moves of a solution: rooms outside are not used. None: any."""
    max_steps: int | None = 100
    """Steps after which an episode is truncated. None: never."""
    max_reset_tries: int = 1000
    """Rooms that a reset tries before it raises an error."""
    step_reward: float = -0.1
    """Reward of each step."""
    box_reward: float = 1.0
    """Reward for a box that comes onto a target; subtracted for a box that leaves one."""
    success_reward: float = 10.0
    """Reward when all boxes are on targets."""
    action_lookup: Mapping[int, str] = field(default_factory=lambda: dict(ACTIONS))
    """The names of the actions 1 to 4: up, down, left, right."""
    grid_lookup: Mapping[int, str] = field(default_factory=lambda: dict(GRID_LOOKUP))
    """The signs of wall, empty, target, box on target, box, player, player on target: 0 to 6."""
    grid_vocab: Mapping[str, str] | None = None
    """Meanings of the signs in `grid_lookup`. For prompts; the env does not read it."""
    observation_format: TileFormat = "grid"
    """The room in text: a `grid`, coordinates (`coord`), or both (`grid_coord`)."""
    render_mode: RenderMode = "text"
    """States are `text`, or pictures (`rgb_array`)."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen for all others
        rows, columns = fields.pair("dim_room", self.dim_room)
        if (rows, columns) != DIM_ROOM:
            for name, given, size in (("dim_x", self.dim_x, rows), ("dim_y", self.dim_y, columns)):
                if given not in (None, size):
                    raise ValueError(f"{name}={given} and dim_room={[rows, columns]} contradict each other. Give one.")
        rows = rows if self.dim_x is None else self.dim_x
        columns = columns if self.dim_y is None else self.dim_y
        rows = fields.count("dim_room[0]", rows, least=3, most=50)
        columns = fields.count("dim_room[1]", columns, least=3, most=50)
        set_field(self, "dim_room", (rows, columns))
        set_field(self, "grid_lookup", fields.lookup("grid_lookup", self.grid_lookup, GRID_LOOKUP))
        set_field(self, "action_lookup", fields.action_names("action_lookup", self.action_lookup, ACTIONS))
        fields.count("num_boxes", self.num_boxes)
        fields.count("search_depth", self.search_depth, least=self.num_boxes)  # each box takes a move at least
        fields.count_or_none("max_steps", self.max_steps)
        fields.count("max_reset_tries", self.max_reset_tries)
        for name in ("step_reward", "box_reward", "success_reward"):
            fields.number(name, getattr(self, name))
        fields.choice("observation_format", self.observation_format, tiles.FORMATS)
        fields.choice("render_mode", self.render_mode, tiles.RENDER_MODES)
        if max(rows, columns) < 5:
            raise ValueError(
                f"dim_room={self.dim_room} leaves no row or column of three tiles, which a push takes. Give 5 or more."
            )
        most = most_boxes(rows, columns)
        if self.num_boxes > most:
            raise ValueError(
                f"num_boxes={self.num_boxes}: in a room of {rows} by {columns} there is space for {most} at most, with "
                "their targets and a player. Give fewer boxes or a larger room."
            )
        if self.min_solution_steps is not None:
            fewest, most = fields.span("min_solution_steps", self.min_solution_steps, least=1)
            longest = min(self.search_depth, longest_solution(rows, columns, self.num_boxes))
            fields.count("min_solution_steps[0]", fewest, most=longest)
            fields.count("min_solution_steps[1]", most, least=self.num_boxes)  # each box takes a move at least
            set_field(self, "min_solution_steps", (fewest, most))


class SokobanEnv:
    """Push the boxes onto the targets.

    Actions 1 to 4 go up, down, left, right, and push a box that is in the way if the tile behind it is free. Other
    moves have no effect (`action_is_effective` False).

    Rewards are those of gym-sokoban: -0.1 a step, 1 for a box that comes onto a target, -1 for one that leaves it, and
    10 more when all boxes are there, which terminates the episode.

    Rooms are made by this package, not by gym-sokoban's code, so a seed gives another room than there. `room.solution`
    holds actions that solve the room, for oracles; no state contains them.
    """

    uses_global_random = False
    room: Room

    def __init__(self, config: SokobanConfig | None = None) -> None:
        self.config = config or SokobanConfig()
        self.action_lookup: Mapping[Any, str] | None = dict(self.config.action_lookup)
        self._count = StepCount(self.config.max_steps)

    def reset(self, seed: int, mode: str = "train") -> Any:
        config, generator = self.config, SeedTree(seed).child("sokoban").generator()
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
        self._moves = moves(self.room.width)
        self._position = (self.room.player, self.room.boxes)
        self._on_target = 0  # no box begins there
        self._grid = _Grid(self.room, self.config.grid_lookup)
        self._count.start()
        return self._state()

    def step(self, action: Any) -> Step:
        self._count.tick()
        number = action_number(action)
        move = None if number is None else self._moves.get(number)
        effective = move is not None and self._move(move)
        on_target = len(self._position[1] & self.room.targets) if effective else self._on_target
        won = on_target == self.config.num_boxes
        reward = self.config.step_reward + self.config.box_reward * (on_target - self._on_target)
        self._on_target = on_target
        truncated = self._count.close(won)
        info = step_info(success=won, valid=move is not None, effective=effective, boxes_on_target=on_target)
        return self._state(), reward + (self.config.success_reward if won else 0.0), won, truncated, info

    def _move(self, move: int) -> bool:
        """Do a move; return False if it has no effect."""
        before = self._position
        self._position = player, boxes = after(self.room.floor, before, move)
        if player == before[0]:
            return False
        changed = (before[0], player, player + move) if boxes is not before[1] else (before[0], player)
        self._grid.redraw(changed, player, boxes)
        return True

    def _state(self) -> Any:
        if self.config.render_mode == "rgb_array":
            return tiles.picture_state(self._grid.picture())
        return self._grid.text(self.config.observation_format)

    def render(self, mode: str | None = None) -> Any:
        """Return the room as text or as an RGB array; by default in the form of the states."""
        if tiles.checked_mode(mode, self.config.render_mode) == "rgb_array":
            return self._grid.picture()
        return self._grid.text(self.config.observation_format)

    def metrics(self) -> Mapping[str, float]:
        """Return the boxes on targets, and the moves of the known solution."""
        return {"boxes_on_target": self._on_target, "solution_steps": len(self.room.solution)}

    def close(self) -> None:
        """Do nothing: the env holds nothing."""


# ---- drawing --------------------------------------------------------------------------------------------------------


class _Grid:
    """The tiles of a room. A move changes two or three of them, so the others are not drawn again."""

    def __init__(self, room: Room, signs: Mapping[int, str]) -> None:
        self._room = room
        self._signs = signs
        self._kinds = [WALL] * (room.height * room.width)
        self._cells = [signs[WALL]] * len(self._kinds)
        self.redraw(room.floor, room.player, room.boxes)

    def redraw(self, tiles: Boxes | tuple[int, ...], player: int, boxes: Boxes) -> None:
        """Draw these tiles again."""
        targets = self._room.targets
        for tile in tiles:
            kind = PLAYER if tile == player else BOX if tile in boxes else EMPTY
            if tile in targets:
                kind = _ON_TARGET[kind]
            self._kinds[tile] = kind
            self._cells[tile] = self._signs[kind]

    def text(self, style: str) -> str:
        width, cells = self._room.width, self._cells
        grid = "\n".join(["".join(cells[start : start + width]) for start in range(0, len(cells), width)])
        if style == "grid":  # the usual style, at every step
            return grid
        named = self._named()
        places = {name: tiles.places_of(named, *kinds) for name, kinds in _LISTED.items()}
        return tiles.room_as_text((self._room.height, self._room.width), places, grid, style)

    def picture(self) -> tiles.Picture:
        return tiles.room_as_picture(self._named(), _stamps())

    def _named(self) -> list[list[str]]:
        width, kinds = self._room.width, self._kinds
        return [[KINDS[kind] for kind in kinds[start : start + width]] for start in range(0, len(kinds), width)]


_LISTED = {
    "Targets": ("target", "box on target", "player on target"),
    "Boxes": ("box",),
    "Boxes on target": ("box on target",),
    "Player": ("player",),
    "Player on target": ("player on target",),
}
"""Lines of the coordinates: the kinds of tiles in each."""
_ON_TARGET = {EMPTY: TARGET, BOX: BOX_ON_TARGET, PLAYER: PLAYER_ON_TARGET}


@cache
def _stamps() -> Mapping[str, tiles.Picture]:
    floor = tiles.plain((210, 200, 180))
    target = tiles.with_disc(floor, (200, 60, 60), 3)
    return {
        "wall": tiles.plain((90, 90, 100)),
        "empty": floor,
        "target": target,
        "box": tiles.with_square(floor, (160, 110, 50), 2),
        "box on target": tiles.with_square(target, (90, 160, 70), 2),
        "player": tiles.with_disc(floor, (50, 90, 200), 6),
        "player on target": tiles.with_disc(tiles.with_disc(floor, (200, 60, 60), 7.5), (50, 90, 200), 6),
    }
