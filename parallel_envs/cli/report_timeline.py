"""The work of a run's processes and threads over time: `trace.json` in Chrome's trace-event format, read and drawn.

`train --trace` writes the file. Perfetto (ui.perfetto.dev) and chrome://tracing show all of it; a report page shows the
last seconds, a row for each thread.
"""

from __future__ import annotations

import itertools
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

from parallel_envs.cli.report_page import COLOURS, Section, literal, new_figure, picture, table, tag

_MOST_SPANS, _LONGEST, _MOST_THREADS = 1_000, 10.0, 32  # what is shown; of the trace, in seconds
_MOST_BYTES, _HEAD_BYTES, _MOST_FAULTS = 16 << 20, 1 << 20, 1_000  # what is read


class Span(NamedTuple):
    """A piece of work in a trace: its name, and its beginning and end in seconds."""

    name: str
    start: float
    end: float


def events_in(path: Path) -> list[dict[str, Any]]:
    """Return the events of a trace in Chrome's format.

    A file that is still being written, or that is damaged, gives the events that can be read. Of a file above 16 MB
    the first and the last events are read. Raises OSError.
    """
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES)
        if more := max(0, os.fstat(file.fileno()).st_size - len(data)):
            keep = _MOST_BYTES - _HEAD_BYTES
            file.seek(more + _HEAD_BYTES)
            data = data[:_HEAD_BYTES] + b"\0" + file.read(keep)  # no JSON value goes on behind this byte
    text = data.decode(errors="replace")
    events: list[Any] = []
    try:
        content = json.loads(text)
        listed = content.get("traceEvents") if isinstance(content, dict) else content
        events = listed if isinstance(listed, list) else []
    except (ValueError, RecursionError):
        decoder, at, faults = json.JSONDecoder(), text.find("{"), 0
        while at >= 0 and faults < _MOST_FAULTS:
            try:
                event, end = decoder.raw_decode(text, at)
                events.append(event)
            except (ValueError, RecursionError):
                end, faults = at + 1, faults + 1
            at = text.find("{", end)
    return [event for event in events if isinstance(event, dict)]


def spans_of(events: Iterable[Mapping[str, Any]]) -> dict[str, list[Span]]:
    """Return the complete events by thread, the first ones first. Threads are in the order in which they are named."""
    names: dict[tuple[str, str], str] = {}
    found: dict[tuple[str, str], list[Span]] = {}
    for event in events:
        thread = str(event.get("pid", "")), str(event.get("tid", ""))
        start, length, arguments = event.get("ts"), event.get("dur"), event.get("args")
        if event.get("ph") == "M" and event.get("name") == "thread_name" and isinstance(arguments, dict):
            names[thread] = str(arguments.get("name", ""))
        elif event.get("ph") == "X" and _is_number(start) and _is_number(length):
            span = Span(str(event.get("name", "")), start / 1e6, (start + max(length, 0)) / 1e6)
            found.setdefault(thread, []).append(span)
    twice, by_name = Counter(names.get(thread) for thread in found), dict[str, list[Span]]()
    for thread in sorted(found, key=[*names, *found].index):
        name = names.get(thread, "")
        label = name if name and twice[name] == 1 else " ".join([name or "thread", *filter(None, thread)])
        by_name[label] = sorted(found[thread], key=lambda span: (span.start, -span.end))
    return by_name


def _workers_table(events: Iterable[Mapping[str, Any]], name: str) -> str:
    """Return a table of the statistics of workers that a trace holds, or an empty text."""
    from parallel_envs.trace import STATS

    rows = []
    for event in events:
        arguments = event.get("args") if event.get("name") == STATS else None
        found = arguments.get("workers") if isinstance(arguments, dict) else None
        for worker in found if isinstance(found, list) else ():
            values = {key: value for key, value in worker.items() if _is_number(value)}
            whole, steps = values.get("seconds", 0.0), values.get("steps", 0)
            shares = [
                round(100 * values.get(f"{one}_seconds", 0.0) / whole, 1) if whole > 0 else None
                for one in ("step", "reset", "idle", "wait")
            ]
            mean = round(1e3 * values.get("step_seconds", 0.0) / steps, 3) if steps else None
            envs = ", ".join(map(str, worker.get("env_ids", ())))
            rows.append([str(worker.get("worker")), envs, steps, *shares, mean, values.get("restarts")])
    heads = ["worker", "envs", "steps", "in step, %", "in reset, %", "idle, %", "waited for, %", "ms/step", "restarts"]
    return table(f"Workers since they were started: {name}", heads, rows) if rows else ""


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and -1e18 < value < 1e18


def timeline(folder: Path, name: str, number: int) -> Iterator[Section]:
    """Yield what each thread did in the last seconds of the trace of a run, if the run has one.

    The last 1,000 spans are shown, at most 10 seconds. `name` and `number` are those of the run in the page.
    """
    from parallel_envs.learners.run_folder import TRACE

    try:
        events = events_in(folder / TRACE) if (folder / TRACE).is_file() else []
    except OSError:
        return
    threads = spans_of(events)
    if not threads:
        return
    ends, more = sorted(span.end for own in threads.values() for span in own), len(threads) - _MOST_THREADS
    first, end = min(own[0].start for own in threads.values()), ends[-1]
    begin = max(ends[-_MOST_SPANS - 1] if len(ends) > _MOST_SPANS else first, end - _LONGEST)
    shown = {
        thread: [span._replace(start=max(span.start, begin)) for span in own if span.end > begin]
        for thread, own in list(threads.items())[:_MOST_THREADS]
    }
    totals = Counter[str]()
    for span in itertools.chain.from_iterable(shown.values()):
        totals[span.name] += round(1e6 * (span.end - span.start))
    names = [kind for kind, _ in totals.most_common()]
    if len(names) > len(COLOURS):
        names = [*names[: len(COLOURS) - 1], "other"]
    figure, axes = new_figure(height=0.9 + 0.32 * len(shown))
    rows, told = [], []
    for row, (thread, own) in enumerate(shown.items()):
        spent: dict[str, float] = {}
        bars: dict[tuple[int, str], list[tuple[float, float]]] = {}  # by depth and name
        open_until: list[float] = []
        for span in own:
            while open_until and open_until[-1] <= span.start:
                open_until.pop()
            kind, length = span.name if span.name in names else names[-1], span.end - span.start
            bars.setdefault((len(open_until), kind), []).append((span.start - begin, length))
            spent[kind] = spent.get(kind, 0.0) + length
            open_until.append(span.end)
        for (depth, kind), pieces in sorted(bars.items()):  # what happens inside of another span is drawn on it
            height = 0.8 * 0.7**depth
            axes.broken_barh(pieces, (row - height / 2, height), color=COLOURS[names.index(kind)], linewidth=0.4)
        rows.append([thread, *map(spent.get, names)])
        told.append(f"{thread}: {', '.join(f'{kind} {value:.3g} s' for kind, value in spent.items()) or 'nothing'}")
    axes.set_yticks(range(len(shown)), list(map(literal, shown)))
    axes.set_ylim(len(shown) - 0.5, -0.5)
    axes.set_xlim(0.0, max(end - begin, 1e-6))
    axes.set_xlabel(f"seconds; the right end is the end of the trace, {end - first:.4g} s after its beginning")
    title = f"What the processes and threads of {name} did in the last {end - begin:.3g} s"
    content = picture(figure, title, "; ".join(told), colours=names)
    content += f"<p>{more} more threads are in {escape(TRACE)}.</p>" if more > 0 else ""
    content += table(f"Seconds by thread: {name}", ["thread", *(f"{kind}, s" for kind in names)], rows)
    content += _workers_table(events, name)
    yield Section(f"Workers over time: {name}", f"<div{tag(run=number)}>{content}</div>")
