"""What is logged: starts, ends, failures and restarts, under loggers of this package."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.errors import ParallelEnvsError
from parallel_envs.testing import Fault, Moment, ScriptedEnv
from tests.faults.matrix import Make, error_of, faulty, reset, step


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_every_logger_is_one_of_the_package(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    envs = make([faulty(Fault.SIGKILL, Moment.STEP, tmp_path / "broken")], on_failure="restart")
    reset(envs)
    step(envs)
    envs.close()
    assert {record.name.partition(".")[0] for record in caplog.records} == {"parallel_envs"}


def test_start_and_stop_are_told_with_names_and_pids(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "parallel_envs")
    envs = make([ScriptedEnv] * 2)
    pids = [row["pid"] for row in envs.stats()]
    envs.close()
    told = "\n".join(logged(caplog, logging.INFO))
    for worker, pid in enumerate(pids):
        assert f"env worker {worker} started: pid {pid}" in told
    assert "2 workers stopped" in told
    assert logged(caplog, logging.WARNING) == []


@pytest.mark.parametrize("backend", ["serial", "thread"])
def test_start_and_stop_are_told_by_every_backend(make: Make, caplog: pytest.LogCaptureFixture, backend: str) -> None:
    caplog.set_level(logging.INFO, "parallel_envs")
    make([ScriptedEnv] * 2, backend=backend).close()
    told = "\n".join(logged(caplog, logging.INFO))
    assert "started" in told
    assert "2 workers stopped" in told


@pytest.mark.parametrize("fault", [Fault.SIGKILL, Fault.EXCEPTION, Fault.SLEEP])
def test_a_restart_is_a_warning_that_says_why(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    envs = make([faulty(fault, Moment.STEP, tmp_path / "broken")], on_failure="restart")
    reset(envs)
    step(envs)
    (told,) = logged(caplog, logging.WARNING)
    assert "step 1" in told
    assert "Restarting env 0; all others go on as they were." in told


def test_a_death_is_told_with_its_exit_code(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "parallel_envs")
    envs = make([faulty(Fault.OS_EXIT, Moment.STEP, tmp_path / "broken")])
    reset(envs)
    with pytest.raises(ParallelEnvsError):
        step(envs)
    assert any("exit code 17" in line for line in logged(caplog, logging.INFO))


@pytest.mark.parametrize("fault", [Fault.SIGKILL, Fault.EXCEPTION, Fault.SLEEP])
def test_what_is_raised_is_not_logged_as_a_warning_too(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    envs = make([faulty(fault, Moment.STEP, tmp_path / "broken")])
    reset(envs)
    with pytest.raises(error_of(fault)):
        step(envs)
    assert logged(caplog, logging.WARNING) == []


def test_a_record_holds_no_env(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert types_in_records(make, tmp_path, caplog) <= {int, str}


def types_in_records(make: Make, folder: Path, caplog: pytest.LogCaptureFixture) -> set[type[Any]]:
    envs = make([faulty(Fault.EXCEPTION, Moment.STEP, folder / "broken")], on_failure="restart", backend="serial")
    reset(envs)
    step(envs)
    envs.close()
    return {type(part) for record in caplog.records for part in (record.args or ())}


def test_steps_and_resets_are_not_logged(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    envs = make([partial(ScriptedEnv)] * 2)
    caplog.clear()
    reset(envs)
    for _ in range(5):
        step(envs)
    assert caplog.records == []
