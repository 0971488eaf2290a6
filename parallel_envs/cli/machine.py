"""What this machine is like and what it lets workers do, found out by trying. Nothing here judges it."""

from __future__ import annotations

import os
import platform
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

from parallel_envs import __version__
from parallel_envs.choices import StartMethod
from parallel_envs.cli.cgroups import Limits, limits

DISTRIBUTIONS = (
    *("numpy", "gymnasium", "pettingzoo", "cloudpickle", "pydantic", "typer", "rich", "pyyaml"),
    *("torch", "safetensors", "tensorboard", "cpprb", "moviepy"),
    *("mujoco", "ale-py", "mpe2", "lbforaging", "metaworld", "mettagrid"),
)
"""What is installed of the core, then of the extras."""

THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

TRIAL_WORKERS = 2
_TRIAL_SECONDS = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What became of starting a few workers, each with an environment, in one way."""

    seconds: float | None = None
    error: str | None = None
    memory_bytes_each: int = 0
    """A worker's own, with an environment of Gymnasium and nothing else in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """The facts. None: not known, or without limit."""

    system: str
    release: str
    python: str
    cores: int
    usable_cores: int
    limits: Limits = field(default_factory=Limits)
    memory_available_bytes: int | None
    descriptors: int | None
    """How many files this process may hold open (`ulimit -n`)."""
    most_descriptors: int | None
    """How many it may ask for."""
    user_processes: int | None
    """How many processes and threads this user may have (`ulimit -u`)."""
    shared_memory_error: str | None
    """Why memory cannot be shared with workers."""
    dev_shm_bytes: int | None
    """Free in /dev/shm, which other libraries share memory through."""
    watches_processes: bool
    """Whether the system tells when a process ends."""
    trials: Mapping[str, Trial]
    """By start method."""
    versions: Mapping[str, str | None]
    environment: Mapping[str, str]
    """Variables that change how numeric libraries and renderers work."""


def look(start_methods: tuple[StartMethod, ...]) -> Machine:
    """Look at this machine, and start workers in each of these ways."""
    descriptors, most_descriptors = _limits("RLIMIT_NOFILE")
    processes, _ = _limits("RLIMIT_NPROC")
    return Machine(
        system=platform.system(),
        release=platform.release(),
        python=platform.python_version(),
        cores=os.cpu_count() or 1,
        usable_cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        limits=limits(),
        memory_available_bytes=_memory_available(),
        descriptors=descriptors,
        most_descriptors=most_descriptors,
        user_processes=None if os.geteuid() == 0 else processes,  # the superuser is not held to it
        shared_memory_error=_shared_memory_error(),
        dev_shm_bytes=_free(Path("/dev/shm")),
        watches_processes=_watches_processes(),
        trials={method: try_start_method(method) for method in start_methods},
        versions={"parallel-envs": __version__, **{name: _version(name) for name in DISTRIBUTIONS}},
        environment={
            name: os.environ[name] for name in (*THREAD_VARIABLES, "MUJOCO_GL", "DISPLAY") if name in os.environ
        },
    )


def try_start_method(method: StartMethod) -> Trial:
    """Start two workers, have each make an environment, and end them again."""
    import gymnasium

    from parallel_envs.engine import HOST, PoolSettings, open_pool, start_supervisor

    try:
        start_supervisor()
        began = time.perf_counter()
        pool = open_pool(TRIAL_WORKERS, PoolSettings(context=method, name="trial", start_timeout=_TRIAL_SECONDS))
    except Exception as error:  # noqa: BLE001  # whatever stands in the way is what is asked for
        return Trial(error=f"{type(error).__name__}: {error}")
    try:
        ticket = pool.call_all(HOST, "build", pool.new_key(), gymnasium.make, "CartPole-v1")
        if not pool.wait(ticket, _TRIAL_SECONDS):
            return Trial(error=f"the workers did not answer within {_TRIAL_SECONDS:g} s")
        if ticket.replies:
            return Trial(error=f"a worker failed: {next(iter(ticket.replies.values()))}")
        return Trial(
            seconds=time.perf_counter() - began,
            memory_bytes_each=max(_own_memory(pool.pid(worker)) for worker in pool.all_workers),
        )
    except Exception as error:  # noqa: BLE001  # see above
        return Trial(error=f"{type(error).__name__}: {error}")
    finally:
        pool.close()


def _limits(name: str) -> tuple[int | None, int | None]:
    """Return the soft and the hard limit of this process; None where there is none."""
    try:
        import resource
    except ImportError:  # not a system of Unix's kind
        return None, None
    soft, hard = resource.getrlimit(getattr(resource, name))
    unlimited = resource.RLIM_INFINITY
    return None if soft == unlimited else soft, None if hard == unlimited else hard


def _watches_processes() -> bool:
    if not hasattr(os, "pidfd_open"):
        return False
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
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


def _memory_available() -> int | None:
    return _kilobytes(Path("/proc/meminfo"), "MemAvailable:")


def _own_memory(pid: int) -> int:
    """Its own share of what it holds; 0 where the system does not tell."""
    return _kilobytes(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") or 0


def _kilobytes(file: Path, name: str) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


def _free(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(folder).free
    except OSError:
        return None


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None
