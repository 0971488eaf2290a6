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

HERE = Path(__file__).parent
WIDTH, HEIGHT, LEFT, BELOW, ABOVE, RIGHT = 640, 360, 60, 44, 30, 20


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
    lines = list(zip(*(one.by_episode for one in points), strict=True))
    low, high = min(map(min, lines)), max(map(max, lines))
    high = high if high > low else low + 1.0
    most = max(one.steps for one in points)

    def place(steps: float, value: float) -> tuple[float, float]:
        x = LEFT + (WIDTH - LEFT - RIGHT) * steps / most
        return x, HEIGHT - BELOW - (HEIGHT - BELOW - ABOVE) * (value - low) / (high - low)

    parts = [axes(low, high, most), f'<text x="{LEFT}" y="18" font-size="14">{title}</text>']
    for number, values in enumerate(lines):
        spots = [place(one.steps, value) for one, value in zip(points, values, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in spots)
        shade = round(200 - 170 * number / max(len(lines) - 1, 1))
        parts.append(f'<polyline points="{path}" fill="none" stroke="rgb({shade},{shade},255)" stroke-width="2"/>')
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif">\n'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>\n{body}\n</svg>\n'
    )


def axes(low: float, high: float, most: int) -> str:
    bottom, right = HEIGHT - BELOW, WIDTH - RIGHT
    lines = [f'<path d="M{LEFT},{ABOVE} V{bottom} H{right}" fill="none" stroke="black"/>']
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        x, y = LEFT + (right - LEFT) * share, bottom - (bottom - ABOVE) * share
        lines.append(
            f'<text x="{x:.0f}" y="{bottom + 16}" font-size="11" text-anchor="middle">{short(most * share)}</text>'
        )
        value = low + (high - low) * share
        lines.append(f'<text x="{LEFT - 6}" y="{y + 4:.0f}" font-size="11" text-anchor="end">{value:.3g}</text>')
    caption = "steps; return by inner episode, from pale (first) to dark (last)"
    lines.append(f'<text x="{LEFT}" y="{HEIGHT - 8}" font-size="11">{caption}</text>')
    return "\n".join(lines)


def short(number: float) -> str:
    return f"{number / 1e6:.3g}M" if number >= 1e6 else f"{number / 1e3:.3g}k"


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
