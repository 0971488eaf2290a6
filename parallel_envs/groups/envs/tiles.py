"""Base classes of envs in rooms of tiles, which are shown as text, as coordinates and as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from parallel_envs.choices import RenderMode, TileFormat, words
from parallel_envs.groups.envs.base import Count, EnvConfig, Text, TextEnv
from parallel_envs.groups.interface import actions_by_name

Picture = NDArray[np.uint8]
Color = tuple[int, int, int]

TILE = 16  # pixels


@dataclass(frozen=True, kw_only=True)
class RoomConfig(EnvConfig):
    """Fields that the configs of all rooms have."""

    action_lookup: Mapping[int, Text] = field(default_factory=dict)
    """Other names of actions than the usual ones, by number."""
    grid_lookup: Mapping[int, Text] = field(default_factory=dict)
    """Other signs of the kinds of tiles than the usual ones, by number."""
    max_steps: Count | None = 100
    """Steps after which an episode is truncated. None: never."""
    grid_vocab: Mapping[str, str] | None = None
    """Meanings of the signs in `grid_lookup`. For prompts; the env does not read it."""
    observation_format: TileFormat = "grid"
    """The room in text: a `grid`, coordinates (`coord`), or both (`grid_coord`)."""
    render_mode: RenderMode = "text"
    """States are `text`, or pictures (`rgb_array`)."""
    _actions: ClassVar[Mapping[int, str]]
    _signs: ClassVar[Mapping[int, str]]

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, usual in (("action_lookup", self._actions), ("grid_lookup", self._signs)):
            given = getattr(self, name)
            if not given.keys() <= usual.keys():
                raise ValueError(
                    f"{name}={given!r} has other numbers than {list(usual)}. Give texts for some of these."
                )
            self._replace(**{name: {**usual, **given}})
        actions_by_name(self.action_lookup)  # raises if two have one name


class RoomEnv(TextEnv):
    """Base class of envs in a room of tiles. A kind of tile is a number of the config's `grid_lookup`."""

    _render_modes = words(RenderMode)
    _listed: ClassVar[Mapping[str, tuple[int, ...]]]
    """Lines of the coordinates: the kinds of tiles in each."""
    _start: ClassVar[Sequence[str]] = ()
    """Lines of the coordinates before these."""

    def __init__(self, config: Any) -> None:
        super().__init__(config, config.max_steps)
        self.action_lookup = dict(config.action_lookup)

    def _kinds(self) -> list[list[int]]:
        """Return the kinds of tiles, row by row."""
        raise NotImplementedError

    def _grid(self) -> str:
        signs = self.config.grid_lookup
        return "\n".join(["".join([signs[kind] for kind in line]) for line in self._kinds()])

    @staticmethod
    def _stamps() -> Sequence[Picture]:
        """Return the picture of each kind of tile."""
        raise NotImplementedError

    def _text(self) -> str:
        """Return the room as text, in RAGEN's words."""
        style, grid = self.config.observation_format, self._grid()
        if style == "grid":
            return grid
        kinds = self._kinds()
        lines = [f"Board size: {len(kinds)} rows x {len(kinds[0])} cols (zero-indexed).", *self._start]
        for name, own in self._listed.items():
            places = [(r, c) for r, line in enumerate(kinds) for c, kind in enumerate(line) if kind in own]
            if places:
                lines.append(f"{name}: {', '.join(map(str, places))}")
        told = "\n".join(lines)
        return told if style == "coord" else f"Coordinates: \n{told}\nGrid Map: \n{grid}"

    def _picture(self) -> Picture:
        """Return the picture of the room, as a new array."""
        stamps = self._stamps()
        return np.block([[[stamps[kind]] for kind in line] for line in self._kinds()])


# ---- drawing --------------------------------------------------------------------------------------------------------


def plain(color: Color) -> Picture:
    """Return a tile of one colour, with a darker edge."""
    tile = np.empty((TILE, TILE, 3), np.uint8)
    tile[:] = np.array(color, np.uint8) // 4 * 3
    tile[1:, 1:] = color
    return tile


def with_square(tile: Picture, color: Color, margin: int) -> Picture:
    """Return a copy of a tile with a square on it."""
    drawn = tile.copy()
    drawn[margin:-margin, margin:-margin] = color
    return drawn


def with_disc(tile: Picture, color: Color, radius: float) -> Picture:
    """Return a copy of a tile with a disc on it."""
    drawn = tile.copy()
    offset = np.arange(TILE) - (TILE - 1) / 2
    drawn[offset[:, None] ** 2 + offset[None, :] ** 2 <= radius**2] = color
    return drawn
