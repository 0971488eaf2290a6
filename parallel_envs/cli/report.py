"""`parallel-envs report`: the outcome of runs on the terminal, or runs and evaluations as one page.

The page is one self-contained HTML file: it loads nothing. Runs whose settings differ only in the seed are one curve:
the mean over the seeds, with the 95 % interval of the mean (Student's t).
"""

from __future__ import annotations

import dataclasses
import io
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from parallel_envs.evaluation import EvaluationResult

Points = Sequence[tuple[int, float]]
"""Pairs of steps and the mean return of the latest episodes by then."""

_GRID_ROWS = 60  # points of a curve over seeds
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Half of a 95 % interval of a mean of 2, 3, ... values, in standard errors (Student's t). The last one serves all
larger numbers of values."""
_INK = "#010203"  # stands for the colour of the text, which depends on the reader's light or dark mode
_COLOURS = ("#3b7dd8", "#d9822b", "#3a9d5d", "#b5486d", "#7a5cc4", "#8a7a3c", "#2b9aa5", "#a0522d")


# ---- the command ----------------------------------------------------------------------------------------------------


def report(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Folders of runs or sweeps; with --output also results of evaluations (JSON)."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a page with curves, times, settings and evaluations."),
    ] = None,
) -> None:
    """Show the outcome of training runs: how each ended, and each agent's episodes, last mean return and best.

    Example: parallel-envs report runs/spread

    Example: parallel-envs report runs/seed0 runs/seed1 results.json --output report.html
    """
    from parallel_envs.cli.outputs import plain_errors
    from parallel_envs.cli.sweep import print_trials
    from parallel_envs.errors import MissingExtra
    from parallel_envs.evaluation.records import BadDocument
    from parallel_envs.extras import require
    from parallel_envs.files import write_text

    with plain_errors(BadDocument, MissingExtra, OSError):
        if output is not None and not any(path.is_dir() for path in paths):
            write_text(output, page(paths))  # evaluations alone need no torch
            typer.echo(f"Written: {output}")
            return
        require("A report of a run", "torch", "safetensors")
    from parallel_envs.learners.outcomes import outcome_in
    from parallel_envs.learners.run_folder import BadRun
    from parallel_envs.learners.sweep import is_sweep, sweep_in

    with plain_errors(BadRun, BadDocument, MissingExtra, OSError):
        if output is None:
            for number, path in enumerate(paths):
                if is_sweep(path):
                    print_trials(sweep_in(path))
                    continue
                typer.echo(("\n" if number else "") + outcome_in(path).told())
            return
        write_text(output, page(paths))
    typer.echo(f"Written: {output}")


# ---- what a run left ------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class RunRecord:
    """A run as the page shows it: its settings, its outcome, and the lines of its metrics."""

    name: str
    settings: Mapping[str, Any]
    outcome: Any
    metrics: Sequence[Mapping[str, Any]]

    @classmethod
    def read(cls, folder: Path, name: str) -> RunRecord:
        """Read a run's folder. Raises BadRun or OSError if it is none."""
        from parallel_envs.learners.outcomes import outcome_in
        from parallel_envs.learners.run_folder import BadRun, read_metrics, settings_of
        from parallel_envs.settings import settings_in

        outcome = outcome_in(folder)
        return cls(name, settings_in(settings_of(folder), BadRun), outcome, read_metrics(folder))

    @property
    def seed(self) -> Any:
        return self.settings.get("seed", 0)

    def key(self) -> str:
        """Return a text that is equal for runs that differ only in their seeds and folders."""
        return repr(
            sorted((name, repr(value)) for name, value in self.settings.items() if name not in ("seed", "folder"))
        )

    def returns(self) -> dict[str, Points]:
        """Return the curve of each agent."""
        points: dict[str, list[tuple[int, float]]] = {}
        for line in self.metrics:
            for agent, values in _block(line, "agents").items():
                mean = _numbers(values).get("return", math.nan)
                if math.isfinite(mean) and isinstance(line.get("steps"), int):
                    points.setdefault(agent, []).append((line["steps"], mean))
        return dict(points)


def _block(line: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a block of a line of metrics. It is empty if a damaged file has something else there."""
    found = line.get(name)
    return found if isinstance(found, Mapping) else {}


def _numbers(block: Any) -> dict[str, float]:
    """Return the numbers of a block of metrics."""
    items = block.items() if isinstance(block, Mapping) else ()
    return {name: float(value) for name, value in items if isinstance(value, int | float)}


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of independent values and half of its 95 % interval (NaN for a single value)."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return mean, math.nan
    return mean, _T_95[min(count, len(_T_95) + 1) - 2] * statistics.stdev(values) / math.sqrt(count)


def curve(runs: Sequence[Points], num_rows: int = _GRID_ROWS) -> list[tuple[int, float, float]]:
    """Return steps, mean and half of the interval at evenly spaced steps, up to the end of the shortest run.

    Each run counts with its latest value. Rows before a run's first value are left out.
    """
    total, rows = min(points[-1][0] for points in runs), []
    for number in range(1, num_rows + 1):
        steps = total * number // num_rows
        values = [[value for at, value in points if at <= steps] for points in runs]
        if all(values):
            rows.append((steps, *mean_and_half_width([one[-1] for one in values])))
    return rows


# ---- the page -------------------------------------------------------------------------------------------------------


def page(paths: Sequence[Path]) -> str:
    """Return the page for folders of runs and files of evaluations. Raises MissingExtra if matplotlib is missing."""
    from parallel_envs.cli.sweep import sweep_sections
    from parallel_envs.evaluation import EvaluationResult
    from parallel_envs.extras import require
    from parallel_envs.files import is_file

    require("A report as a page", "matplotlib")
    paths = list({path.resolve(): path for path in paths}.values())
    folders, files = [path for path in paths if path.is_dir()], [path for path in paths if not path.is_dir()]
    swept = [path for path in folders if is_file(path / "sweep.yaml")]
    folders = [path for path in folders if path not in swept]
    names = _short_names(folders)
    runs = [RunRecord.read(folder, name) for folder, name in zip(folders, names, strict=True)]
    results = {name: EvaluationResult.from_json(path) for name, path in zip(_short_names(files), files, strict=True)}
    groups: dict[tuple[str, int], list[RunRecord]] = {}
    seen = Counter[tuple[str, str]]()
    for run in runs:  # a second run with the same seed is no further sample: it begins another curve
        key, seed = run.key(), repr(run.seed)
        groups.setdefault((key, seen[key, seed]), []).append(run)
        seen[key, seed] += 1
    labelled = {_label(members): members for members in groups.values()}
    if swept:
        from parallel_envs.learners.sweep import sweep_in
    sections = [
        *(part for path in swept for part in sweep_sections(sweep_in(path), path.resolve().name)),
        *(_runs_section(runs) if runs else ()),
        *_curves_sections(labelled),
        *(_time_section(runs) if runs else ()),
        *_differences_section(runs),
        *(part for name, result in results.items() for part in _evaluation_section(name, result)),
    ]
    title = ", ".join([*(path.resolve().name for path in swept), *names[:3], *results][:4]) or "Report"
    links = "".join(f'<li><a href="#s{number}">{escape(head)}</a></li>' for number, (head, _) in enumerate(sections))
    body = "".join(
        f'<section id="s{number}"><h2>{escape(head)}</h2>{content}</section>'
        for number, (head, content) in enumerate(sections)
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f'<body><header><h1>{escape(title)}</h1><nav aria-label="Sections"><ul>{links}</ul></nav></header>'
        f"<main>{body}</main><script>{_SCRIPT}</script></body></html>\n"
    )


def _short_names(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each folder's path; whole paths for all if two end alike."""
    last = [path.resolve().name for path in paths]
    names = last if len(set(last)) == len(last) else [str(path) for path in paths]
    return [name.encode("utf-8", "replace").decode() for name in names]


def _label(runs: Sequence[RunRecord]) -> str:
    if len(runs) == 1:
        return runs[0].name
    return f"{runs[0].name} and {len(runs) - 1} more seed{'s' if len(runs) > 2 else ''}"


def _runs_section(runs: Sequence[RunRecord]) -> Iterator[tuple[str, str]]:
    rows = [
        [
            *(run.name, run.settings.get("env", ""), one.algorithm, run.seed),
            *(run.outcome.steps, run.outcome.seconds, run.outcome.ended),
            *(agent, one.episodes, one.last_return, one.best_return),
        ]
        for run in runs
        for agent, one in run.outcome.agents.items()
    ]
    heads = [
        "run",
        "environment",
        "algorithm",
        "seed",
        "steps",
        "seconds",
        "ended by",
        "agent",
        "episodes",
        "last mean return",
        "best",
    ]
    yield "Runs", _table("Runs and their agents", heads, rows)


def _curves_sections(groups: Mapping[str, Sequence[RunRecord]]) -> Iterator[tuple[str, str]]:
    returns = {label: [run.returns() for run in runs] for label, runs in groups.items()}
    agents = dict.fromkeys(agent for runs in returns.values() for points in runs for agent in points)
    pictures = []
    for agent in agents:
        lines = {label: [one[agent] for one in runs if agent in one] for label, runs in returns.items()}
        lines = {label: runs for label, runs in lines.items() if runs}
        figure, axes = _figure()
        for number, (label, runs) in enumerate(lines.items()):
            colour = _COLOURS[number % len(_COLOURS)]
            if len(runs) == 1:
                marker = "o" if len(runs[0]) == 1 else ""
                axes.plot(*zip(*runs[0], strict=True), color=colour, label=_drawn(label), marker=marker)
                continue
            for points in runs:
                axes.plot(*zip(*points, strict=True), color=colour, alpha=0.25, linewidth=0.8)
            if rows := curve(runs):
                steps, means, halves = zip(*rows, strict=True)
                low = [mean - half for mean, half in zip(means, halves, strict=True)]
                high = [mean + half for mean, half in zip(means, halves, strict=True)]
                axes.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0)
                axes.plot(steps, means, color=colour, linewidth=2, label=f"{_drawn(label)} (mean, 95 %)")
            else:  # one run ends before another has its first value
                axes.plot([], [], color=colour, label=_drawn(label))
        axes.set_xlabel("steps of environments")
        axes.set_ylabel("mean return of the last episodes")
        axes.legend(frameon=False, fontsize=8, labelcolor=_INK)
        last = "; ".join(
            f"{label}: {statistics.fmean(points[-1][1] for points in runs):.4g}" for label, runs in lines.items()
        )
        pictures.append(
            _picture(figure, f"Returns of {agent}", f"Mean return of {agent} over the steps. At the end {last}.")
        )
    if pictures:
        yield "Learning curves", "".join(pictures)


def _time_section(runs: Sequence[RunRecord]) -> Iterator[tuple[str, str]]:
    last = {run.name: run.metrics[-1] for run in runs if run.metrics}
    seconds = {name: _numbers(line.get("seconds")) for name, line in last.items()}
    activities = list(dict.fromkeys(activity for own in seconds.values() for activity in own))
    if not activities:
        return
    figure, axes = _figure(height=0.6 + 0.4 * len(last))
    left = [0.0] * len(last)
    for number, activity in enumerate(activities):
        widths = [own.get(activity, 0.0) for own in seconds.values()]
        axes.barh(
            list(map(_drawn, last)),
            widths,
            left=left,
            color=_COLOURS[number % len(_COLOURS)],
            label=activity,
            height=0.6,
        )
        left = [one + width for one, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.legend(frameon=False, fontsize=8, labelcolor=_INK, ncols=len(activities))
    rows = []
    for name, line in last.items():
        loop = _block(line, "loop")
        lags = [own["mean"] for own in map(_numbers, _block(loop, "lag").values()) if "mean" in own]
        lag = statistics.fmean(lags) if lags else None
        waited = loop.get("collect_waited"), loop.get("learn_waited")
        rows.append([name, *map(seconds[name].get, activities), *waited, lag, line.get("restarts", 0)])
    heads = [
        "run",
        *(f"{one}, s" for one in activities),
        "collecting waited, s",
        "learning waited, s",
        "mean lag, updates",
    ]
    shares = (", ".join(f"{one} {value:.0f} s" for one, value in own.items()) for own in seconds.values())
    text = "; ".join(f"{name}: {share}" for name, share in zip(last, shares, strict=True))
    picture = _picture(figure, "Seconds by activity", text)
    yield "Where time went", picture + _table("Seconds of each run", [*heads, "restarts"], rows)


def _differences_section(runs: Sequence[RunRecord]) -> Iterator[tuple[str, str]]:
    flat = [dict(_leaves(run.settings)) for run in runs]
    keys = sorted({key for one in flat for key in one if key != "folder"})
    rows = [[key, *(one.get(key, "") for one in flat)] for key in keys]
    different = [row for row in rows if any(value != row[1] for value in row[2:])]
    if different:
        yield (
            "Settings that differ",
            _table("Settings that differ", ["setting", *(run.name for run in runs)], different),
        )


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


def _evaluation_section(name: str, result: EvaluationResult) -> Iterator[tuple[str, str]]:
    from parallel_envs.evaluation.statistics import per_mission_and_policy

    found = per_mission_and_policy(result)
    heads = ["mission", "policy", "episodes", "mean", "standard error", "IQM", "low", "high", "success", "failed"]
    rows: list[list[Any]] = []
    for (mission, policy), one in found.items():
        low, high = one.iqm_interval or (None, None)
        rows.append(
            [mission, policy, one.n, one.mean, one.standard_error, one.iqm, low, high, one.success_rate, one.failed]
        )
    content = _table(f"{name}: returns by mission and policy", heads, rows)
    shown = [row for row in rows if row[5] is not None]
    if shown:
        figure, axes = _figure(height=0.6 + 0.35 * len(shown))
        for number, row in enumerate(shown):
            low, high = (row[6], row[7]) if row[6] is not None else (row[5], row[5])
            axes.plot([low, high], [number, number], color=_COLOURS[0], linewidth=3, alpha=0.4)
            axes.plot([row[5]], [number], "o", color=_COLOURS[0])
        axes.set_yticks(range(len(shown)), [_drawn(f"{row[0]}: {row[1]}") for row in shown])
        axes.invert_yaxis()
        axes.set_xlabel("interquartile mean of the returns, 95 % interval")
        text = "; ".join(f"{row[1]} in {row[0]}: {row[5]:.4g}" for row in shown)
        content = _picture(figure, "Returns with intervals", text) + content
    yield f"Evaluation: {name}", content
    failures = [
        [one.mission, one.episode, one.failure.kind, one.failure.where, one.failure.error_type, one.failure.message]
        for one in result.episodes
        if one.failure is not None
    ]
    if failures:
        heads = ["mission", "episode", "kind", "where", "error", "message"]
        yield f"Failures: {name}", _table(f"{name}: episodes that failed", heads, failures)


# ---- tables and pictures --------------------------------------------------------------------------------------------


def _table(caption: str, heads: Iterable[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(
        f'<th scope="col" aria-sort="none"><button type="button">{escape(one)}</button></th>' for one in heads
    )
    lines = []
    for row in rows:
        cells = "".join(
            f'<td data-value="{escape(str(value), quote=True)}"{_class(value)}>{_shown(value)}</td>'
            for value in row[1:]
        )
        lines.append(
            f'<tr><th scope="row" data-value="{escape(str(row[0]), quote=True)}">{escape(str(row[0]))}</th>{cells}</tr>'
        )
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption, quote=True)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _class(value: Any) -> str:
    return ' class="number"' if isinstance(value, int | float) else ""


def _shown(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return "-" if math.isnan(value) else f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else escape(str(value))


def _figure(height: float = 3.2) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, height), layout="constrained")
    axes = figure.subplots()
    figure.patch.set_alpha(0.0)
    axes.patch.set_alpha(0.0)
    axes.tick_params(colors=_INK, labelsize=8)
    for part in (axes.xaxis.label, axes.yaxis.label):
        part.set_color(_INK)
        part.set_fontsize(9)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(_INK)
    axes.grid(visible=True, alpha=0.2)
    return figure, axes


def _drawn(name: str) -> str:
    """Return a name as matplotlib draws it literally: it takes a pair of dollar signs for a formula."""
    return name.replace("$", r"\$")


def _picture(figure: Any, title: str, text: str) -> str:
    """Return a figure as SVG, with a text for screen readers."""
    import matplotlib as mpl

    written = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = svg.replace("<svg ", f'<svg role="img" aria-label="{escape(f"{title}. {text}", quote=True)}" ', 1)
    return f"<figure>{svg}<figcaption>{escape(title)}</figcaption></figure>"


_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif; }
body { margin: 0 auto; max-width: 72rem; padding: 1rem 1.5rem 4rem; color: CanvasText; background: Canvas; }
nav ul { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; padding: 0; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
figure { margin: 1rem 0; max-width: 52rem; } figure svg { width: 100%; height: auto; }
figcaption, caption { text-align: left; color: GrayText; font-size: .9rem; padding: .25rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: left; }
tr { border-bottom: 1px solid color-mix(in srgb, CanvasText 15%, transparent); }
td.number { text-align: right; } tbody th { font-weight: 600; }
thead button { all: unset; cursor: pointer; font-weight: 600; }
thead button:focus-visible { outline: 2px solid Highlight; }
th[aria-sort=ascending] button::after { content: " \\2191"; }
th[aria-sort=descending] button::after { content: " \\2193"; }
@media print { nav, script { display: none; } section { break-inside: avoid; } .wide { overflow: visible; } }
"""
_SCRIPT = """
document.querySelectorAll("thead button").forEach((button) => button.addEventListener("click", () => {
  const head = button.parentElement, table = head.closest("table");
  const place = [...head.parentElement.children].indexOf(head);
  const ascending = head.getAttribute("aria-sort") !== "ascending";
  table.querySelectorAll("thead th").forEach((one) => one.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", ascending ? "ascending" : "descending");
  const value = (row) => row.children[place].dataset.value, rows = [...table.tBodies[0].rows];
  const both = (one, other) => isNaN(one) || isNaN(other) ? one.localeCompare(other) : one - other;
  rows.sort((one, other) => (ascending ? 1 : -1) * both(value(one), value(other)));
  table.tBodies[0].append(...rows);
}));
"""
