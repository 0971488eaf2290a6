"""What can be asked of a `FrozenLakeEnv`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from parallel_envs.choices import RenderMode, TileFormat
from parallel_envs.groups.envs.fields import action_names, choice, count, count_or_none, flag, lookup, number
from parallel_envs.groups.envs.tiles import FORMATS, RENDER_MODES

KINDS = ("player", "frozen", "hole", "goal", "player in hole", "player on goal")
"""What may be on a tile, by its number in `grid_lookup`."""

GRID_LOOKUP = {0: "P", 1: "_", 2: "O", 3: "G", 4: "X", 5: "√"}
ACTIONS = {1: "Left", 2: "Down", 3: "Right", 4: "Up"}


@dataclass(frozen=True, kw_only=True)
class FrozenLakeConfig:
    """What the lake is like."""

    size: int = 4
    """Tiles a side, from 2 up."""
    p: float = 0.8
    """The chance of a tile to be frozen rather than a hole."""
    is_slippery: bool = True
    """On ice one goes where one wants in `success_rate` of the steps, else to one of the sides."""
    success_rate: float = 1 / 3
    """On slippery ice, the probability that a step goes in the chosen direction."""
    max_steps: int | None = 100
    """Steps after which an episode is truncated. None: never."""
    action_lookup: Mapping[int, str] = field(default_factory=lambda: dict(ACTIONS))
    """The names of the actions 1 to 4: left, down, right, up."""
    grid_lookup: Mapping[int, str] = field(default_factory=lambda: dict(GRID_LOOKUP))
    """What is shown for player, frozen, hole, goal, player in a hole, player on the goal: 0 to 5."""
    grid_vocab: Mapping[str, str] | None = None
    """What the signs of `grid_lookup` mean. For prompts; the env does not read it."""
    observation_format: TileFormat = "grid"
    """The lake in text: a `grid`, coordinates (`coord`), or both (`grid_coord`)."""
    render_mode: RenderMode = "text"
    """States are `text`, or pictures (`rgb_array`)."""

    def __post_init__(self) -> None:
        count("size", self.size, least=2, most=100)
        number("p", self.p, least=0.0, most=1.0)
        number("success_rate", self.success_rate, least=0.0, most=1.0)
        flag("is_slippery", self.is_slippery)
        count_or_none("max_steps", self.max_steps)
        set_field = object.__setattr__  # the dataclass is frozen for everybody else
        set_field(self, "action_lookup", action_names("action_lookup", self.action_lookup, ACTIONS))
        set_field(self, "grid_lookup", lookup("grid_lookup", self.grid_lookup, GRID_LOOKUP))
        choice("observation_format", self.observation_format, FORMATS)
        choice("render_mode", self.render_mode, RENDER_MODES)
