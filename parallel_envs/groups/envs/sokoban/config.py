"""What can be asked of a `SokobanEnv`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parallel_envs.choices import RenderMode, TileFormat
from parallel_envs.groups.envs.fields import (
    Span,
    action_names,
    choice,
    count,
    count_or_none,
    lookup,
    number,
    pair,
    span,
)
from parallel_envs.groups.envs.sokoban.limits import longest_solution, most_boxes
from parallel_envs.groups.envs.tiles import FORMATS, RENDER_MODES

KINDS = ("wall", "empty", "target", "box on target", "box", "player", "player on target")
"""What may be on a tile, by its number in `grid_lookup`."""

GRID_LOOKUP = {0: "#", 1: "_", 2: "O", 3: "√", 4: "X", 5: "P", 6: "S"}
DIM_ROOM = (6, 6)
ACTIONS = {1: "Up", 2: "Down", 3: "Left", 4: "Right"}


@dataclass(frozen=True, kw_only=True)
class SokobanConfig:
    """How rooms are made, and what is paid for what."""

    dim_room: Span = DIM_ROOM
    """Rows and columns, the outer walls included."""
    dim_x: int | None = None
    """Rows, another way of saying it; `dim_room` becomes what it says."""
    dim_y: int | None = None
    """Columns, likewise."""
    num_boxes: int = 3
    """Boxes, and as many targets."""
    search_depth: int = 300
    """The most moves that a room is played backwards: it can be solved in so many, and mostly in far fewer."""
    min_solution_steps: Span | None = None
    """The fewest and the most moves of a solution: rooms outside are not used. None: any."""
    max_steps: int | None = 100
    """Steps after which an episode is truncated. None: never."""
    max_reset_tries: int = 1000
    """Rooms that are tried before a reset gives up, with an error that says so."""
    step_reward: float = -0.1
    """Paid for each step."""
    box_reward: float = 1.0
    """Paid for a box that comes onto a target, and taken back for one that leaves it."""
    success_reward: float = 10.0
    """Paid when all boxes are on targets."""
    action_lookup: Mapping[int, str] = field(default_factory=lambda: dict(ACTIONS))
    """The names of the actions 1 to 4: up, down, left, right."""
    grid_lookup: Mapping[int, str] = field(default_factory=lambda: dict(GRID_LOOKUP))
    """What is shown for wall, empty, target, box on target, box, player, player on target: 0 to 6."""
    grid_vocab: Mapping[str, str] | None = None
    """What the signs of `grid_lookup` mean. For prompts; the env does not read it."""
    observation_format: TileFormat = "grid"
    """The room in text: a `grid`, coordinates (`coord`), or both (`grid_coord`)."""
    render_mode: RenderMode = "text"
    """States are `text`, or pictures (`rgb_array`)."""

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # the dataclass is frozen for everybody else
        set_field(self, "dim_room", self._room())
        set_field(self, "grid_lookup", lookup("grid_lookup", self.grid_lookup, GRID_LOOKUP))
        set_field(self, "action_lookup", action_names("action_lookup", self.action_lookup, ACTIONS))
        count("num_boxes", self.num_boxes)
        count("search_depth", self.search_depth, least=self.num_boxes)  # each box takes a move at least
        count_or_none("max_steps", self.max_steps)
        count("max_reset_tries", self.max_reset_tries)
        for name in ("step_reward", "box_reward", "success_reward"):
            number(name, getattr(self, name))
        choice("observation_format", self.observation_format, FORMATS)
        choice("render_mode", self.render_mode, RENDER_MODES)
        self._check_there_is_space()
        if self.min_solution_steps is not None:
            set_field(self, "min_solution_steps", self._lengths(self.min_solution_steps))

    def _room(self) -> Span:
        rows, columns = pair("dim_room", self.dim_room)
        if (rows, columns) != DIM_ROOM:
            for name, said, size in (("dim_x", self.dim_x, rows), ("dim_y", self.dim_y, columns)):
                if said not in (None, size):
                    raise ValueError(f"{name}={said} and dim_room={[rows, columns]} contradict each other. Give one.")
        rows = rows if self.dim_x is None else self.dim_x
        columns = columns if self.dim_y is None else self.dim_y
        return count("dim_room[0]", rows, least=3, most=50), count("dim_room[1]", columns, least=3, most=50)

    def _check_there_is_space(self) -> None:
        rows, columns = self.dim_room
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

    def _lengths(self, given: Span) -> Span:
        """The lengths of solutions that are wanted: of some at least there may be one."""
        fewest, most = span("min_solution_steps", given, least=1)
        longest = min(self.search_depth, longest_solution(*self.dim_room, self.num_boxes))
        count("min_solution_steps[0]", fewest, most=longest)
        count("min_solution_steps[1]", most, least=self.num_boxes)  # each box takes a move at least
        return fewest, most
