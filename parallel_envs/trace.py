"""A timeline of what the processes and threads of a program do, in Chrome's trace-event format.

    with Trace("trace.json"):                        # open the file in https://ui.perfetto.dev
        with span("evaluation", mission="easy"):
            play()

    caller and its threads   `span`, `record`, `instant`         ──▶ rows of events in memory ──┐
    learners, evaluations    times that came with their answers  ──▶ `record(..., row=...)`   ──┼──▶ one file
    workers of environments  `SpanBuffer.writer`                 ──▶ buffers in shared memory ──┘

While no trace is open, `span` costs a look-up of `open_traces`. All times are those of `time.perf_counter`, which on
Linux is one clock for all processes. The file has one row (a `tid`) for each thread and worker: complete events with
microseconds since the start of the trace, instant events for restarts, and the names of the rows.

What is kept is bounded: the last `seconds` seconds, and of these the last `MOST_OF_A_ROW` events of a row in memory, or
as many as fit in the buffer of a worker. The metadata of the file say how many events of each row were dropped.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import os
import re
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import numpy.typing as npt

from parallel_envs.checks import optional_seconds

__all__ = ["CALLER", "SpanBuffer", "Trace", "instant", "open_traces", "record", "span"]

_log = logging.getLogger(__name__)

MOST_OF_A_ROW = 1 << 16
CALLER = "caller"
"""The row of the thread that opened the trace."""
STATS = "worker_stats"
"""The name of the event that holds the statistics of workers."""

Event = tuple[str, float, float | None, Mapping[str, Any] | None]
"""Name, start, end (None: an instant event), and arguments."""

_clock = time.perf_counter

# ---- events of this process ------------------------------------------------------------------------------------------

open_traces: list[Trace] = []
"""The traces that record now."""

_OFF: AbstractContextManager[None] = contextlib.nullcontext()


class _Span:
    __slots__ = ("_args", "_began", "_name", "_row")

    def __init__(self, name: str, row: str | None, args: dict[str, Any]) -> None:
        self._name, self._row, self._args = name, row, args

    def __enter__(self) -> None:
        self._began = _clock()

    def __exit__(self, *error: object) -> None:
        record(self._name, self._began, row=self._row, **self._args)


def span(name: str, *, row: str | None = None, **args: Any) -> AbstractContextManager[None]:
    """Return a context whose duration is an event in the open traces, in the row of this thread, or in `row`.

    `args` appear in the event: names and numbers.
    """
    return _Span(name, row, args) if open_traces else _OFF


def record(name: str, began: float, ended: float | None = None, *, row: str | None = None, **args: Any) -> None:
    """Add an event from `began` to `ended` (None: now), times of `time.perf_counter`, to the open traces."""
    if not open_traces:
        return
    until = _clock() if ended is None else ended
    for trace in tuple(open_traces):
        trace.add(name, began, until, args or None, row)


def instant(name: str, *, row: str | None = None, **args: Any) -> None:
    """Add an event without duration, such as a restart, to the open traces."""
    for trace in tuple(open_traces):
        trace.add(name, _clock(), None, args or None, row)


# ---- events of workers -----------------------------------------------------------------------------------------------

STEP, RESET, FAILED_STEP, CALL = range(4)
_KINDS = ("step", "reset", "failed step", "call")
EVENT = np.dtype([("began", "f8"), ("ended", "f8"), ("request", "u4"), ("env", "u4"), ("kind", "u1")])
_HEADER, _RECORD = struct.Struct("=Q"), struct.Struct("=ddIIB")  # number of events so far; an event, as `EVENT`
_HEADER_BYTES = 64  # a cache line


class SpanBuffer:
    """The last events of one worker, in shared memory: 25 bytes an event. One process writes, another one reads.

    A process that takes the place of a dead writer makes the buffer anew from the same block and goes on in it.

    Args:
        block: Has the memory as its `buffer`. It must travel to the writer, as a `SharedBlock` does in a request.
        offset: The first byte in the block, a multiple of 64.
        capacity: The number of events that fit. A new event then takes the place of the oldest.
    """

    def __init__(self, block: Any, offset: int, capacity: int) -> None:
        self._given = block, offset, capacity

    @staticmethod
    def num_bytes(capacity: int) -> int:
        """Return the size of a buffer, a multiple of 64."""
        return -(-(_HEADER_BYTES + capacity * _RECORD.size) // 64) * 64

    def writer(self) -> Callable[[int, int, int, float, float], None]:
        """Return the function that adds an event: kind, env, number of the request, start, end. A closure, as it is
        called at every step of an env.
        """
        block, offset, capacity = self._given
        buffer, first, size = block.buffer, offset + _HEADER_BYTES, _RECORD.size
        pack, pack_count = _RECORD.pack_into, _HEADER.pack_into
        (count,) = _HEADER.unpack_from(buffer, offset)

        def add(kind: int, env: int, request: int, began: float, ended: float) -> None:
            nonlocal count
            pack(buffer, first + count % capacity * size, began, ended, request & 0xFFFFFFFF, env, kind)
            count += 1
            pack_count(buffer, offset, count)  # last: a reader takes no event that is half written

        return add

    def read(self) -> tuple[npt.NDArray[np.void], int]:
        """Return the events as an array of `EVENT`, the oldest first, and how many there have been. The writer may go
        on meanwhile.
        """
        block, offset, capacity = self._given
        (before,) = _HEADER.unpack_from(block.buffer, offset)
        held = np.ndarray((capacity,), EVENT, block.buffer, offset + _HEADER_BYTES).copy()
        (after,) = _HEADER.unpack_from(block.buffer, offset)
        oldest = max(after - capacity + 1, 0)  # the place after the newest may be half overwritten
        return held[np.arange(oldest, max(before, oldest)) % capacity], before

    def __reduce__(self) -> tuple[Any, ...]:
        return SpanBuffer, self._given


# ---- a trace ---------------------------------------------------------------------------------------------------------


class _Row:
    """The events of one thread or learner, and how many there have been."""

    __slots__ = ("count", "events", "name")

    def __init__(self, name: str) -> None:
        self.name, self.count = name, 0
        self.events: deque[Event] = deque(maxlen=MOST_OF_A_ROW)


class Trace:
    """A timeline that is recorded for the context, and written at its end, also if the block raised.

    `recording` is the context without the file, which `write` then writes. Several traces may be open at once: each
    records what happens meanwhile. In a process forked from the one that made it, a trace records and writes nothing.

    Threads: any number of threads may add events.

    Args:
        path: The file. It appears complete, at the end; a file that was there before is replaced.
        seconds: How many seconds the file holds: the last ones. None: no limit but the number of events.

    Raises:
        OSError: The file cannot be written: at once if that can be seen beforehand. If the block raised, its own
            exception is raised, and the error of the file is logged.
    """

    def __init__(self, path: str | Path, seconds: float | None = 60.0) -> None:
        from parallel_envs.files import unwritable  # late: workers need only the buffers

        self.path, self.seconds = Path(path), optional_seconds("seconds", seconds)
        if problem := unwritable(self.path):
            raise OSError(f"The trace {self.path} cannot be written: {problem}. Name another file.")
        self.began, self._wall = _clock(), datetime.now(UTC)
        self._rows: dict[tuple[int, str], _Row] = {}
        self._buffers: dict[str, SpanBuffer] = {}
        self._stats: list[tuple[str, Callable[[], Iterable[Mapping[str, Any]]]]] = []
        self._owner, self._thread = os.getpid(), _this_thread()

    def add(
        self, name: str, began: float, ended: float | None, args: Mapping[str, Any] | None, row: str | None = None
    ) -> None:
        """Add an event to the row of this thread, or to the named one."""
        key = _this_thread() if row is None else (0, row)
        found = self._rows.get(key)
        if found is None:
            found = self._rows.setdefault(key, _Row(CALLER if key == self._thread else key[1]))
        found.count += 1
        found.events.append((name, began, ended, args))

    def add_buffer(self, row: str, spans: SpanBuffer) -> None:
        """Take the events of a worker from this buffer when the file is written."""
        self._buffers[row] = spans

    def add_stats(self, stats: Callable[[], Iterable[Mapping[str, Any]]], prefix: str = "") -> None:
        """Have the file hold the statistics of the workers of a manager, as they are when it is written, for pages."""
        self._stats.append((prefix, stats))

    @contextlib.contextmanager
    def recording(self) -> Iterator[Self]:
        """Record for the context."""
        _close_in_forked_processes()
        open_traces.append(self)
        try:
            yield self
        finally:
            if self in open_traces:  # not in a forked process
                open_traces.remove(self)

    def write(self) -> None:
        """Write the file. Buffers of workers are read now, and then no more."""
        from parallel_envs.files import write_whole

        try:
            if os.getpid() == self._owner:
                write_whole(self.path, self._write)
        except OSError as problem:
            raise OSError(f"The trace {self.path} cannot be written: {problem}. Name another file.") from problem
        finally:
            self._buffers.clear()

    def __enter__(self) -> Self:
        self._recording = self.recording()
        return self._recording.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._recording.__exit__(None, None, None)
        try:
            self.write()
        except OSError as problem:
            if error is None:
                raise
            _log.warning("%s", problem)

    def _write(self, file: IO[bytes]) -> None:
        """Write the file, one event a line."""
        now = _clock()
        since = self.began if self.seconds is None else max(self.began, now - self.seconds)
        rows: dict[str, list[Event]] = {CALLER: []}
        counts: dict[str, int] = {CALLER: 0}
        for name, spans in self._buffers.items():
            found, counts[name] = spans.read()
            rows[name] = [
                (_KINDS[kind], began, ended, {"env": env, "request": request})
                for began, ended, request, env, kind in found.tolist()
            ]
        for row in sorted(self._rows.values(), key=lambda one: _by_number(one.name)):
            rows.setdefault(row.name, []).extend(row.events.copy())
            counts[row.name] = counts.get(row.name, 0) + row.count
        dropped: dict[str, int] = {}
        pid = self._owner
        lines = [_line({"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": "parallel_envs"}})]
        workers = [{**row, "worker": f"{prefix}{row['worker']}"} for prefix, stats in self._stats for row in stats()]
        if workers:  # an event that Perfetto ignores
            lines.append(_line({"name": STATS, "ph": "M", "pid": pid, "tid": 0, "args": {"workers": workers}}))
        for tid, (name, events) in enumerate(rows.items()):
            kept = [one for one in events if one[1] >= self.began and (one[2] or one[1]) >= since]
            kept.sort(key=lambda one: (one[1], -(one[2] or one[1])))  # an event stands before those inside it
            if counts[name] > len(kept):
                dropped[name] = counts[name] - len(kept)
            of_row = {"ph": "M", "pid": pid, "tid": tid}
            lines.append(_line({"name": "thread_name", **of_row, "args": {"name": name}}))
            lines.append(_line({"name": "thread_sort_index", **of_row, "args": {"sort_index": tid}}))
            for what, began, ended, args in kept:
                # Whole nanoseconds: two events of which one ends where the other begins must not overlap by a rounding.
                start, shown = round((began - self.began) * 1e9), "" if args is None else f',"args":{_line(args)}'
                how = '"ph":"i","s":"t"'
                if ended is not None:
                    how = f'"ph":"X","dur":{(round((ended - self.began) * 1e9) - start) / 1e3:.3f}'
                lines.append(
                    f'{{"name":{json.dumps(what)},{how},"ts":{start / 1e3:.3f},"pid":{pid},"tid":{tid}{shown}}}'
                )
        metadata = {
            "began": self._wall.isoformat(timespec="milliseconds"),
            "duration_seconds": round(now - self.began, 6),
            "seconds": self.seconds,
            "dropped": dropped,
        }
        file.write(b'{"traceEvents":[\n')
        file.write(",\n".join(lines).encode())
        file.write(f'\n],"displayTimeUnit":"ms","metadata":{_line(metadata)}}}\n'.encode())


def _by_number(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts "worker 10" behind "worker 9"."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", name)]


def _this_thread() -> tuple[int, str]:
    """Return the id and the name of this thread. Linux gives the id of a thread that has ended to another one."""
    return threading.get_ident(), threading.current_thread().name


def _line(value: Mapping[str, Any]) -> str:
    """Return a mapping as JSON in one line."""
    try:
        return _encode(value)
    except ValueError:  # it has a number that is not finite, for which JSON has no word
        return _encode(_finite(value))


_encode = json.JSONEncoder(
    separators=(",", ":"),
    allow_nan=False,
    default=lambda value: value.tolist() if isinstance(value, np.generic | np.ndarray) else str(value),
).encode


def _finite(value: Any) -> Any:
    """Return a value with texts in the place of numbers that are not finite: "nan", "inf", "-inf"."""
    if isinstance(value, np.generic | np.ndarray):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


@functools.cache
def _close_in_forked_processes() -> None:
    os.register_at_fork(after_in_child=open_traces.clear)
