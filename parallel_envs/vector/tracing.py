"""The time of a manager: the part of a trace that belongs to it, and the table of its statistics.

    trace = Trace("trace.json")
    with traced(envs, trace), trace:            # `envs.trace("trace.json")` is these two
        ...

The trace has a row for each worker, and the calls of the manager in the row of the caller. Workers write into buffers
in shared memory, so events of a worker that has died are kept, and the worker in its place goes on in the same buffer.
In the caller, methods of the manager and of its pool are replaced, on these objects, by functions that call them and
record: a manager that is not traced has nothing to look up.
"""

from __future__ import annotations

import contextlib
import functools
import io
import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from parallel_envs.engine import HOST, Call, PendingRequest, SharedBlock
from parallel_envs.errors import ParallelEnvsError
from parallel_envs.trace import STEP, SpanBuffer, Trace
from parallel_envs.vector.env_errors import env_names
from parallel_envs.vector.recovery import EnvRequest

if TYPE_CHECKING:
    from parallel_envs.vector.manager import ParallelEnvManager

_MOST_EVENTS, _LEAST_EVENTS = 1 << 18, 1 << 12
"""Events that the buffers of all workers hold together, at 25 bytes each, and the fewest that one buffer holds."""
_LONGEST_CALL = 1.0  # seconds to wait, at the end, for another thread that is inside the manager
_CALLS = (
    *("reset", "reset_async", "reset_wait", "step", "step_async", "step_wait", "send", "send_reset", "recv"),
    *("recv_each", "recv_env", "call", "call_async", "call_wait", "apply", "set_attr", "set_tasks", "get_tasks"),
    *("get_state", "set_state", "fork"),
)
_clock = time.perf_counter


@contextlib.contextmanager
def traced(manager: ParallelEnvManager, trace: Trace, prefix: str = "") -> Iterator[None]:
    """Record the work of a manager and its workers in an open trace for the context. `prefix` stands before the names
    of its workers, where a trace has several managers.

    Raises RuntimeError if the manager is being traced.
    """
    tracing = _Tracing(manager, trace, prefix)
    manager._begin_trace(tracing.start)
    try:
        yield
    finally:
        tracing.stop()


class _Tracing:
    """Records one manager in a trace, from `start` to `stop`."""

    def __init__(self, manager: ParallelEnvManager, trace: Trace, prefix: str) -> None:
        self._manager, self._batch, self._trace = manager, manager._batch, trace
        self._pool, self._owner = self._batch.pool, os.getpid()
        self._rows = [
            f"{prefix}worker {worker} (env {held[0]}{f'-{held[-1]}' if len(held) > 1 else ''})"
            for worker, held in enumerate(self._batch.slices)
        ]
        self._prefix = prefix
        self._replaced: list[tuple[Any, str]] = []
        self._request = 0  # the newest request that was made, or waited for

    def start(self) -> None:
        """Have the workers record, and record the calls of the manager."""
        capacity = max(_MOST_EVENTS // len(self._rows), _LEAST_EVENTS)
        size = SpanBuffer.num_bytes(capacity)
        self._block = SharedBlock.create(size * len(self._rows))
        self._buffers = [SpanBuffer(self._block, size * worker, capacity) for worker in range(len(self._rows))]
        for row, spans in zip(self._rows, self._buffers, strict=True):
            self._trace.add_buffer(row, spans)
        self._trace.add_stats(self._stats, self._prefix)
        self._tell(self._pool.all_workers)
        for name in _CALLS:
            self._replace(self._manager, name, functools.partial(self._timed, name))
        for owner, name in (
            (self._pool, "wait"),
            (self._manager._in_flight, "wait"),
            (self._manager._in_flight, "ready"),
        ):
            self._replace(owner, name, functools.partial(self._timed, "wait"))
        self._replace(self._pool, "_open_request", self._opening)
        self._replace(self._batch, "_attach", self._attaching)
        self._replace(self._manager._recovery, "replace", self._restarting)

    def stop(self) -> None:
        """Stop recording. What the workers have recorded is in their buffers, also if a worker is dead or hangs."""
        for owner, name in self._replaced:
            delattr(owner, name)
        self._manager._is_traced = False
        lock = self._manager._guard.lock
        if os.getpid() == self._owner and lock.acquire(timeout=_LONGEST_CALL):
            try:
                if not self._pool.closed:
                    with contextlib.suppress(ParallelEnvsError, OSError):  # it is being closed just now
                        self._tell(self._pool.all_workers, stop=True)
            finally:
                lock.release()
        self._batch.env_seconds = self._mean_steps()
        self._block.close()

    def _stats(self) -> list[dict[str, Any]]:
        return [] if self._pool.closed else self._batch.stats(self._manager._recovery.restarts)

    def _tell(self, workers: Iterable[int], *, stop: bool = False) -> None:
        """Have workers record from now on, or no more. Nobody waits for that: it happens before any later request."""
        calls = {
            worker: Call(HOST, "trace", (self._batch.key, None if stop else self._buffers[worker]))
            for worker in workers
        }
        self._pool.forget(self._pool.send(calls))

    def _mean_steps(self) -> dict[int, float]:
        """Return the mean seconds of the steps of each env that are in the buffers."""
        events = np.concatenate([spans.read()[0] for spans in self._buffers])
        steps = events[events["kind"] == STEP]
        counts = np.bincount(steps["env"])
        seconds = np.bincount(steps["env"], steps["ended"] - steps["began"])
        return {env: float(seconds[env] / counts[env]) for env in np.flatnonzero(counts).tolist()}

    # ---- methods that record ----------------------------------------------------------------------------------------

    def _replace(self, owner: Any, name: str, by: Callable[..., Any]) -> None:
        """Replace a method of this object by a function that is called with the method before its arguments."""
        setattr(owner, name, functools.partial(by, getattr(owner, name)))
        self._replaced.append((owner, name))

    def _timed(self, name: str, method: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a method and record its time, with the number of the request that it made or waited for."""
        began = _clock()
        if name == "wait" and isinstance(args[0], PendingRequest):
            self._request = args[0].number
        try:
            found = method(*args, **kwargs)
            if name == "wait" and isinstance(found, list) and found and isinstance(found[0], EnvRequest):
                self._request = found[-1].pending.number
            return found
        finally:
            self._trace.add(name, began, _clock(), {"request": self._request})

    def _opening(self, method: Callable[..., PendingRequest], /, *args: Any) -> PendingRequest:
        request = method(*args)
        self._request = request.number
        return request

    def _attaching(self, method: Callable[..., None], /, workers: Sequence[int]) -> None:
        """Have a worker that takes the place of another one record in the buffer of that one."""
        method(workers)
        self._tell(workers)

    def _restarting(self, method: Callable[..., None], /, worker: int, env: int | None, fault: Any, *args: Any) -> None:
        began, envs = _clock(), list(self._batch.slices[worker]) if env is None else [env]
        reason = "asked for" if fault is None else str(fault).partition("\n")[0]
        about = {"worker": worker, "env": envs[0], "envs": env_names(envs), "reason": reason}
        try:
            method(worker, env, fault, *args)
            self._trace.add("restart", _clock(), None, about, self._rows[worker])
        finally:
            self._trace.add("restart", began, _clock(), about)


# ---- statistics ------------------------------------------------------------------------------------------------------

_FILE_WIDTH = 100  # of the table, if stdout is no terminal


class WorkerStats(list[dict[str, Any]]):
    """The statistics of each worker (see `ParallelEnvManager.stats`). As text it is a table with shares of time."""

    def __str__(self) -> str:
        from rich.console import Console

        from parallel_envs.terminal import FittingTable, stdout_console

        table = FittingTable(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for name in ("worker", "envs", "steps", "in step", "in reset", "idle", "waited for", "ms/step", "restarts"):
            table.add_column(name, justify="right")
        means = {}
        for row in self:
            whole, envs = row["seconds"] or math.inf, row["env_ids"]
            times = [row[f"{name}_seconds"] / whole for name in ("step", "reset", "idle", "wait")]
            if row["steps"]:
                means[row["worker"]] = row["step_seconds"] / row["steps"] * 1e3
            table.add_row(
                str(row["worker"]),
                f"{envs[0]}-{envs[-1]}" if len(envs) > 1 else str(envs[0]),
                f"{row['steps']:,}",
                *(f"{share:.1%}" for share in times),
                f"{means[row['worker']]:.3f}" if row["steps"] else "-",
                str(row["restarts"]),
            )
        console = Console(file=io.StringIO(), width=stdout_console(_FILE_WIDTH).width, color_system=None)
        with console.capture() as captured:
            console.print(table)
        lines = [line.rstrip() for line in captured.get().splitlines()]
        by_env = {env: mean * 1e3 for row in self for env, mean in row.get("env_step_seconds", {}).items()}
        if by_env:
            slowest = max(by_env, key=lambda env: by_env[env])
            typical = statistics.median(by_env.values())
            lines.append(
                f"Slowest env: {slowest}, {by_env[slowest]:.3f} ms a step in the newest trace (median of all envs: "
                f"{typical:.3f} ms)."
            )
        elif means:
            held = {row["worker"]: row["env_ids"] for row in self if row["steps"]}
            whole_steps = {worker: means[worker] * len(held[worker]) for worker in means}
            worker = max(whole_steps, key=lambda one: whole_steps[one])
            is_env = all(len(envs) == 1 for envs in held.values())
            what = f"env: {held[worker][0]}" if is_env else f"worker: {worker} ({env_names(held[worker])})"
            lines.append(
                f"Slowest {what}, {whole_steps[worker]:.3f} ms for a step{'' if is_env else ' of all its envs'} "
                f"(median of all workers: {statistics.median(whole_steps.values()):.3f} ms)."
            )
        return "\n".join(lines)
