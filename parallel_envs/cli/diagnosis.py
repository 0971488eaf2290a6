"""What would go wrong on a machine, and what to set: findings from facts, with nothing looked up here."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from parallel_envs.cli.machine import THREAD_VARIABLES, Machine

Level = Literal["ok", "note", "problem"]

DESCRIPTORS_EACH = 3
"""Open in your process for each worker: its bell, its channel, and what tells of its end."""

_SPARE_DESCRIPTORS = 32  # what a program holds open besides, a pool's own among them
_SPARE_PROCESSES = 32
_THREADS_EACH = 2  # a worker's processes and threads, as limits count them
_DEFAULT = "forkserver"  # how workers are started where nobody says otherwise
_TOO_MANY_FILES = os.strerror(errno.EMFILE)
_SMALL_DEV_SHM = 1 << 28


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `advice` is empty where there is nothing to do."""

    level: Level
    subject: str
    fact: str
    advice: str = ""


def findings(machine: Machine, num_workers: int) -> list[Finding]:
    """All that can be said of a machine for so many workers."""
    return [
        _system(machine),
        *_start_methods(machine),
        _cores(machine, num_workers),
        _memory(machine, num_workers),
        _descriptors(machine, num_workers),
        _processes(machine, num_workers),
        *_shared_memory(machine),
        *_threads(machine),
        *_rendering(machine),
    ]


def _system(machine: Machine) -> Finding:
    fact = f"{machine.system} {machine.release}, Python {machine.python}"
    if machine.watches_processes:
        return Finding("ok", "system", fact)
    return Finding(
        "problem",
        "system",
        f"{fact}: it does not tell when a process ends, so no worker process can be watched",
        'Use Linux 5.3 or later, allow pidfd_open in the sandbox, or say backend="thread" (`eval`: --jobs 0).',
    )


def _start_methods(machine: Machine) -> Iterator[Finding]:
    works = [method for method, trial in machine.trials.items() if trial.error is None]
    for method, trial in machine.trials.items():
        if trial.error is None:
            fact = f"{trial.seconds or 0.0:.2f} s for two workers with an environment"
            yield Finding("ok", method, fact + (", the default" if method == _DEFAULT else ""))
        else:
            level: Level = "note" if works and method != _DEFAULT else "problem"
            yield Finding(level, method, f"does not work: {trial.error}", _instead(method, trial.error, works))


def _instead(method: str, error: str, works: Sequence[str]) -> str:
    if _TOO_MANY_FILES in error:
        return "See descriptors, below."
    if not works:
        return 'Say backend="thread" (`eval`: --jobs 0).'
    return f'Say context="{works[0]}".' if method == _DEFAULT else ""


def _cores(machine: Machine, num_workers: int) -> Finding:
    fact = f"{machine.usable_cores} of {machine.cores} cores may be used"
    quota = machine.limits.cores
    if quota is not None and quota < machine.usable_cores:
        fact += f", and the control group gives them the time of {quota:g}"
        advice = f"Use {max(1, int(quota))} workers (num_workers=, --jobs): more take turns."
        return Finding("note", "cores", fact, advice)
    if machine.usable_cores == 1:
        return Finding("note", "cores", fact, "Workers take turns on one core: stay with --jobs 0 or SyncVectorEnv.")
    if num_workers > machine.usable_cores:
        advice = f"{num_workers} workers take turns on them, which pays only where they wait for something."
        return Finding("note", "cores", fact, advice)
    return Finding("ok", "cores", fact)


def _memory(machine: Machine, num_workers: int) -> Finding:
    each, free = max((trial.memory_bytes_each for trial in machine.trials.values()), default=0), _memory_free(machine)
    if free is None or not each:
        return Finding("note", "memory", "how much is free, or what a worker takes, is not known")
    fact = f"{_bytes(free)} are free; a worker takes {_bytes(each)} and its environment what that takes"
    if each * num_workers <= free:
        return Finding("ok", "memory", fact)
    fits = max(1, free // each)
    advice = f"{num_workers} workers do not fit. Use at most {fits}, with several envs each."
    return Finding("problem", "memory", fact, advice)


def _memory_free(machine: Machine) -> int | None:
    group = machine.limits
    allowed = None if group.memory_bytes is None else max(0, group.memory_bytes - group.memory_used_bytes)
    return min((one for one in (machine.memory_available_bytes, allowed) if one is not None), default=None)


def _descriptors(machine: Machine, num_workers: int) -> Finding:
    if machine.descriptors is None:
        return Finding("ok", "descriptors", "no limit")
    room = max(0, (machine.descriptors - _SPARE_DESCRIPTORS) // DESCRIPTORS_EACH)
    fact = f"{machine.descriptors:,} open files are allowed (ulimit -n): room for {room:,} workers"
    if room >= num_workers:
        return Finding("ok", "descriptors", fact)
    needed, most = num_workers * DESCRIPTORS_EACH + _SPARE_DESCRIPTORS, machine.most_descriptors
    if most is None or needed <= most:
        return Finding("problem", "descriptors", fact, f"Say `ulimit -n {needed}` before you start your program.")
    fewer = f", or use at most {room} workers with several envs each" if room else ""
    advice = f"{num_workers} workers need {needed:,}, and your hard limit is {most:,}: raise it{fewer}."
    return Finding("problem", "descriptors", fact, advice)


def _processes(machine: Machine, num_workers: int) -> Finding:
    group, needed = machine.limits, _THREADS_EACH * num_workers + _SPARE_PROCESSES
    if group.processes is not None:
        left = max(0, group.processes - group.processes_used)
        fact = f"{left:,} more processes and threads are allowed by the control group"
        if left < needed:
            advice = f"{num_workers} workers may need {needed}: raise pids.max (docker: --pids-limit)."
            return Finding("problem", "processes", fact, advice)
        return Finding("ok", "processes", fact)
    if machine.user_processes is not None:
        fact = f"{machine.user_processes:,} processes and threads are allowed to you (ulimit -u)"
        if machine.user_processes < needed:
            return Finding("problem", "processes", fact, f"{num_workers} workers may need {needed}: raise `ulimit -u`.")
        return Finding("ok", "processes", fact)
    return Finding("ok", "processes", "no limit")


def _shared_memory(machine: Machine) -> Iterator[Finding]:
    if machine.shared_memory_error is not None:
        advice = 'Allow memfd_create in the sandbox, or say backend="thread" (`eval`: --jobs 0).'
        yield Finding("problem", "shared memory", f"cannot be made: {machine.shared_memory_error}", advice)
    else:
        yield Finding("ok", "shared memory", "anonymous (memfd): neither /dev/shm nor its size matters to our workers")
    if machine.dev_shm_bytes is not None and machine.dev_shm_bytes < _SMALL_DEV_SHM:
        yield Finding(
            "note",
            "/dev/shm",
            f"{_bytes(machine.dev_shm_bytes)} free, little for other libraries (torch's DataLoader, Gymnasium's async)",
            "Where you use these: docker run --shm-size=1g.",
        )


def _threads(machine: Machine) -> Iterator[Finding]:
    given = {name: machine.environment[name] for name in THREAD_VARIABLES if name in machine.environment}
    if many := {name: value for name, value in given.items() if value != "1"}:
        told = ", ".join(f"{name}={value}" for name, value in many.items())
        yield Finding("ok", "threads", f"{told} holds for your own process; workers compute with one thread each")


def _rendering(machine: Machine) -> Iterator[Finding]:
    if machine.versions.get("mujoco") and not {"DISPLAY", "MUJOCO_GL"} & machine.environment.keys():
        yield Finding(
            "note",
            "rendering",
            "there is no display, and MuJoCo looks for one",
            "To render MuJoCo: export MUJOCO_GL=egl or MUJOCO_GL=osmesa. (`eval --record` tries EGL by itself.)",
        )


def _bytes(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
