"""Learning curves of several seeds as CSV and SVG, by the code of `parallel-envs report`. No training here."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass

from parallel_envs.cli.report_page import Points, curves_figure, mean_and_half_width, svg_of
from parallel_envs.cli.report_page import curve as mean_curve


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
    over_seeds = {steps: Interval(mean, half) for steps, mean, half in mean_curve(runs, num_rows, total_steps)}
    grid = [total_steps * number // num_rows for number in range(1, num_rows + 1)]
    return [Row(steps, over_seeds.get(steps), tuple(_value_at(points, steps) for points in runs)) for steps in grid]


def _value_at(points: Points, steps: int) -> float | None:
    return next((value for at, value in reversed(points) if at <= steps), None)


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


def as_svg(rows: Sequence[Row], title: str, wanted: float) -> str:
    """The mean with its interval as a band, each seed as a thin line, what is wanted as a dashed one."""
    own = [[(row.steps, row.seeds[seed]) for row in rows] for seed in range(len(rows[0].seeds))]
    seeds = [[(steps, value) for steps, value in points if value is not None] for points in own]
    figure = curves_figure({title: seeds}, level=wanted, title=title, label="mean return", height=4.5)
    return svg_of(figure, title)
