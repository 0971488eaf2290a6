"""`parallel-envs doctor`: what it says of this machine, and of machines that are made up."""

from __future__ import annotations

import dataclasses
import gc
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from parallel_envs.cli.doctor import (
    DESCRIPTORS_EACH,
    Finding,
    Limits,
    Machine,
    StartTrial,
    findings,
    limits,
    try_start_method,
)
from parallel_envs.engine import PoolSettings, open_pool, start_supervisor
from tests.cli.test_tool import command

GIB = 1 << 30
WORKS = StartTrial(seconds=0.5, memory_bytes_each=50 << 20)
FAILS = StartTrial(error="OSError: [Errno 1] Operation not permitted")

FINE = Machine(
    system="Linux",
    release="6.1",
    python="3.11.7",
    cores=8,
    usable_cores=8,
    memory_available_bytes=16 * GIB,
    descriptors=1024,
    most_descriptors=4096,
    user_processes=None,
    shared_memory_error=None,
    watches_processes=True,
    trials={"forkserver": WORKS, "spawn": WORKS, "fork": WORKS},
    versions={"mujoco": None},
)


def found(num_workers: int = 8, **changes: Any) -> dict[str, Finding]:
    """By subject, what is said of the fine machine with some things changed."""
    return {one.subject: one for one in findings(dataclasses.replace(FINE, **changes), num_workers)}


@pytest.mark.parametrize(
    ("changes", "subject", "level", "words"),
    [
        ({"watches_processes": False}, "system", "problem", 'backend="thread"'),
        ({"trials": {"forkserver": FAILS, "spawn": WORKS}}, "forkserver", "problem", 'Say context="spawn".'),
        ({"trials": {"forkserver": FAILS, "spawn": FAILS}}, "spawn", "problem", 'Say backend="thread"'),
        (
            {"trials": {"fork": StartTrial(error="OSError: [Errno 24] Too many open files")}},
            "fork",
            "problem",
            "See desc",
        ),
        ({"usable_cores": 1}, "cores", "note", "Workers take turns on one core"),
        ({"limits": Limits(cores=2.5)}, "cores", "note", "Use 2 workers"),
        ({"memory_available_bytes": 200 << 20}, "memory", "problem", "Use at most 4, with several envs each."),
        ({"limits": Limits(memory_bytes=GIB, memory_used_bytes=GIB - 100)}, "memory", "problem", "Use at most 1,"),
        ({"descriptors": 40}, "descriptors", "problem", "Say `ulimit -n 56` before"),
        ({"descriptors": 40, "most_descriptors": 40}, "descriptors", "problem", "or use at most 2 workers"),
        ({"descriptors": None}, "descriptors", "ok", ""),
        ({"limits": Limits(processes=60, processes_used=30)}, "processes", "problem", "8 workers may need 48"),
        ({"user_processes": 20}, "processes", "problem", "raise `ulimit -u`"),
        ({"shared_memory_error": "not permitted"}, "shared memory", "problem", "Allow memfd_create"),
    ],
)
def test_what_would_go_wrong_is_told(changes: dict[str, Any], subject: str, level: str, words: str) -> None:
    finding = found(**changes)[subject]
    assert finding.level == level
    assert words in finding.advice


def test_on_a_fine_machine_all_is_well() -> None:
    assert {(one.level, one.advice) for one in found().values()} == {("ok", "")}


# ---- control groups ----------------------------------------------------------------------------------------------


VERSION_2 = {
    "cpu.max": "800000 100000",
    "a/cpu.max": "150000 100000",
    "a/b/cpu.max": "max 100000",
    "memory.max": "5000",
    "a/memory.max": "1000",
    "a/memory.current": "300",
    "a/b/memory.max": "max",
    "a/b/pids.max": "50",
    "a/b/pids.current": "7",
    "other/memory.max": "5",
}


@pytest.mark.parametrize(
    ("own", "files", "expected"),
    [
        ("0::/a/b\n", VERSION_2, Limits(1.5, 1000, 300, 50, 7)),  # the tightest on the way up
        ("4:memory:/job\n0::/\n", {"cpu.max": "max 100000", "memory.max": "96"}, Limits(memory_bytes=96)),
        ("nonsense", {}, Limits()),
    ],
)
def test_limits_of_control_groups_are_found(own: str, files: dict[str, str], expected: Limits, tmp_path: Path) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + "\n")
    (tmp_path / "own").write_text(own)
    assert limits(tmp_path, tmp_path / "own") == expected
    assert limits(tmp_path, tmp_path / "nowhere") == Limits()


# ---- this machine ------------------------------------------------------------------------------------------------


def test_this_machine_is_looked_at() -> None:
    result = command("doctor", "--json", "--workers", "1")
    document = json.loads(result.stdout)
    assert result.exit_code == int(any(one["level"] == "problem" for one in document["findings"]))
    working = [method for method, trial in document["machine"]["trials"].items() if trial["error"] is None]
    assert working == ["forkserver", "spawn", "fork"]
    assert document["machine"]["versions"]["gymnasium"]


def test_the_table_ends_with_the_problems() -> None:
    program = "import resource as r; r.setrlimit(r.RLIMIT_NOFILE, (24, 24)); import parallel_envs.cli as c; c.main()"
    words = [sys.executable, "-c", program, "doctor", "-w", "1000000"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, "Traceback" in done.stderr) == (1, False), done.stderr
    text = " ".join(done.stdout.split())
    assert "problem descriptors 24 open files are allowed (ulimit -n): room for 0 workers" in text
    assert "1000000 workers do not fit." in text
    assert "Problems: " in text


def test_what_stands_in_the_way_of_workers_is_part_of_the_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("parallel_envs.engine.open_pool", Mock(side_effect=PermissionError(1, "not permitted")))
    assert try_start_method("spawn") == StartTrial(error="PermissionError: [Errno 1] not permitted")


def test_a_worker_costs_as_many_descriptors_as_is_said() -> None:
    def held(num_workers: int) -> int:
        gc.collect()
        before = len(list(Path("/proc/self/fd").iterdir()))
        with closing(open_pool(num_workers, PoolSettings(context="fork"))):
            return len(list(Path("/proc/self/fd").iterdir())) - before

    start_supervisor()
    assert held(4) - held(1) == 3 * DESCRIPTORS_EACH
