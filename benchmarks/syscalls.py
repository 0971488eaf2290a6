"""`python -m benchmarks syscalls`: read and write calls of one environment step, counted by strace.

A child program makes a number of steps under `strace -f -c`, and a second child makes fewer. The difference between the
two counts, divided by the difference in steps, excludes start-up. All processes of the child are counted.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import GymnasiumAsync
from benchmarks.plan import run_steps
from parallel_envs.bench.envs import resolve
from parallel_envs.bench.measure import MeasurementFailed, Tell, python_command, python_environment
from parallel_envs.bench.runners import Ours, Runner, make_workload

READ_WRITE = (
    *("read", "readv", "pread64", "preadv", "recvfrom", "recvmsg", "recvmmsg"),
    *("write", "writev", "pwrite64", "pwritev", "sendto", "sendmsg", "sendmmsg", "splice"),
)
WAITING = (
    *("poll", "ppoll", "select", "pselect6", "epoll_wait", "epoll_pwait", "futex", "sched_yield"),
    *("nanosleep", "clock_nanosleep"),
)
CONTESTANTS: dict[str, type[Runner]] = {each.name: each for each in (Ours, GymnasiumAsync)}

_WARM_UP_STEPS = 800
_TIMEOUT = 600.0


class StraceMissing(Exception):
    """Error for a machine without strace, or where strace may not trace."""


@dataclass(frozen=True, kw_only=True)
class CallRow:
    """System calls per environment step."""

    name: str
    read_write: float | None = None
    waiting: float | None = None
    by_name: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None


def measure_calls(
    env: str = "spin:0", num_envs: int = 8, steps: int = 8000, tell: Tell = lambda text: None
) -> tuple[CallRow, ...]:
    """Count for parallel_envs and for Gymnasium's async env, one environment per worker. Return a row for each.

    The default environment does nothing and never ends an episode, so that no resets are counted.
    """
    strace = _strace()
    rows = []
    for name in CONTESTANTS:
        tell(f"tracing {name}")
        rows.append(_row(strace, name, env, num_envs, steps))
    return tuple(rows)


def _row(strace: str, name: str, env: str, num_envs: int, steps: int) -> CallRow:
    try:
        few = _traced(strace, name, env, num_envs, _WARM_UP_STEPS)
        many = _traced(strace, name, env, num_envs, _WARM_UP_STEPS + steps)
    except MeasurementFailed as failure:
        return CallRow(name=name, error=str(failure))
    calls = per_step(few, many)
    return CallRow(
        name=name,
        read_write=sum(calls.get(call, 0.0) for call in READ_WRITE),
        waiting=sum(calls.get(call, 0.0) for call in WAITING),
        by_name=calls,
    )


@dataclass(frozen=True)
class Trace:
    """Steps and system calls of one traced program."""

    steps: int
    calls: Mapping[str, int]


def per_step(few: Trace, many: Trace) -> dict[str, float]:
    """Return the calls per step of the steps that `many` made in addition to those of `few`."""
    steps = many.steps - few.steps
    names = sorted(few.calls.keys() | many.calls.keys())
    return {name: (many.calls.get(name, 0) - few.calls.get(name, 0)) / steps for name in names}


def parse_summary(text: str) -> dict[str, int]:
    """Return the calls in the table of `strace -c`: `% time, seconds, usecs/call, calls, [errors], syscall`."""
    rows = [line.split() for line in text.splitlines()]
    return {row[-1]: int(row[3]) for row in rows if len(row) in (5, 6) and row[3].isdigit() and row[-1] != "total"}


def _traced(strace: str, name: str, env: str, num_envs: int, steps: int) -> Trace:
    with tempfile.TemporaryDirectory() as folder:
        summary = Path(folder, "summary")
        tracing = [strace, "-f", "-c", "-o", str(summary), "-e", f"trace={','.join((*READ_WRITE, *WAITING))}"]
        child = python_command("-m", __name__, name, env, str(num_envs), str(steps))
        made = _run([*tracing, *child])
        return Trace(int(made.split()[-1]), parse_summary(summary.read_text()))


def _run(command: list[str]) -> str:
    """Run a command and return its output."""
    try:
        done = subprocess.run(
            command, env=python_environment(), capture_output=True, text=True, timeout=_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise MeasurementFailed(f"the traced program did not end within {_TIMEOUT:g} s") from None
    if "ptrace" in done.stderr and done.returncode:
        raise StraceMissing(f"strace cannot trace here: {done.stderr.strip()} Allow ptrace for this container.")
    if done.returncode:
        raise MeasurementFailed(f"exit code {done.returncode}: {done.stderr.strip()[-600:]}")
    return done.stdout


def _strace() -> str:
    path = shutil.which("strace")
    if path is None:
        raise StraceMissing("System calls are counted by strace, which is not installed. Try: apt-get install strace")
    return path


def _traced_program(name: str, env: str, num_envs: int, steps: int) -> None:
    """Return the program that runs under strace: it opens, steps and closes a runner, and prints its steps."""
    contestant = CONTESTANTS[name](make_workload(resolve(env), num_envs))
    contestant.load()
    contestant.open()
    print(run_steps(contestant.step, steps))
    contestant.close()


if __name__ == "__main__":
    _traced_program(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
