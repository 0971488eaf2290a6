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


def described(tiles: Sequence[Sequence[str]], cells: str, style: str, silent: Sequence[str]) -> str:
    """A room in words.

    Args:
        tiles: What is where, by row and column.
        cells: The room as a grid.
        style: One of `FORMATS`.
        silent: What is not worth a line: the floor.
    """
    if style == "grid":
        return cells
    words = coordinates(tiles, silent)
    return words if style == "coord" else f"Coordinates:\n{words}\nGrid:\n{cells}"


def coordinates(tiles: Sequence[Sequence[str]], silent: Sequence[str]) -> str:
    """The size, and a line for each kind of tile: `box: (2, 3), (4, 1)`, row and column from 0."""
    places: dict[str, list[str]] = {}
    for row, line in enumerate(tiles):
        for column, kind in enumerate(line):
            places.setdefault(kind, []).append(f"({row}, {column})")
    lines = [f"{kind}: {', '.join(where)}" for kind, where in sorted(places.items()) if kind not in silent]
    return "\n".join([f"{len(tiles)} rows, {len(tiles[0])} columns; (row, column)", *lines])


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
