"""`parallel-envs doctor`: what would go wrong with worker processes on this machine.

look(start_methods) -> Machine        facts, found out by trying; nothing here judges them
findings(machine, num_workers)        judgements from the facts alone
"""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

import typer

from parallel_envs import __version__
from parallel_envs.choices import StartMethod
from parallel_envs.cli.outputs import AsJson, ExitCode, console, json_text
from parallel_envs.progress import shown

_MARKS = {"ok": "[green]ok[/]", "note": "[yellow]note[/]", "problem": "[bold red]problem[/]"}


def doctor(
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers",
            "-w",
            min=1,
            metavar="N",
            help="The number of workers that you want. Default: one for each core.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look at this machine: what would go wrong with worker processes here, and what to set.

    Starts a few workers by each start method. Exit code 1 if something would go wrong.

    Examples:
      parallel-envs doctor
      parallel-envs doctor --workers 64
      parallel-envs doctor --json > machine.json
    """
    from parallel_envs.engine import START_METHODS

    with shown(transient=True) as display:
        display.begin()
        machine = look(START_METHODS, lambda method: display.show(more=f"Starting workers by {method} ..."))
    found = findings(machine, workers or machine.usable_cores)
    if as_json:
        typer.echo(json_text({"findings": found, "machine": machine}))
    else:
        _show(machine, found)
    if any(finding.level == "problem" for finding in found):
        raise typer.Exit(ExitCode.WENT_WRONG)


def _show(machine: Machine, found: Sequence[Finding]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_header=False)
    for finding in found:
        advice = f"\n[bold]{escape(finding.advice)}[/]" if finding.advice else ""
        table.add_row(_MARKS[finding.level], escape(finding.subject), escape(finding.fact) + advice)
    shown, problems = console(), sum(finding.level == "problem" for finding in found)
    shown.print(table)
    installed = [f"{name}=={version}" for name, version in machine.versions.items() if version is not None]
    missing = [name for name, version in machine.versions.items() if version is None]
    lines = [f"installed: {', '.join(installed)}", *([f"not installed: {', '.join(missing)}"] if missing else [])]
    for line in (*lines, f"Problems: {problems}." if problems else "Worker processes work here."):
        shown.print(line, markup=False, highlight=False)


# ---- facts ----------------------------------------------------------------------------------------------------------

DISTRIBUTIONS = (
    *("numpy", "gymnasium", "pettingzoo", "cloudpickle", "pydantic", "typer", "rich", "pyyaml"),
    *("torch", "safetensors", "tensorboard", "cpprb", "moviepy"),
    *("wandb", "mlflow-skinny", "trackio", "optuna"),
    *("mujoco", "ale-py", "mpe2", "lbforaging", "metaworld", "mettagrid"),
)
"""Libraries whose versions are shown: of the core, then of the extras."""

TRIAL_WORKERS = 2
_TRIAL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of control groups, as containers and service managers set them. None: no limit."""

    cores: float | None = None
    memory_bytes: int | None = None  # the limit of all processes of the group together
    memory_used_bytes: int = 0
    processes: int | None = None  # threads count as processes
    processes_used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrial:
    """The outcome of starting a few workers by one start method, each with an environment."""

    seconds: float | None = None
    error: str | None = None
    memory_bytes_each: int = 0  # the own memory of a worker that holds a Gymnasium environment and nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Facts of a machine. None: not known, or no limit."""

    system: str
    release: str
    python: str
    cores: int
    usable_cores: int
    limits: Limits = field(default_factory=Limits)
    memory_available_bytes: int | None
    descriptors: int | None  # the number of files that this process may hold open (`ulimit -n`)
    most_descriptors: int | None  # the highest number of files that it may request
    user_processes: int | None  # the number of processes and threads that this user may have (`ulimit -u`)
    shared_memory_error: str | None  # the error if memory cannot be shared with workers
    watches_processes: bool  # whether the system tells when a process ends
    trials: Mapping[str, StartTrial]  # by start method
    versions: Mapping[str, str | None]


def look(start_methods: tuple[StartMethod, ...], tell: Callable[[str], None] = lambda method: None) -> Machine:
    """Return the facts of this machine. Starts workers by each of these methods, after calling `tell` with it."""
    from parallel_envs.engine import SharedBlock, num_cores

    def soft_and_hard(name: str) -> list[int | None]:
        try:
            import resource
        except ImportError:  # not a Unix system
            return [None, None]
        unlimited = resource.RLIM_INFINITY
        return [None if one == unlimited else one for one in resource.getrlimit(getattr(resource, name))]

    shared_memory_error, watches = None, True
    try:
        block = SharedBlock.create(1 << 20)
        block.buffer[:8] = b"12345678"
        block.close()
    except OSError as error:
        shared_memory_error = str(error)
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        watches = False
    versions: dict[str, str | None] = {"parallel-envs": __version__}
    for name in DISTRIBUTIONS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    trials: dict[str, StartTrial] = {}
    for method in start_methods:
        tell(method)
        trials[method] = try_start_method(method)
    descriptors, most_descriptors = soft_and_hard("RLIMIT_NOFILE")
    return Machine(
        system=platform.system(),
        release=platform.release(),
        python=platform.python_version(),
        cores=os.cpu_count() or 1,
        usable_cores=num_cores(),
        limits=limits(),
        memory_available_bytes=_kilobytes(Path("/proc/meminfo"), "MemAvailable:"),
        descriptors=descriptors,
        most_descriptors=most_descriptors,
        # The limit does not hold for the superuser.
        user_processes=None if os.geteuid() == 0 else soft_and_hard("RLIMIT_NPROC")[0],
        shared_memory_error=shared_memory_error,
        watches_processes=watches,
        trials=trials,
        versions=versions,
    )


def try_start_method(method: StartMethod) -> StartTrial:
    """Start two workers, make an environment in each, and stop them."""
    import gymnasium

    from parallel_envs.engine import HOST, PoolSettings, open_pool, start_supervisor

    try:
        start_supervisor()
        began = time.perf_counter()
        settings = PoolSettings(context=method, name="trial", start_timeout=_TRIAL_SECONDS)
        with contextlib.closing(open_pool(TRIAL_WORKERS, settings)) as pool:
            request = pool.call_all(HOST, "build", pool.new_key(), gymnasium.make, "CartPole-v1")
            if not pool.wait(request, _TRIAL_SECONDS):
                return StartTrial(error=f"the workers did not answer within {_TRIAL_SECONDS:g} s")
            if request.replies:
                return StartTrial(error=f"a worker failed: {next(iter(request.replies.values()))}")
            seconds, pids = time.perf_counter() - began, [pool.pid(worker) for worker in pool.all_workers]
            memory = [_kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") or 0 for pid in pids]
            return StartTrial(seconds=seconds, memory_bytes_each=max(memory))
    except Exception as error:  # noqa: BLE001  # any error is a finding
        return StartTrial(error=f"{type(error).__name__}: {error}")


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []


def _kilobytes(file: Path, name: str) -> int | None:
    """Return the bytes in the line of this name, or None if the file or the line is missing."""
    return next((int(line.split()[1]) * 1024 for line in _lines(file) if line.startswith(name)), None)


def limits(mount: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Limits:
    """Return the limits of this process's control group (version 2) and the groups above it: the tightest of each."""
    path = next((line[3:] for line in _lines(own) if line.startswith("0::")), None)
    group, shares = mount / str(path).lstrip("/"), []
    use: dict[str, list[tuple[int, int]]] = {"memory": [], "pids": []}
    for folder in [] if path is None else [group, *group.parents][: len(group.parts) - len(mount.parts) + 1]:
        if len(numbers := _numbers(folder / "cpu.max")) == 2:
            shares.append(numbers[0] / numbers[1])  # the quota in each period
        for name, found in use.items():
            if most := _numbers(folder / f"{name}.max"):
                found.append((most[0], sum(_numbers(folder / f"{name}.current"))))
    memory, processes = (min(found, default=(None, 0)) for found in use.values())
    return Limits(min(shares, default=None), *memory, *processes)


def _numbers(file: Path) -> list[int]:
    """Return the numbers in a file of a control group, or nothing if it is missing or says "max"."""
    words = " ".join(_lines(file)).split()
    return [int(word) for word in words] if all(map(str.isdecimal, words)) else []


# ---- findings -------------------------------------------------------------------------------------------------------

DESCRIPTORS_EACH = 3
"""Open in the caller's process for each worker: its bell, its channel, and the one that tells its end."""

_SPARE_DESCRIPTORS = 32  # for the other files of a program, and for the pool itself
_SPARE_PROCESSES = 32
_THREADS_EACH = 2  # processes and threads of a worker, as limits count them
_DEFAULT = "forkserver"  # the default start method
_USE_THREADS = 'backend="thread" (`eval`: --jobs 0)'


@dataclass(frozen=True, slots=True)
class Finding:
    """A judgement of one subject. `advice` is empty if there is nothing to do."""

    level: Literal["ok", "note", "problem"]
    subject: str
    fact: str
    advice: str = ""


def findings(machine: Machine, num_workers: int) -> list[Finding]:
    """Return all findings for this number of workers."""
    return [*_of_system(machine), *_of_limits(machine, num_workers)]


def _judged(fits: bool, subject: str, fact: str, advice: str, level: Literal["note", "problem"] = "problem") -> Finding:
    return Finding("ok", subject, fact) if fits else Finding(level, subject, fact, advice)


def _of_system(machine: Machine) -> Iterator[Finding]:
    fact = f"{machine.system} {machine.release}, Python {machine.python}"
    if not machine.watches_processes:
        fact += ": it does not tell when a process ends, so no worker process can be watched"
    advice = f"Use Linux 5.3 or later, allow pidfd_open in the sandbox, or say {_USE_THREADS}."
    yield _judged(machine.watches_processes, "system", fact, advice)
    error, fact = machine.shared_memory_error, "anonymous (memfd): workers need neither /dev/shm nor its size"
    fact = fact if error is None else f"cannot be created: {error}"
    yield _judged(error is None, "shared memory", fact, f"Allow memfd_create in the sandbox, or say {_USE_THREADS}.")
    works = [method for method, trial in machine.trials.items() if trial.error is None]
    for method, trial in machine.trials.items():
        if trial.error is None:
            fact = f"{trial.seconds or 0.0:.2f} s for two workers with an environment"
            yield Finding("ok", method, fact + (", the default" if method == _DEFAULT else ""))
            continue
        advice = f'Say context="{works[0]}".' if works and method == _DEFAULT else ""
        if os.strerror(errno.EMFILE) in trial.error:
            advice = "See descriptors, below."
        elif not works:
            advice = f"Say {_USE_THREADS}."
        level: Literal["note", "problem"] = "note" if works and method != _DEFAULT else "problem"
        yield Finding(level, method, f"does not work: {trial.error}", advice)


def _of_limits(machine: Machine, num_workers: int) -> Iterator[Finding]:
    group = machine.limits
    fact, advice = f"{machine.usable_cores} of {machine.cores} cores may be used", ""
    if group.cores is not None and group.cores < machine.usable_cores:
        fact += f", and the control group gives them the time of {group.cores:g}"
        advice = f"Use {max(1, int(group.cores))} workers (num_workers=, --jobs): more take turns."
    elif machine.usable_cores == 1:
        advice = "Workers take turns on one core: stay with --jobs 0 or SyncVectorEnv."
    elif num_workers > machine.usable_cores:
        advice = f"{num_workers} workers take turns on them, which pays only where they wait for something."
    yield _judged(not advice, "cores", fact, advice, "note")

    each = max((trial.memory_bytes_each for trial in machine.trials.values()), default=0)
    allowed = None if group.memory_bytes is None else max(0, group.memory_bytes - group.memory_used_bytes)
    free = min((one for one in (machine.memory_available_bytes, allowed) if one is not None), default=None)
    if free is None or not each:
        yield Finding("note", "memory", "the free memory, or the memory of a worker, is not known")
    else:
        fact = f"{_bytes(free)} are free; a worker takes {_bytes(each)}, and its environment takes more"
        advice = f"{num_workers} workers do not fit. Use at most {max(1, free // each)}, with several envs each."
        yield _judged(each * num_workers <= free, "memory", fact, advice)

    if machine.descriptors is None:
        yield Finding("ok", "descriptors", "no limit")
    else:
        room = max(0, (machine.descriptors - _SPARE_DESCRIPTORS) // DESCRIPTORS_EACH)
        fact = f"{machine.descriptors:,} open files are allowed (ulimit -n): room for {room:,} workers"
        needed, hard = num_workers * DESCRIPTORS_EACH + _SPARE_DESCRIPTORS, machine.most_descriptors
        advice = f"Say `ulimit -n {needed}` before you start your program."
        if hard is not None and needed > hard:
            fewer = f", or use at most {room} workers with several envs each" if room else ""
            advice = f"{num_workers} workers need {needed:,}, and your hard limit is {hard:,}: raise it{fewer}."
        yield _judged(room >= num_workers, "descriptors", fact, advice)

    left, fact, name = machine.user_processes, "are allowed for your user (ulimit -u)", "`ulimit -u`"
    if group.processes is not None:
        left = max(0, group.processes - group.processes_used)
        fact, name = "more are allowed by the control group", "pids.max (docker: --pids-limit)"
    needed = _THREADS_EACH * num_workers + _SPARE_PROCESSES
    fact = "no limit" if left is None else f"{left:,} processes and threads {fact}"
    advice = f"{num_workers} workers may need {needed}: raise {name}."
    yield _judged(left is None or left >= needed, "processes", fact, advice)


def _bytes(number: float) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.0f} {unit}"
        number /= 1024
    return f"{number:.1f} GiB"
