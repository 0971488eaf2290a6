"""Facts of a machine that matter to worker processes, and findings about them.

    look(start_methods) -> Machine        facts, found out by trying; nothing here judges them
    findings(machine, num_workers)        judgements from the facts alone

`doctor.py` imports this file when the command runs, so that `--help` stays quick.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Literal

from parallel_envs import __version__
from parallel_envs.choices import StartMethod

Level = Literal["ok", "note", "problem"]

# ---- control groups: limits of a container or a service manager -----------------------------------------------------

_UNLIMITED = 1 << 60  # version 1 says "no limit" by a number near the largest


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of control groups. None: no limit."""

    cores: float | None = None
    memory_bytes: int | None = None
    """The limit of all processes of the group together."""
    memory_used_bytes: int = 0
    processes: int | None = None
    """Threads count as processes."""
    processes_used: int = 0


def limits(mount: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> Limits:
    """Return the limits of this process, of control groups version 1 or 2. There are none on other systems.

    A process's own group or any group above it may have a limit; the tightest one counts.
    """
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return Limits()
    fields = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    # The path of the group for each controller; the path in version 2 has the empty name.
    paths = {controller: path for _, controllers, path in fields for controller in controllers.split(",")}

    def groups(controller: str) -> Iterator[Path]:
        for root, path in ((mount / controller, paths.get(controller)), (mount, paths.get(""))):
            if path is not None:
                group = root / path.lstrip("/")
                yield from (folder for folder in (group, *group.parents) if folder == root or root in folder.parents)

    def tightest(controller: str, limit: Sequence[str], used: Sequence[str]) -> tuple[int | None, int]:
        found = [(number, group) for group in groups(controller) if (number := _number(group, limit)) is not None]
        if not found:
            return None, 0
        number, group = min(found, key=lambda one: one[0])
        return number, _number(group, used) or 0

    memory = tightest("memory", ("memory.max", "memory.limit_in_bytes"), ("memory.current", "memory.usage_in_bytes"))
    processes = tightest("pids", ("pids.max",), ("pids.current",))
    cores = []
    for group in groups("cpu"):
        # Version 2 has quota and period in one file. "max", or -1, is no limit.
        quota = _words(group / "cpu.max") or _words(group / "cpu.cfs_quota_us") + _words(group / "cpu.cfs_period_us")
        if len(quota) == 2 and all(word.isdecimal() for word in quota):
            cores.append(int(quota[0]) / int(quota[1]))
    return Limits(min(cores, default=None), *memory, *processes)


def _number(group: Path, names: Sequence[str]) -> int | None:
    """Return the number in the first of these files that exists and has a limit."""
    for name in names:
        words = _words(group / name)
        if words and words[0].isdecimal() and int(words[0]) < _UNLIMITED:
            return int(words[0])
    return None


def _words(file: Path) -> list[str]:
    try:
        return file.read_text().split()
    except OSError:
        return []


# ---- facts ----------------------------------------------------------------------------------------------------------

DISTRIBUTIONS = (
    *("numpy", "gymnasium", "pettingzoo", "cloudpickle", "pydantic", "typer", "rich", "pyyaml"),
    *("torch", "safetensors", "tensorboard", "cpprb", "moviepy"),
    *("mujoco", "ale-py", "mpe2", "lbforaging", "metaworld", "mettagrid"),
)
"""Libraries whose versions are shown: of the core, then of the extras."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

TRIAL_WORKERS = 2
_TRIAL_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """The outcome of starting a few workers by one start method, each with an environment."""

    seconds: float | None = None
    error: str | None = None
    memory_bytes_each: int = 0
    """The own memory of a worker that holds a Gymnasium environment and nothing else."""


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
    descriptors: int | None
    """The number of files that this process may hold open (`ulimit -n`)."""
    most_descriptors: int | None
    """The highest number of files that it may request."""
    user_processes: int | None
    """The number of processes and threads that this user may have (`ulimit -u`)."""
    shared_memory_error: str | None
    """The error if memory cannot be shared with workers."""
    dev_shm_bytes: int | None
    """Free bytes in /dev/shm, which other libraries use for shared memory."""
    watches_processes: bool
    """Whether the system tells when a process ends."""
    trials: Mapping[str, Trial]
    """By start method."""
    versions: Mapping[str, str | None]
    environment: Mapping[str, str]
    """Variables that change how numeric libraries and renderers work."""


def look(start_methods: tuple[StartMethod, ...]) -> Machine:
    """Return the facts of this machine. Starts workers by each of these methods."""

    def soft_and_hard(name: str) -> list[int | None]:
        try:
            import resource
        except ImportError:  # not a Unix system
            return [None, None]
        unlimited = resource.RLIM_INFINITY
        return [None if one == unlimited else one for one in resource.getrlimit(getattr(resource, name))]

    try:
        dev_shm = shutil.disk_usage("/dev/shm").free
    except OSError:
        dev_shm = None
    descriptors, most_descriptors = soft_and_hard("RLIMIT_NOFILE")
    processes, _ = soft_and_hard("RLIMIT_NPROC")
    variables = (*THREAD_VARIABLES, "MUJOCO_GL", "DISPLAY")
    return Machine(
        system=platform.system(),
        release=platform.release(),
        python=platform.python_version(),
        cores=os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        limits=limits(),
        memory_available_bytes=_kilobytes(Path("/proc/meminfo"), "MemAvailable:"),
        descriptors=descriptors,
        most_descriptors=most_descriptors,
        user_processes=None if os.geteuid() == 0 else processes,  # the limit does not hold for the superuser
        shared_memory_error=_shared_memory_error(),
        dev_shm_bytes=dev_shm,
        watches_processes=_watches_processes(),
        trials={method: try_start_method(method) for method in start_methods},
        versions={"parallel-envs": __version__, **{name: _version(name) for name in DISTRIBUTIONS}},
        environment={name: os.environ[name] for name in variables if name in os.environ},
    )


def try_start_method(method: StartMethod) -> Trial:
    """Start two workers, make an environment in each, and stop them."""
    import gymnasium

    from parallel_envs.engine import HOST, PoolSettings, open_pool, start_supervisor

    try:
        start_supervisor()
        began = time.perf_counter()
        pool = open_pool(TRIAL_WORKERS, PoolSettings(context=method, name="trial", start_timeout=_TRIAL_SECONDS))
    except Exception as error:  # noqa: BLE001  # any error is a finding
        return Trial(error=f"{type(error).__name__}: {error}")
    try:
        request = pool.call_all(HOST, "build", pool.new_key(), gymnasium.make, "CartPole-v1")
        if not pool.wait(request, _TRIAL_SECONDS):
            return Trial(error=f"the workers did not answer within {_TRIAL_SECONDS:g} s")
        if request.replies:
            return Trial(error=f"a worker failed: {next(iter(request.replies.values()))}")
        seconds, pids = time.perf_counter() - began, [pool.pid(worker) for worker in pool.all_workers]
        memory = [_kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") or 0 for pid in pids]
        return Trial(seconds=seconds, memory_bytes_each=max(memory))
    except Exception as error:  # noqa: BLE001  # see above
        return Trial(error=f"{type(error).__name__}: {error}")
    finally:
        pool.close()


def _watches_processes() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):
        return False
    return True


def _shared_memory_error() -> str | None:
    from parallel_envs.engine import SharedBlock

    try:
        block = SharedBlock.create(1 << 20)
        block.buffer[:8] = b"12345678"
        block.close()
    except OSError as error:
        return str(error)
    return None


def _kilobytes(file: Path, name: str) -> int | None:
    """Return the bytes in the line of this name, or None if the file or the line is missing."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


# ---- findings -------------------------------------------------------------------------------------------------------

DESCRIPTORS_EACH = 3
"""Open in the caller's process for each worker: its bell, its channel, and the one that tells its end."""

_SPARE_DESCRIPTORS = 32  # for the other files of a program, and for the pool itself
_SPARE_PROCESSES = 32
_THREADS_EACH = 2  # processes and threads of a worker, as limits count them
_DEFAULT = "forkserver"  # the default start method
_SMALL_DEV_SHM = 1 << 28
_USE_THREADS = 'backend="thread" (`eval`: --jobs 0)'


@dataclass(frozen=True, slots=True)
class Finding:
    """A judgement of one subject. `advice` is empty if there is nothing to do."""

    level: Level
    subject: str
    fact: str
    advice: str = ""


def findings(machine: Machine, num_workers: int) -> list[Finding]:
    """Return all findings for this number of workers."""
    return [
        *_system(machine),
        _cores(machine, num_workers),
        _memory(machine, num_workers),
        _descriptors(machine, num_workers),
        _processes(machine, num_workers),
        *_shared_memory(machine),
        *_environment(machine),
    ]


def _system(machine: Machine) -> Iterator[Finding]:
    fact = f"{machine.system} {machine.release}, Python {machine.python}"
    if machine.watches_processes:
        yield Finding("ok", "system", fact)
    else:
        fact = f"{fact}: it does not tell when a process ends, so no worker process can be watched"
        advice = f"Use Linux 5.3 or later, allow pidfd_open in the sandbox, or say {_USE_THREADS}."
        yield Finding("problem", "system", fact, advice)
    works = [method for method, trial in machine.trials.items() if trial.error is None]
    for method, trial in machine.trials.items():
        if trial.error is None:
            fact = f"{trial.seconds or 0.0:.2f} s for two workers with an environment"
            yield Finding("ok", method, fact + (", the default" if method == _DEFAULT else ""))
            continue
        if os.strerror(errno.EMFILE) in trial.error:
            advice = "See descriptors, below."
        elif not works:
            advice = f"Say {_USE_THREADS}."
        else:
            advice = f'Say context="{works[0]}".' if method == _DEFAULT else ""
        level: Level = "note" if works and method != _DEFAULT else "problem"
        yield Finding(level, method, f"does not work: {trial.error}", advice)


def _cores(machine: Machine, num_workers: int) -> Finding:
    fact = f"{machine.usable_cores} of {machine.cores} cores may be used"
    quota = machine.limits.cores
    if quota is not None and quota < machine.usable_cores:
        fact += f", and the control group gives them the time of {quota:g}"
        advice = f"Use {max(1, int(quota))} workers (num_workers=, --jobs): more take turns."
    elif machine.usable_cores == 1:
        advice = "Workers take turns on one core: stay with --jobs 0 or SyncVectorEnv."
    elif num_workers > machine.usable_cores:
        advice = f"{num_workers} workers take turns on them, which pays only where they wait for something."
    else:
        return Finding("ok", "cores", fact)
    return Finding("note", "cores", fact, advice)


def _memory(machine: Machine, num_workers: int) -> Finding:
    each, group = max((trial.memory_bytes_each for trial in machine.trials.values()), default=0), machine.limits
    allowed = None if group.memory_bytes is None else max(0, group.memory_bytes - group.memory_used_bytes)
    free = min((one for one in (machine.memory_available_bytes, allowed) if one is not None), default=None)
    if free is None or not each:
        return Finding("note", "memory", "the free memory, or the memory of a worker, is not known")
    fact = f"{_bytes(free)} are free; a worker takes {_bytes(each)}, and its environment takes more"
    if each * num_workers <= free:
        return Finding("ok", "memory", fact)
    advice = f"{num_workers} workers do not fit. Use at most {max(1, free // each)}, with several envs each."
    return Finding("problem", "memory", fact, advice)


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
        advice = f"{num_workers} workers may need {needed}: raise pids.max (docker: --pids-limit)."
    elif machine.user_processes is not None:
        left = machine.user_processes
        fact = f"{left:,} processes and threads are allowed for your user (ulimit -u)"
        advice = f"{num_workers} workers may need {needed}: raise `ulimit -u`."
    else:
        return Finding("ok", "processes", "no limit")
    return Finding("problem", "processes", fact, advice) if left < needed else Finding("ok", "processes", fact)


def _shared_memory(machine: Machine) -> Iterator[Finding]:
    if machine.shared_memory_error is not None:
        advice = f"Allow memfd_create in the sandbox, or say {_USE_THREADS}."
        yield Finding("problem", "shared memory", f"cannot be created: {machine.shared_memory_error}", advice)
    else:
        yield Finding("ok", "shared memory", "anonymous (memfd): our workers need neither /dev/shm nor its size")
    if machine.dev_shm_bytes is not None and machine.dev_shm_bytes < _SMALL_DEV_SHM:
        yield Finding(
            "note",
            "/dev/shm",
            f"{_bytes(machine.dev_shm_bytes)} free, little for other libraries (torch's DataLoader, Gymnasium's async)",
            "If you use these: docker run --shm-size=1g.",
        )


def _environment(machine: Machine) -> Iterator[Finding]:
    variables = machine.environment
    if many := [f"{name}={variables[name]}" for name in THREAD_VARIABLES if variables.get(name, "1") != "1"]:
        text = f"{', '.join(many)} holds for your own process; workers compute with one thread each"
        yield Finding("ok", "threads", text)
    if machine.versions.get("mujoco") and not {"DISPLAY", "MUJOCO_GL"} & variables.keys():
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
