"""Rooms made of tiles, as text, as coordinates and as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_envs.choices import RenderMode, TileFormat, words
from parallel_envs.groups.envs.base import choice

Picture = NDArray[np.uint8]
Color = tuple[int, int, int]
Places = Sequence[tuple[int, int]]
"""Rows and columns, from 0."""

FORMATS: tuple[str, ...] = words(TileFormat)
RENDER_MODES: tuple[str, ...] = words(RenderMode)

TILE = 16  # pixels


def picture_state(picture: Picture) -> dict[str, Any]:
    """Return a state that is a picture without text: the manager writes a placeholder into prompts."""
    return {"text": "", "images": [picture]}


def checked_mode(mode: str | None, own: str) -> str:
    """Return the render mode that is given, checked, or the env's own for None."""
    return own if mode is None else choice("mode", mode, RENDER_MODES)


def room_as_text(size: tuple[int, int], places: Mapping[str, Places], cells: str, style: str) -> str:
    """Return a room as text, in RAGEN's words."""
    if style == "grid":
        return cells
    lines = [f"{name}: {', '.join(map(str, where))}" for name, where in places.items() if where]
    words = "\n".join([f"Board size: {size[0]} rows x {size[1]} cols (zero-indexed).", *lines])
    return words if style == "coord" else f"Coordinates: \n{words}\nGrid Map: \n{cells}"


def places_of(tiles: Sequence[Sequence[str]], *kinds: str) -> Places:
    """Return the places of tiles of these kinds, row by row."""
    return [(row, column) for row, line in enumerate(tiles) for column, kind in enumerate(line) if kind in kinds]


# ---- pictures -------------------------------------------------------------------------------------------------------


def room_as_picture(tiles: Sequence[Sequence[str]], stamps: Mapping[str, Picture]) -> Picture:
    """Return the picture of a room, as a new array. `stamps`: the picture of each kind of tile."""
    return np.block([[[stamps[kind]] for kind in line] for line in tiles])


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
