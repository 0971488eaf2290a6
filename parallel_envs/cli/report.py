"""`parallel-envs report`: the outcome of runs on the terminal, or runs and evaluations as one page.

The page is one self-contained HTML file: it loads nothing. Runs whose settings differ only in the seed are one curve:
the mean over the seeds, with the 95 % interval of the mean (Student's t). `report_page.py` draws the pieces.
"""

from __future__ import annotations

import base64
import dataclasses
import math
import os
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeGuard
from urllib.parse import quote

import typer

from parallel_envs.cli.report_page import (
    COLOURS,
    Points,
    Section,
    curve,
    curves_figure,
    html_page,
    literal,
    mean_and_half_width,
    new_figure,
    picture,
    table,
    tag,
)
from parallel_envs.cli.report_timeline import timeline
from parallel_envs.commands import AsJson

if TYPE_CHECKING:
    from parallel_envs.evaluation import EvaluationResult

__all__ = [
    "EvaluationRecord",
    "RunRecord",
    "curve",
    "mean_and_half_width",
    "open_report_of",
    "page",
    "page_of",
    "report",
]

_LARGEST = 1e100
_VALUES = 10  # rows of a curve in the table of its values
_MOST_MATRIX = 12  # policies of a cross-play matrix with numbers in its cells
_MOST_VIDEO_BYTES = 8 << 20  # of all videos in the page
_VIDEOS = {
    ".mp4": (4, b"ftyp", "video/mp4"),
    ".webm": (0, b"\x1aE\xdf\xa3", "video/webm"),
    ".gif": (0, b"GIF8", "image/gif"),
}
"""By ending: the bytes that such a file has, where they are, and the media type."""


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
    as_json: AsJson = False,
) -> None:
    """Show the outcome of training runs: how each ended, and each agent's episodes, last mean return and best.

    Examples:
      parallel-envs report runs/cartpole
      parallel-envs report runs/cartpole --json
      parallel-envs report runs/cartpole results.json --output report.html
    """
    from parallel_envs.cli.outputs import json_text, plain_errors
    from parallel_envs.cli.sweep import print_trials
    from parallel_envs.errors import MissingExtra
    from parallel_envs.evaluation.evaluate import check_writable
    from parallel_envs.evaluation.records import BadDocument, BadEvaluation
    from parallel_envs.extras import require
    from parallel_envs.files import write_text

    if as_json and output is not None:
        raise typer.BadParameter("--json prints outcomes, and --output writes a page. Give one of them.")
    with plain_errors(BadDocument, BadEvaluation, MissingExtra, OSError):
        if output is not None:
            check_writable(output)
        if output is not None and not any(path.is_dir() for path in paths):
            write_text(output, page(paths, output=output))  # evaluations alone need no torch
            typer.echo(f"Written: {output}")
            return
        require("A report of a run", "torch", "safetensors")
    from parallel_envs.learners.outcomes import outcome_in
    from parallel_envs.learners.run_folder import BadRun
    from parallel_envs.learners.sweep import is_sweep, sweep_in

    with plain_errors(BadRun, BadDocument, MissingExtra, OSError):
        if as_json:
            sweeps = [path for path in paths if is_sweep(path)]
            document: dict[str, Any] = {"runs": [outcome_in(path) for path in paths if path not in sweeps]}
            if sweeps:
                document["sweeps"] = [sweep_in(path).described() for path in sweeps]
            typer.echo(json_text(document))
            return
        if output is None:
            for number, path in enumerate(paths):
                if is_sweep(path):
                    print_trials(sweep_in(path))
                    continue
                typer.echo(("\n" if number else "") + outcome_in(path).told())
            return
        write_text(output, page(paths, output=output))
    typer.echo(f"Written: {output}")


def open_report_of(folder: Path) -> None:
    """Write the page of a run as `report.html` into its folder, and open it in the user's browser.

    The path is printed. The page is opened where there is a display, or where $BROWSER names a program: without a
    display, Python would start a browser in the terminal.
    """
    import webbrowser

    from parallel_envs.files import write_text

    path = folder / "report.html"
    write_text(path, page([folder], output=path))
    has_display = sys.platform != "linux" or {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"} & os.environ.keys()
    opened = bool(has_display) and webbrowser.open(path.resolve().as_uri())
    typer.echo(f"Report: {path}" if opened else f"Report: {path} (there is no display to open it on)", err=True)


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
        """Read a run's folder. Raises BadRun or OSError if it is none, or damaged."""
        from parallel_envs.learners.outcomes import outcome_in
        from parallel_envs.learners.run_folder import BadRun, read_metrics, settings_of
        from parallel_envs.settings import settings_in

        outcome, path = outcome_in(folder), settings_of(folder)
        settings = settings_in(path, BadRun)
        try:
            repr(settings)
        except ValueError as error:  # a number of thousands of digits has no text
            raise BadRun(f"{path} cannot be shown: {error}. Correct it.") from error
        return cls(name, settings, outcome, read_metrics(folder))

    @property
    def folder(self) -> Path:
        """The run's folder."""
        folder: Path = self.outcome.folder
        return folder

    @property
    def seed(self) -> Any:
        return self.settings.get("seed", 0)

    @property
    def env(self) -> Any:
        """The name of the environment. The settings of a meta-RL run have it in a block."""
        env = self.settings.get("env", "")
        return env.get("env_name", "") if isinstance(env, Mapping) else env

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
                mean, steps = values.get("return") if isinstance(values, Mapping) else None, line.get("steps")
                if _can_be_drawn(mean) and _can_be_drawn(steps):
                    points.setdefault(agent, []).append((int(steps), float(mean)))
        return dict(points)


def _block(line: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a block of a line of metrics. It is empty if a damaged file has something else there."""
    found = line.get(name)
    return found if isinstance(found, Mapping) else {}


def _numbers(block: Any) -> dict[str, float]:
    """Return the numbers of a block of metrics."""
    items = block.items() if isinstance(block, Mapping) else ()
    return {name: float(value) for name, value in items if _can_be_drawn(value)}


def _can_be_drawn(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number, and not so large that a figure could not hold it."""
    return isinstance(value, int | float) and abs(value) < _LARGEST


@dataclasses.dataclass(frozen=True, slots=True)
class EvaluationRecord:
    """An evaluation as the page shows it. Videos that it names by a relative path may be in `folder`, too."""

    name: str
    result: EvaluationResult
    folder: Path

    def videos(self) -> dict[str, Path]:
        """Return the videos of `eval --record` that still exist, by a caption."""
        from parallel_envs.choices import Recorded, words
        from parallel_envs.evaluation.recordings import chosen_records, episode_file

        which: Any = self.result.options.get("record")
        place = self.result.options.get("videos")
        if which not in words(Recorded) or not isinstance(place, str):
            return {}
        found = {}
        for record in chosen_records(self.result, which):
            for path in (episode_file(base / place, record, ".mp4") for base in (Path(), self.folder)):
                if path.is_file():
                    alone = f", {record.alone}" if record.alone else ""
                    caption = f"{record.mission}{alone}, episode {record.episode}: return {record.score:.4g}"
                    found[f"{self.name}: {caption}"] = path
                    break
        return found


# ---- the page -------------------------------------------------------------------------------------------------------


def page(paths: Sequence[Path], *, output: Path | None = None) -> str:
    """Return the page for folders of runs and sweeps, and files of evaluations.

    `output` is where the page will be: videos that are too large for it are linked from there. Raises MissingExtra if
    matplotlib is missing; BadRun, BadDocument or OSError for a path that is none of these.
    """
    from parallel_envs.cli.sweep import sweep_sections
    from parallel_envs.evaluation import EvaluationResult
    from parallel_envs.extras import require

    require("A report as a page", "matplotlib")
    paths = list({path.resolve(): path for path in paths}.values())
    folders, files = [path for path in paths if path.is_dir()], [path for path in paths if not path.is_dir()]
    swept: list[Path] = []
    if folders:  # evaluations alone need no torch
        from parallel_envs.learners.sweep import is_sweep, sweep_in

        swept = [path for path in folders if is_sweep(path)]
        folders = [path for path in folders if path not in swept]
    runs = [RunRecord.read(folder, name) for folder, name in zip(folders, short_names(folders), strict=True)]
    results = [
        EvaluationRecord(name, EvaluationResult.from_json(path), path.parent)
        for name, path in zip(short_names(files), files, strict=True)
    ]
    sweeps = [(path.name, list(sweep_sections(sweep_in(path), path.name))) for path in swept]
    return page_of(runs, results, sweeps=sweeps, output=output)


def page_of(
    runs: Sequence[RunRecord],
    results: Sequence[EvaluationRecord],
    *,
    sweeps: Sequence[tuple[str, Sequence[Section]]] = (),
    output: Path | None = None,
    remarks: Sequence[str] = (),
    version: str | None = None,
) -> str:
    """Return the page for runs and evaluations that have been read. `remarks`: sentences at its beginning.

    `sweeps` has the name and the sections of each sweep. `output` and `version`: see `page` and `html_page`. Matplotlib
    must be installed.
    """
    groups: dict[tuple[str, int], list[RunRecord]] = {}
    seen = Counter[tuple[str, str]]()
    for run in runs:  # a second run with the same seed is no further sample: it begins another curve
        key, seed = run.key(), repr(run.seed)
        groups.setdefault((key, seen[key, seed]), []).append(run)
        seen[key, seed] += 1
    labelled = {_label(members): members for members in groups.values()}
    number_of = {run.name: number for number, members in enumerate(groups.values()) for run in members}
    returns = {run.name: run.returns() for run in runs}
    agents = list(dict.fromkeys(agent for run in runs for agent in [*run.outcome.agents, *returns[run.name]]))
    sections = [
        *([Section("Remarks", "".join(f"<p>{escape(one)}</p>" for one in remarks))] if remarks else []),
        *(part for _, parts in sweeps for part in parts),
        *_runs_section(runs, number_of, agents),
        *_curves_section({label: [returns[run.name] for run in of] for label, of in labelled.items()}, agents),
        *_time_section(runs, number_of),
        *(part for run in runs for part in timeline(run.folder, run.name, number_of[run.name])),
        *_differences_section(runs, number_of),
        *(part for one in results for part in _evaluation_sections(one.name, one.result)),
        *_videos_section(
            {**_videos_of(runs), **{name: at for one in results for name, at in one.videos().items()}}, output
        ),
    ]
    names = [*(name for name, _ in sweeps), *(run.name for run in runs), *(one.name for one in results)]
    title = ", ".join([*names[:3], *([f"and {len(names) - 3} more"] if len(names) > 3 else [])]) or "Report"
    return html_page(title, sections, runs=list(labelled), agents=agents, version=version)


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return the last part of each path; whole paths for all if two end alike."""
    last = [path.resolve().name for path in paths]
    names = last if len(set(last)) == len(last) else [str(path) for path in paths]
    return [name.encode("utf-8", "replace").decode() for name in names]


def _label(runs: Sequence[RunRecord]) -> str:
    if len(runs) == 1:
        return runs[0].name
    return f"{runs[0].name} and {len(runs) - 1} more seed{'s' if len(runs) > 2 else ''}"


def _runs_section(runs: Sequence[RunRecord], number_of: Mapping[str, int], agents: Sequence[str]) -> Iterator[Section]:
    rows, tags = [], []
    for run in runs:
        outcome = run.outcome
        ended = "running, or killed" if outcome.ended == "unknown" else outcome.ended
        for agent, one in outcome.agents.items() or [(None, None)]:  # no agent: no episode has ended yet
            figures = (one.last_return, one.best_return, one.episodes) if one else (None, None, None)
            of_run = outcome.steps, outcome.seconds, ended, run.env, one and one.algorithm, run.seed
            rows.append([run.name, agent, *figures, *of_run])
            tags.append(tag(run=number_of[run.name], agent=agents.index(agent) if agent in agents else None))
    heads = ["run", "agent", "last mean return", "best", "episodes"]
    heads += ["steps", "seconds", "ended by", "environment", "algorithm", "seed"]
    if runs:
        yield Section("Runs", table("Runs and their agents", heads, rows, row_tags=tags))


def _curves_section(returns: Mapping[str, Sequence[Mapping[str, Points]]], agents: Sequence[str]) -> Iterator[Section]:
    """Yield the curves by agent. `returns` has those of each run by the label of its curve."""
    pictures = []
    for number, agent in enumerate(agents):
        lines = {label: [one[agent] for one in runs if agent in one] for label, runs in returns.items()}
        lines = {label: runs for label, runs in lines.items() if runs}
        if not lines:
            continue
        numbers = {label: place for place, label in enumerate(returns) if label in lines}
        figure = curves_figure(lines, list(numbers.values()))
        last = "; ".join(
            f"{label}: {statistics.fmean(points[-1][1] for points in runs):.4g}" for label, runs in lines.items()
        )
        text = f"Mean return of {agent} over the steps. At the end {last}."
        legend = {
            f"{label} (mean, 95 %)" if len(lines[label]) > 1 else label: place for label, place in numbers.items()
        }
        rows: list[list[Any]] = [
            [label, steps, mean, half] for label, runs in lines.items() for steps, mean, half in curve(runs, _VALUES)
        ]
        tags = [tag(run=numbers[row[0]]) for row in rows]
        heads = ["curve", "steps", "mean return", "half of the 95 % interval"]
        values = table(f"Values: returns of {agent}", heads, rows, row_tags=tags)
        pictures.append(
            f"<div{tag(agent=number)}>{picture(figure, f'Returns of {agent}', text, runs=legend)}"
            f'<details data-name="{escape(agent, quote=True)}"><summary>Values of {escape(agent)}</summary>{values}'
            "</details></div>"
        )
    if pictures:
        yield Section("Learning curves", "".join(pictures))


def _time_section(runs: Sequence[RunRecord], number_of: Mapping[str, int]) -> Iterator[Section]:
    last = {run.name: run.metrics[-1] for run in runs if run.metrics}
    seconds = {name: _numbers(line.get("seconds")) for name, line in last.items()}
    activities = list(dict.fromkeys(activity for own in seconds.values() for activity in own))
    if not activities:
        return
    figure, axes = new_figure(height=0.8 + 0.4 * len(last))
    left = [0.0] * len(last)
    for number, activity in enumerate(activities):
        widths = [own.get(activity, 0.0) for own in seconds.values()]
        bars = axes.barh(range(len(last)), widths, left=left, color=COLOURS[number % len(COLOURS)], height=0.6)
        for bar, name in zip(bars, last, strict=True):
            bar.set_gid(f"run:{number_of[name]}")
        left = [one + width for one, width in zip(left, widths, strict=True)]
    axes.set_yticks(range(len(last)), list(map(literal, last)))
    for text, name in zip(axes.get_yticklabels(), last, strict=True):
        text.set_gid(f"run:{number_of[name]}")
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
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
        "restarts",
    ]
    shares = (", ".join(f"{one} {value:.0f} s" for one, value in own.items()) for own in seconds.values())
    told = "; ".join(f"{name}: {share}" for name, share in zip(last, shares, strict=True))
    drawn = picture(figure, "Seconds by activity", told, colours=activities)
    tags = [tag(run=number_of[name]) for name in last]
    yield Section("Where time went", drawn + table("Seconds of each run", heads, rows, row_tags=tags))


def _differences_section(runs: Sequence[RunRecord], number_of: Mapping[str, int]) -> Iterator[Section]:
    flat = [dict(_leaves(run.settings)) for run in runs]
    keys = sorted({key for one in flat for key in one if key != "folder"})
    rows = [[key, *(one.get(key, "") for one in flat)] for key in keys]
    different = [row for row in rows if any(value != row[1] for value in row[2:])]
    if different:
        head, tags = "Settings that differ", ["", *(tag(run=number_of[run.name]) for run in runs)]
        yield Section(head, table(head, ["setting", *(run.name for run in runs)], different, column_tags=tags))


def _leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", str(value)


# ---- evaluations ----------------------------------------------------------------------------------------------------


def _evaluation_sections(name: str, result: EvaluationResult) -> Iterator[Section]:
    from parallel_envs.evaluation.statistics import comparable_missions, per_mission_and_policy

    found = per_mission_and_policy(result)
    heads = ["mission", "policy", "episodes", "mean", "standard error", "IQM", "low", "high", "success", "failed"]
    rows: list[list[Any]] = []
    for (mission, policy), one in found.items():
        low, high = one.iqm_interval or (None, None)
        rows.append(
            [mission, policy, one.n, one.mean, one.standard_error, one.iqm, low, high, one.success_rate, one.failed]
        )
    pictures = []
    for group in comparable_missions(result):  # returns of different environments have no common axis
        shown = [row for row in rows if row[0] in group and row[5] is not None and math.isfinite(row[5])]
        if not shown:
            continue
        figure, axes = new_figure(height=0.7 + 0.35 * len(shown))
        for number, row in enumerate(shown):
            low, high = (row[6], row[7]) if row[6] is not None else (row[5], row[5])
            axes.plot([low, high], [number, number], color=COLOURS[0], linewidth=3, alpha=0.4)
            axes.plot([row[5]], [number], "o", color=COLOURS[0])
        axes.set_yticks(range(len(shown)), [literal(f"{row[0]}: {row[1]}") for row in shown])
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.set_xlabel("interquartile mean of the returns, 95 % interval")
        text = "; ".join(
            f"{row[1]} in {row[0]}: {row[5]:.4g}" + ("" if row[6] is None else f" ({row[6]:.4g} to {row[7]:.4g})")
            for row in shown
        )
        pictures.append(picture(figure, f"Returns with intervals: {', '.join(group)}", text))
    content = "".join(pictures) + table(f"{name}: returns by mission and policy", heads, rows)
    if result.missing:
        played = len(result.episodes)
        content += f"<p>Not complete: {played} of {played + len(result.missing)} episodes were played.</p>"
    yield Section(f"Evaluation: {name}", content)
    yield from _cross_play_section(name, result)
    failures = [
        [one.mission, one.episode, one.failure.kind, one.failure.where, one.failure.error_type, one.failure.message]
        for one in result.episodes
        if one.failure is not None
    ]
    if failures:
        heads = ["mission", "episode", "kind", "where", "error", "message"]
        yield Section(f"Failures: {name}", table(f"{name}: episodes that failed", heads, failures))


def _cross_play_section(name: str, result: EvaluationResult) -> Iterator[Section]:
    """Yield the cross-play matrix and Elo ratings, for each environment in which two policies met."""
    from parallel_envs.evaluation.comparison import cross_play, elo_ratings, pairings_of
    from parallel_envs.evaluation.statistics import comparable_missions

    parts = []
    for group in comparable_missions(result):
        met = pairings_of(
            dataclasses.replace(result, episodes=tuple(one for one in result.episodes if one.mission in group))
        )
        if all(pairing.first == pairing.second for pairing in met):
            continue
        found, ratings, where = cross_play(met), elo_ratings(met), ", ".join(group)
        count, known = len(found.policies), [one for row in found.returns for one in row if one is not None]
        figure, axes = new_figure(height=1.0 + 0.4 * count)
        axes.grid(visible=False)
        cells = [[math.nan if one is None else one for one in row] for row in found.returns]
        mesh = axes.pcolormesh(cells, cmap="viridis")
        low, high = min(known), max(known)
        for row in range(count if count <= _MOST_MATRIX else 0):
            for column, value in enumerate(found.returns[row]):
                if value is not None:
                    is_dark = not value > (low + high) / 2
                    colour = "white" if is_dark else "black"
                    axes.text(
                        column + 0.5, row + 0.5, f"{value:.4g}", ha="center", va="center", color=colour, fontsize=8
                    )
        places = [place + 0.5 for place in range(count)]
        axes.set_yticks(places, list(map(literal, found.policies)))
        room = max(60 // count, 10) if count <= 4 else 20
        columns = [literal(one, room) for one in found.policies]
        axes.set_xticks(places, columns, rotation=0 if count <= 4 else 30)
        axes.invert_yaxis()
        axes.set_xlabel("beside")
        bar = figure.colorbar(mesh, ax=axes)
        bar.ax.tick_params(colors=axes.xaxis.label.get_color(), labelsize=8)
        rows = []
        for policy, returns, counts in zip(found.policies, found.returns, found.counts, strict=True):
            rating = ratings.get(policy)
            elo = (rating.elo, *(rating.interval or (None, None))) if rating else (None, None, None)
            rows.append([policy, *returns, sum(counts), *elo])
        heads = ["policy", *(f"beside {one}" for one in found.policies), "pairings", "Elo", "Elo, low", "Elo, high"]
        text = "; ".join(
            f"{one} beside {other}: {value:.4g}"
            for one, row in zip(found.policies, found.returns, strict=True)
            for other, value in zip(found.policies, row, strict=True)
            if value is not None
        )
        parts.append(picture(figure, f"Mean return of each row's policy beside that of the column: {where}", text))
        parts.append(table(f"{name}: cross-play and Elo ratings in {where}", heads, rows))
    if parts:
        yield Section(f"Cross-play: {name}", "".join(parts))


# ---- videos ---------------------------------------------------------------------------------------------------------


def _videos_of(runs: Sequence[RunRecord]) -> dict[str, Path]:
    """Return the videos in the folders `videos` of runs, by a caption."""
    return {
        f"{run.name}: {path.name}": path
        for run in runs
        for path in sorted((run.folder / "videos").glob("*"))
        if path.suffix.lower() in _VIDEOS and path.is_file()
    }


def _videos_section(videos: Mapping[str, Path], output: Path | None) -> Iterator[Section]:
    """Yield the videos: inside of the page as long as there is room, else as links from the place of the page."""
    parts, room = [], _MOST_VIDEO_BYTES
    for caption, path in videos.items():
        place, magic, kind = _VIDEOS[path.suffix.lower()]
        shown, label = escape(caption), escape(caption, quote=True)
        try:
            size = path.stat().st_size
            data = path.read_bytes() if size <= room else b""
        except OSError:
            continue
        if data[place : place + len(magic)] == magic:
            room -= size
            source = f"data:{kind};base64,{base64.b64encode(data).decode()}"
            film = f'<video controls preload="metadata" src="{source}" aria-label="{label}"></video>'
            if kind == "image/gif":
                film = f'<img src="{source}" alt="{label}">'
            parts.append(f"<figure>{film}<figcaption>{shown}</figcaption></figure>")
        elif data:
            parts.append(f"<p>{shown}: {escape(str(path))} is not a video that a browser plays.</p>")
        else:
            where = f"<code>{escape(str(path))}</code>"
            if output is not None:
                link = quote(os.path.relpath(path.resolve(), output.resolve().parent), safe="/")
                where = f'<a href="{escape(link, quote=True)}">{escape(path.name)}</a>'
            parts.append(f"<p>{shown}: too large to be in the page ({size / 1e6:,.1f} MB): {where}.</p>")
    if parts:
        yield Section("Videos", "".join(parts))
