"""Learning curves of several seeds: brought onto one grid, summed up, and written as CSV and SVG. No training here."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from parallel_envs.cli.report import mean_and_half_width

Points = Sequence[tuple[int, float]]
"""Steps, and the return at that time."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean over seeds, and half of its 95 % interval; NaN if there is one seed only."""

    mean: float
    half: float

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if math.isnan(self.half) else f"{self.mean:.2f} ± {self.half:.2f}"


@dataclass(frozen=True, slots=True)
class Row:
    """A line of the curve: what stands in the CSV. Seeds that have not finished an episode yet are None."""

    steps: int
    over_seeds: Interval | None
    """None where a seed has not finished an episode yet."""
    seeds: tuple[float | None, ...]


def interval(values: Sequence[float]) -> Interval:
    """Mean and 95 % interval of independent values, by Student's t."""
    return Interval(*mean_and_half_width(values))


def curve(runs: Sequence[Points], total_steps: int, num_rows: int = 50) -> list[Row]:
    """The runs on one grid of steps: each row has every run's last value at or before it."""
    rows = []
    for number in range(1, num_rows + 1):
        steps = total_steps * number // num_rows
        seeds = tuple(_value_at(points, steps) for points in runs)
        known = [value for value in seeds if value is not None]
        rows.append(Row(steps, interval(known) if len(known) == len(runs) else None, seeds))
    return rows


def _value_at(points: Points, steps: int) -> float | None:
    known = [value for at, value in points if at <= steps]
    return known[-1] if known else None


def as_csv(rows: Sequence[Row], seeds: Sequence[int]) -> str:
    """`steps, mean, low, high, seed_0, ...`; what is not known is empty."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["steps", "mean", "low", "high", *(f"seed_{seed}" for seed in seeds)])
    for row in rows:
        found = row.over_seeds
        summed = ("", "", "") if found is None else (found.mean, found.mean - found.half, found.mean + found.half)
        writer.writerow([row.steps, *map(_cell, (*summed, *row.seeds))])
    return file.getvalue()


def _cell(value: float | str | None) -> str:
    return f"{value:.4f}" if isinstance(value, float) else ""


# ---- the picture ----------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT = 640, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 36, 36, 44
_FONT = 'font-family="sans-serif" font-size="12"'


@dataclass(frozen=True, slots=True)
class Axes:
    """From steps and returns to places in the picture."""

    steps: int
    low: float
    high: float

    def x(self, steps: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * steps / self.steps

    def y(self, value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _TOP - _BOTTOM) * (value - self.low) / (self.high - self.low)

    def path(self, points: Points) -> str:
        return " ".join(f"{self.x(steps):.1f},{self.y(value):.1f}" for steps, value in points)


def as_svg(rows: Sequence[Row], title: str, wanted: float) -> str:
    """The mean with its interval as a band, each seed as a thin line, what is wanted as a dashed one."""
    axes = _axes(rows, wanted)
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="22" font-size="14">{escape(title)}</text>',
        *_ticks(axes),
        *_seeds(rows, axes),
        *_mean(rows, axes),
        _level(axes.y(wanted), 'stroke="#444" stroke-dasharray="6 4"'),
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def _axes(rows: Sequence[Row], wanted: float) -> Axes:
    values = [wanted, *(value for row in rows for value in row.seeds if value is not None)]
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 1.0
    return Axes(rows[-1].steps, low - margin, high + margin)


def _ticks(axes: Axes) -> list[str]:
    """Lines at round returns, numbers at both axes."""
    lines = []
    for value in round_numbers(axes.low, axes.high):
        y = axes.y(value)
        lines.append(_level(y, 'stroke="#ddd"'))
        lines.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    for steps in round_numbers(0.0, axes.steps):
        place = f'x="{axes.x(steps):.1f}" y="{_HEIGHT - _BOTTOM + 18}"'
        lines.append(f'<text {place} text-anchor="middle">{steps:,.0f}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    lines.append(f'<text x="{middle:.0f}" y="{_HEIGHT - 8}" text-anchor="middle">steps of environments</text>')
    return lines


def _level(y: float, style: str) -> str:
    return f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" {style}/>'


def round_numbers(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`: from three to seven of them."""
    rough = (high - low) / 6
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough)
    return [step * number for number in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _seeds(rows: Sequence[Row], axes: Axes) -> list[str]:
    lines = []
    for own in zip(*(row.seeds for row in rows), strict=True):
        points = [(row.steps, value) for row, value in zip(rows, own, strict=True) if value is not None]
        lines.append(f'<polyline points="{axes.path(points)}" fill="none" stroke="#9bbbdc"/>')
    return lines


def _mean(rows: Sequence[Row], axes: Axes) -> list[str]:
    known: Mapping[int, Interval] = {row.steps: row.over_seeds for row in rows if row.over_seeds is not None}
    middle = [(steps, found.mean) for steps, found in known.items()]
    line = f'<polyline points="{axes.path(middle)}" fill="none" stroke="#1f5fa8" stroke-width="2"/>'
    if any(math.isnan(found.half) for found in known.values()):
        return [line]
    above = [(steps, min(found.mean + found.half, axes.high)) for steps, found in known.items()]
    below = [(steps, max(found.mean - found.half, axes.low)) for steps, found in known.items()]
    band = axes.path([*above, *reversed(below)])
    return [f'<polygon points="{band}" fill="#1f5fa8" fill-opacity="0.2"/>', line]
