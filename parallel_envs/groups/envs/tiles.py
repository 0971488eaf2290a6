"""Rooms made of tiles: as text, as coordinates, and as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parallel_envs.choices import RenderMode, TileFormat, words
from parallel_envs.groups.envs.fields import choice

Picture = NDArray[np.uint8]
Color = tuple[int, int, int]

FORMATS: tuple[str, ...] = words(TileFormat)
RENDER_MODES: tuple[str, ...] = words(RenderMode)

TILE = 16  # pixels


def with_picture(picture: Picture) -> dict[str, Any]:
    """A state that is a picture and has no words of its own: the manager says what stands for it in a prompt."""
    return {"text": "", "images": [picture]}


def render_mode(mode: str | None, own: str, known: Sequence[str] = RENDER_MODES) -> str:
    """What to render, checked: what is asked for, or the env's own."""
    return own if mode is None else choice("mode", mode, known)


def text_only(mode: str | None) -> None:
    """The same for what cannot be drawn."""
    render_mode(mode, "text", known=("text",))


Places = Sequence[tuple[int, int]]
"""Rows and columns, from 0."""


def described(size: tuple[int, int], places: Mapping[str, Places], cells: str, style: str) -> str:
    """A room in words, as RAGEN writes them.

    Args:
        size: How many rows and columns.
        places: Where things are, by what they are called, in this order.
        cells: The room as a grid.
        style: One of `FORMATS`.
    """
    if style == "grid":
        return cells
    lines = [f"{name}: {', '.join(map(str, where))}" for name, where in places.items() if where]
    words = "\n".join([f"Board size: {size[0]} rows x {size[1]} cols (zero-indexed).", *lines])
    return words if style == "coord" else f"Coordinates: \n{words}\nGrid Map: \n{cells}"


def places_of(tiles: Sequence[Sequence[str]], *kinds: str) -> Places:
    """Where there are tiles of these kinds, row by row."""
    return [(row, column) for row, line in enumerate(tiles) for column, kind in enumerate(line) if kind in kinds]


# ---- pictures -----------------------------------------------------------------------------------


def picture(tiles: Sequence[Sequence[str]], stamps: Mapping[str, Picture]) -> Picture:
    """The picture of a room. It is the caller's own."""
    return np.block([[[stamps[kind]] for kind in line] for line in tiles])


def plain(color: Color) -> Picture:
    """A tile of one colour, with a darker edge."""
    tile = np.empty((TILE, TILE, 3), np.uint8)
    tile[:] = np.array(color, np.uint8) // 4 * 3
    tile[1:, 1:] = color
    return tile


def with_square(tile: Picture, color: Color, margin: int) -> Picture:
    """A square on a tile."""
    drawn = tile.copy()
    drawn[margin:-margin, margin:-margin] = color
    return drawn


def with_disc(tile: Picture, color: Color, radius: float) -> Picture:
    """A disc on a tile."""
    drawn = tile.copy()
    offset = np.arange(TILE) - (TILE - 1) / 2
    drawn[offset[:, None] ** 2 + offset[None, :] ** 2 <= radius**2] = color
    return drawn
