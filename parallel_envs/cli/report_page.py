"""Pieces of a report page: learning curves over seeds, figures as SVG, tables, sections, and the page itself.

A page is one HTML file that loads nothing; its content security policy also forbids it. Matplotlib draws the figures. A
small script sorts tables, shows and hides runs and agents, and reloads a page that `parallel-envs watch` serves.
Everything that comes from files is escaped here: pass plain text, except where an argument is called `content`.

    steps, means, halves = zip(*curve([first_seed, second_seed]))
    content = picture(curves_figure({"two seeds": [first_seed, second_seed]}), "Returns", "At the end 4.2.")
    text = html_page("My runs", [Section("Returns", content), Section("Runs", table("Runs", ["run"], [["a"]]))])
"""

from __future__ import annotations

import base64
import bisect
import hashlib
import io
import math
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

Points = Sequence[tuple[int, float]]
"""Pairs of steps and the mean return of the latest episodes by then."""

_GRID_ROWS = 60  # points of a curve over seeds
_MOST_POINTS = 500  # points of a run's own line
_T_95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
"""Half of a 95 % interval of a mean of 2, 3, ... values, in standard errors (Student's t). The last one serves all
larger numbers of values."""
_INK = "#010203"  # stands for the colour of the text, which depends on the reader's light or dark mode
COLOURS = ("#3b7dd8", "#d9822b", "#3a9d5d", "#c2557f", "#8265cf", "#8f7f3d", "#2b9aa5", "#b0613a")
_DASHES = ("solid", "dashed", "dotted")


# ---- learning curves ------------------------------------------------------------------------------------------------


def mean_and_half_width(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean of independent values and half of its 95 % interval (NaN for a single value)."""
    mean, count = statistics.fmean(values), len(values)
    if count < 2:
        return mean, math.nan
    return mean, _T_95[min(count, len(_T_95) + 1) - 2] * statistics.stdev(values) / math.sqrt(count)


def curve(
    runs: Sequence[Points], num_rows: int = _GRID_ROWS, total_steps: int | None = None
) -> list[tuple[int, float, float]]:
    """Return steps, mean and half of the interval at evenly spaced steps, up to `total_steps`.

    None: up to the end of the shortest run. Each run counts with its latest value. Rows before a run's first value are
    left out.
    """
    total, rows = total_steps or min(points[-1][0] for points in runs), []
    for number in range(1, num_rows + 1):
        steps = total * number // num_rows
        places = [bisect.bisect_right(points, steps, key=lambda point: point[0]) for points in runs]
        if all(places):
            values = [points[place - 1][1] for points, place in zip(runs, places, strict=True)]
            rows.append((steps, *mean_and_half_width(values)))
    return rows


def curves_figure(
    lines: Mapping[str, Sequence[Points]],
    numbers: Sequence[int] | None = None,
    *,
    label: str = "mean return of the last episodes",
    level: float | None = None,
    title: str = "",
    height: float = 3.2,
) -> Any:
    """Return a figure with the curves of several runs, each a list of seeds: see `curve`.

    One seed is a line. Several are thin lines, their mean, and its 95 % interval as a band. The band of few seeds can
    be very wide, so the seeds decide how far the axis reaches.

    Args:
        lines: The seeds of each curve, by the curve's name.
        numbers: The number of each curve, for its colour and for the page's filter. None: 0, 1, ...
        label: The text at the vertical axis.
        level: A value that is marked by a dashed line.
        title: A text above the curves.
        height: The height in inches; the width is 8 inches.
    """
    figure, axes = new_figure(height)
    seen = [] if level is None else [level]
    for number, runs in zip(range(len(lines)) if numbers is None else numbers, lines.values(), strict=True):
        style = {"color": COLOURS[number % len(COLOURS)], "gid": f"run:{number}"}
        style["linestyle"] = _DASHES[number // len(COLOURS) % len(_DASHES)]
        for points in runs:
            steps, values = zip(*_thinned(points), strict=True)
            seen += values
            thin = {"alpha": 0.3, "linewidth": 0.8} if len(runs) > 1 else {"marker": "o" if len(points) == 1 else ""}
            axes.plot(steps, values, **{**style, **thin})
        num_rows = min(_GRID_ROWS, *map(len, runs))
        rows = (
            curve(runs, num_rows) if len(runs) > 1 else []
        )  # empty if one run ends before another has its first value
        if rows:
            steps, means, _ = zip(*rows, strict=True)
            low, high = ([mean + sign * half for _, mean, half in rows] for sign in (-1, 1))
            axes.fill_between(steps, low, high, color=style["color"], gid=style["gid"], alpha=0.2, linewidth=0)
            axes.plot(steps, means, **style, linewidth=2)
    margin = 0.05 * (max(seen) - min(seen)) or 1.0
    axes.set_ylim(min(seen) - margin, max(seen) + margin)
    if level is not None:
        axes.axhline(level, color=_INK, linestyle="dashed", linewidth=1, alpha=0.7)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_xlabel("steps of environments")
    axes.set_ylabel(label)
    axes.set_title(literal(title, 100), color=_INK, fontsize=10, loc="left")
    return figure


def _thinned(points: Points) -> Points:
    """Return at most `_MOST_POINTS` points, evenly spaced, with the last one."""
    every = math.ceil(len(points) / _MOST_POINTS)
    return points if every == 1 else [*points[:-1][::every], points[-1]]


# ---- figures --------------------------------------------------------------------------------------------------------


def new_figure(height: float = 3.2) -> tuple[Any, Any]:
    """Return an empty matplotlib figure of 8 inches width, and its axes, in the style of the page.

    An artist with the `gid` "run:3" or "agent:1" disappears when the reader unticks that run or agent.
    """
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


def literal(name: str, at_most: int = 40) -> str:
    """Return a name for a figure: without its middle if it is long, and as matplotlib draws it literally.

    Matplotlib takes a pair of dollar signs for a formula, and long names would leave no room for the figure.
    """
    name = _encodable(" ".join(name.split()))
    if len(name) > at_most:
        name = f"{name[: at_most // 2 - 1]}\u2026{name[-(at_most // 2) :]}"
    return name.replace("$", r"\$")


def svg_of(figure: Any, name: str) -> str:
    """Return a figure as an SVG file on a white ground, for use outside of a page. `name`: any text, for its ids."""
    figure.patch.set(alpha=1.0, facecolor="white")
    return _svg(figure, name).replace(_INK, "#222222")


def picture(
    figure: Any, title: str, text: str, *, runs: Mapping[str, int] | None = None, colours: Sequence[str] = ()
) -> str:
    """Return a figure for the page, with a text for screen readers that says what the picture shows.

    Below it stands what the colours mean: the names of `runs` with their numbers, or the names of `colours` in order.
    """
    svg = _svg(figure, title).replace(_INK, "currentColor")
    svg = re.sub(r"font: ([\d.]+px) sans-serif", r"font-size: \1", svg).replace("font-family: sans-serif; ", "")
    svg = re.sub(
        r'<g id="(?:(run|agent):(\d+)|[^"]*)"', lambda at: f"<g{tag(**{at[1]: at[2]})}" if at[1] else "<g", svg
    )
    svg = svg[svg.index("<svg") :].replace(
        "<svg ", f'<svg role="img" aria-label="{escape(f"{title}. {text}", quote=True)}" ', 1
    )
    meanings = [(name, number, tag(run=number)) for name, number in (runs or {}).items()]
    meanings += [(name, number, "") for number, name in enumerate(colours)]
    names = "".join(f"<li{own}>{swatch(number)}{escape(name)}</li>" for name, number, own in meanings)
    key = f'<ul class="key">{names}</ul>' if names else ""
    return f'<figure><div class="wide">{svg}</div><figcaption>{escape(title)}{key}</figcaption></figure>'


def _svg(figure: Any, name: str) -> str:
    import matplotlib as mpl

    written = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": _encodable(name)}):
        figure.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", written.getvalue(), flags=re.DOTALL)
    svg = re.sub(r' d="[^"]*"', lambda path: re.sub(r"(\.\d\d)\d+", r"\1", path[0]), svg)  # a hundredth of a point
    svg = re.sub(r"(font: [\d.]+px|font-family:) '[^;\"]+", r"\1 sans-serif", svg)
    svg = re.sub(r">\s+<", "><", svg.strip()).replace(" \n", "\n")
    return f"{svg}\n"


def swatch(number: int) -> str:
    """Return a short line in the colour and style of a curve."""
    colour, dash = COLOURS[number % len(COLOURS)], _DASHES[number // len(COLOURS) % len(_DASHES)]
    return f'<span class="swatch" style="border-top: 3px {dash} {colour}"></span>'


def tag(*, run: Any = None, agent: Any = None) -> str:
    """Return attributes for an element that belongs to a run or an agent, by number. Filters show and hide it."""
    parts = (f' data-{kind}="{int(value)}"' for kind, value in (("run", run), ("agent", agent)) if value is not None)
    return "".join(parts)


# ---- tables ---------------------------------------------------------------------------------------------------------


def table(
    caption: str,
    heads: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    row_tags: Sequence[str] = (),
    column_tags: Sequence[str] = (),
) -> str:
    """Return a table whose columns can be sorted. The first cell of a row names it. None and NaN are shown as "-".

    `row_tags` and `column_tags` have the result of `tag` for each row or column, if filters are to know them.
    """
    tags = column_tags or [""] * len(heads)
    head = "".join(
        f'<th scope="col" aria-sort="none"{own}><button type="button">{escape(one)}</button></th>'
        for one, own in zip(heads, tags, strict=True)
    )
    lines = []
    for place, row in enumerate(rows):
        cells = "".join(
            f'<td data-value="{_sorted_by(value)}"{own}{_class(value)}>{_shown(value)}</td>'
            for value, own in zip(row[1:], tags[1:], strict=True)
        )
        first = f'<th scope="row" data-value="{_sorted_by(row[0])}">{escape(str(row[0]))}</th>'
        lines.append(f"<tr{row_tags[place] if row_tags else ''}>{first}{cells}</tr>")
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{escape(caption, quote=True)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def _is_unknown(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value))


def _sorted_by(value: Any) -> str:
    return "" if _is_unknown(value) else escape(str(value), quote=True)


def _class(value: Any) -> str:
    return ' class="number"' if value is None or isinstance(value, int | float) else ""


def _shown(value: Any) -> str:
    if _is_unknown(value):
        return "-"
    if isinstance(value, float):
        return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else escape(str(value))


# ---- the page -------------------------------------------------------------------------------------------------------


class Section(NamedTuple):
    """A part of the page: its heading as plain text, and its content as HTML."""

    head: str
    content: str


def html_page(
    title: str,
    sections: Sequence[Section],
    *,
    runs: Sequence[str] = (),
    agents: Sequence[str] = (),
    version: str | None = None,
) -> str:
    """Return the whole page.

    Args:
        title: Its title.
        sections: Its parts.
        runs: The names of the runs that a reader may choose from: number 3 in `tag(run=3)` is `runs[3]`.
        agents: The same for agents.
        version: For a page that is served and reloads itself: the value of its `ETag`.
    """
    links = "".join(f'<li><a href="#s{number}">{escape(one.head)}</a></li>' for number, one in enumerate(sections))
    body = "".join(
        f'<section id="s{number}"><h2>{escape(one.head)}</h2>{one.content}</section>'
        for number, one in enumerate(sections)
    )
    filters = _filter("run", "Runs", runs) + _filter("agent", "Agents", agents)
    sources = f"script-src 'sha256-{base64.b64encode(hashlib.sha256(_SCRIPT.encode()).digest()).decode()}'"
    if version is not None:
        sources += "; connect-src 'self'"
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; media-src data:; {sources}; "
        "base-uri 'none'; form-action 'none'"
    )
    live = "" if version is None else f' data-version="{escape(version, quote=True)}"'
    page = (
        f'<!doctype html><html lang="en"{live}><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><title>{escape(title)}</title>'
        f'<link rel="icon" href="data:,">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1"><style>{_STYLE}</style></head>'
        f'<body><a class="skip" href="#main">Skip to the content</a><header><h1>{escape(title)}</h1>'
        f'<nav aria-label="Sections"><ul>{links}</ul></nav></header><main id="main" tabindex="-1">'
        f'<form class="filters" aria-label="What is shown" hidden>{filters}</form>{body}</main>'
        f'<p id="status" role="status"></p><script>{_SCRIPT}</script></body></html>\n'
    )
    return _encodable(page)


def _encodable(text: str) -> str:
    """Return a text that UTF-8 can hold: names in JSON files may contain halves of characters."""
    return text.encode("utf-8", "replace").decode()


def _filter(kind: str, title: str, names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    boxes = "".join(
        f'<label><input type="checkbox" checked data-kind="{kind}" value="{number}">'
        f"{swatch(number) if kind == 'run' else ''}<span>{escape(name)}</span></label>"
        for number, name in enumerate(names)
    )
    every = "".join(
        f'<button type="button" data-kind="{kind}" data-all="{on}" aria-label="{word} {title.lower()}">{word}</button>'
        for word, on in (("All", 1), ("None", 0))
    )
    return f"<fieldset><legend>{title}</legend>{boxes}{every}</fieldset>"


_STYLE = """
:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif;
  --soft: color-mix(in srgb, CanvasText 72%, Canvas);
  --line: color-mix(in srgb, CanvasText 18%, Canvas); }
body { margin: 0 auto; max-width: 72rem; padding: 1rem 1.5rem 4rem; color: CanvasText; background: Canvas; }
[hidden] { display: none !important; }
.skip { position: absolute; left: -99rem; } .skip:focus { position: static; }
nav ul, .key { display: flex; flex-wrap: wrap; gap: .25rem 1.25rem; list-style: none; padding: 0; margin: .25rem 0; }
h1 { font-size: 1.6rem; overflow-wrap: anywhere; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
main:focus { outline: none; }
figure { margin: 1rem 0; max-width: 52rem; } figure svg { width: 100%; min-width: 34rem; height: auto; display: block; }
figure video, figure img { max-width: 100%; max-height: 24rem; }
figcaption, caption { text-align: left; color: var(--soft); font-size: .9rem; padding: .25rem 0; }
.swatch { display: inline-block; width: 1.6rem; vertical-align: middle; margin-right: .4rem;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.filters { position: sticky; top: 0; z-index: 1; background: Canvas; border-bottom: 1px solid var(--line);
  max-height: 30vh; overflow-y: auto; padding: .25rem 0; }
fieldset { border: 0; margin: 0; padding: .15rem 0; display: flex; flex-wrap: wrap; gap: .1rem 1.1rem;
  align-items: center; }
legend { float: left; font-weight: 600; padding: 0; min-width: 4rem; }
label { display: inline-flex; align-items: center; gap: .35rem; font-size: .9rem; } label .swatch { margin: 0; }
.filters button { font: inherit; font-size: .85rem; padding: 0 .5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: left; vertical-align: top; }
tr { border-bottom: 1px solid var(--line); }
thead th { vertical-align: bottom; } td.number { text-align: right; } tbody th { font-weight: 600; min-width: 8rem; }
thead button { all: unset; cursor: pointer; font-weight: 600; }
thead button::after { content: "\\2195"; opacity: .35; margin-left: .3rem; }
th[aria-sort=ascending] button::after { content: "\\2191"; opacity: 1; }
th[aria-sort=descending] button::after { content: "\\2193"; opacity: 1; }
:focus-visible, thead button:focus-visible { outline: 2px solid Highlight; outline-offset: 2px; }
summary { cursor: pointer; font-size: .9rem; }
#status { position: fixed; right: 1rem; bottom: .5rem; margin: 0; font-size: .85rem; color: var(--soft);
  background: Canvas; padding: 0 .4rem; }
@media print {
  :root { color-scheme: light; font-size: 11px; } body { max-width: none; padding: 0; }
  nav, .filters, .skip, #status, details:not([open]), thead button::after { display: none; }
  figure, tr { break-inside: avoid; } h2 { break-after: avoid; margin-top: 1.2rem; } figure svg { min-width: 0; }
  .wide { overflow: visible; } th, td { padding: .15rem .35rem; overflow-wrap: anywhere; }
}
"""
_SCRIPT = """
"use strict";
const all = (what, within = document) => [...within.querySelectorAll(what)];
const tell = (text) => { document.getElementById("status").textContent = text; };

function show() {  // what the ticked boxes say
  const filters = document.querySelector(".filters");
  filters.hidden = !document.querySelector(".filters input");
  document.documentElement.style.scrollPaddingTop = `${filters.offsetHeight + 8}px`;  // links lead below them
  const off = { run: new Set(), agent: new Set() };
  all(".filters input:not(:checked)").forEach((box) => off[box.dataset.kind].add(box.value));
  all("main [data-run], main [data-agent]").forEach((one) =>
    one.toggleAttribute("hidden", off.run.has(one.dataset.run) || off.agent.has(one.dataset.agent)));
}

function sort(head, order) {
  const table = head.closest("table"), place = [...head.parentElement.children].indexOf(head);
  all("thead th", table).forEach((one) => one.setAttribute("aria-sort", "none"));
  head.setAttribute("aria-sort", order);
  const value = (row) => row.children[place].dataset.value, sign = order === "ascending" ? 1 : -1;
  const isNumber = (text) => text.trim() !== "" && !isNaN(text);
  table.tBodies[0].append(...[...table.tBodies[0].rows].sort((first, second) => {
    const one = value(first), other = value(second);
    if (one === "" || other === "") return (one === "") - (other === "");  // what is unknown comes last
    if (isNumber(one) !== isNumber(other)) return isNumber(one) ? -1 : 1;
    return sign * (isNumber(one) ? one - other : one.localeCompare(other, undefined, { numeric: true }));
  }));
}

document.addEventListener("click", (event) => {
  const button = event.target.closest("button");
  if (button && button.dataset.all) {
    const on = button.dataset.all === "1";
    all(`.filters input[data-kind=${button.dataset.kind}]`).forEach((box) => { box.checked = on; });
    show();
  } else if (button && button.closest("thead")) {
    const head = button.parentElement;
    const order = head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending";
    sort(head, order);
    tell(`Sorted by ${button.textContent}, ${order}`);
  }
});
document.addEventListener("change", (event) => {
  if (!event.target.matches(".filters input")) return;
  show();
  const boxes = all(`.filters input[data-kind=${event.target.dataset.kind}]`);
  tell(`${boxes.filter((box) => box.checked).length} of ${boxes.length} ${event.target.dataset.kind}s are shown`);
});
document.addEventListener("submit", (event) => event.preventDefault());
addEventListener("resize", show);
show();

// A page that is served reloads its content, and keeps what the reader has chosen, sorted, opened and scrolled to.
const FOCUSED = "a, button, input, summary, [tabindex]";
function replace(text) {
  const page = new DOMParser().parseFromString(text, "text/html");
  const boxName = (box) => `${box.dataset.kind}: ${box.parentElement.textContent}`;
  const headName = (head) => `${head.closest("table").caption.textContent}: ${head.textContent}`;
  const off = new Set(all(".filters input:not(:checked)").map(boxName));
  const sorted = new Map(all("th[aria-sort$=ending]").map((head) => [headName(head), head.getAttribute("aria-sort")]));
  const left = new Map(all(".wide").map((one) => [one.getAttribute("aria-label"), one.scrollLeft]));
  const opened = new Set(all("details[open]").map((one) => one.dataset.name));
  const focus = all(FOCUSED).indexOf(document.activeElement), at = [scrollX, scrollY];
  document.documentElement.dataset.version = page.documentElement.dataset.version;
  document.title = page.title;
  for (const part of ["header", "main"]) {
    document.querySelector(part).replaceWith(document.adoptNode(page.querySelector(part)));
  }
  all(".filters input").forEach((box) => { box.checked = !off.has(boxName(box)); });
  all("details").forEach((one) => { one.open = opened.has(one.dataset.name); });
  all("thead th").forEach((head) => sorted.has(headName(head)) && sort(head, sorted.get(headName(head))));
  show();
  all(".wide").forEach((one) => { one.scrollLeft = left.get(one.getAttribute("aria-label")) ?? 0; });
  scrollTo(...at);
  all(FOCUSED)[focus]?.focus({ preventScroll: true });
}
if (document.documentElement.dataset.version) {
  const every = 2000;
  const look = async () => {
    try {
      if (document.hidden || all("video").some((one) => !one.paused)) return;
      const known = { "If-None-Match": document.documentElement.dataset.version };
      const answer = await fetch(location.pathname, { headers: known, cache: "no-store" });
      if (answer.status === 200) {
        replace(await answer.text());
        tell(`Updated at ${new Date().toLocaleTimeString()}`);
      } else if (answer.status === 304 && document.getElementById("status").textContent.startsWith("No answer")) {
        tell("");
      }
    } catch (error) {
      tell("No answer: has parallel-envs watch ended? The page shows what it showed last.");
    } finally { setTimeout(look, every); }
  };
  setTimeout(look, every);
}
"""
