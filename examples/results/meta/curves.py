"""Write the curves of runs down: a CSV and an SVG each, from their metrics.

    python examples/results/meta/curves.py runs/bandits-0 runs/gridnavi-0

`runs/bandits-0` becomes `bandits-0.csv` and `bandits-0.svg` beside this file, or in the folder after `--into`. Each row
is an evaluation: steps of the environment so far, minutes of collecting and learning, the mean return of a rollout, and
that of each inner episode.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from parallel_envs.cli.report_page import new_figure, svg_of

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Point:
    """One evaluation."""

    steps: int
    minutes: float
    total: float
    by_episode: tuple[float, ...]


def read(run: Path) -> list[Point]:
    """The evaluations of a run, the first ones first."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [point(line) for line in lines if "evaluation" in line]


def point(line: dict[str, object]) -> Point:
    seconds, told = line["seconds"], line["evaluation"]
    assert isinstance(seconds, dict)
    assert isinstance(told, dict)
    minutes = (seconds["collect"] + seconds["learn"]) / 60
    return Point(int(str(line["steps"])), minutes, told["total"], tuple(told["by_episode"]))


def write_csv(points: Sequence[Point], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        episodes = [f"episode_{number}" for number in range(1, len(points[0].by_episode) + 1)]
        writer.writerow(["steps", "minutes", "total", *episodes])
        for one in points:
            numbers = (one.total, *one.by_episode)
            writer.writerow([one.steps, f"{one.minutes:.2f}", *(f"{number:.4g}" for number in numbers)])


# ---- pictures -------------------------------------------------------------------------------------------------------


def svg(points: Sequence[Point], title: str) -> str:
    """The mean return of an inner episode over steps: a line for each, from pale (the first) to dark (the last)."""
    figure, axes = new_figure(height=4.5)
    lines = list(zip(*(one.by_episode for one in points), strict=True))
    for number, values in enumerate(lines):
        shade = (200 - 170 * number / max(len(lines) - 1, 1)) / 255
        axes.plot([one.steps for one in points], values, color=(shade, shade, 1.0), linewidth=2)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("steps of the environment")
    axes.set_ylabel("return by inner episode, from pale (first) to dark (last)")
    axes.set_title(title, fontsize=10, loc="left")
    return svg_of(figure, title)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--into", type=Path, default=HERE)
    asked = parser.parse_args()
    for run in asked.runs:
        points = read(run)
        write_csv(points, asked.into / f"{run.name}.csv")
        (asked.into / f"{run.name}.svg").write_text(svg(points, run.name), encoding="utf-8")


if __name__ == "__main__":
    main()
