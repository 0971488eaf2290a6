"""What is logged: starts, ends, failures and restarts, under loggers of this package."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from parallel_envs.testing import Fault, Moment, ScriptedEnv
from tests.faults.matrix import Make, error_of, faulty, reset, step

FAULTS = [Fault.SIGKILL, Fault.EXCEPTION, Fault.SLEEP]


def logged(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


@pytest.mark.parametrize("backend", ["serial", "thread", "process"])
def test_start_and_stop_are_told_and_steps_and_resets_are_not(
    make: Make, caplog: pytest.LogCaptureFixture, backend: str
) -> None:
    caplog.set_level(logging.INFO, "parallel_envs")
    envs = make([ScriptedEnv] * 2, backend=backend)
    pids = [row["pid"] for row in envs.stats()]
    reset(envs)
    before = len(caplog.records)
    for _ in range(5):
        step(envs)
    envs.reset()
    assert len(caplog.records) == before
    envs.close()
    told = "\n".join(logged(caplog, logging.INFO))
    assert "started" in told
    assert "2 workers stopped" in told
    if backend == "process":
        assert all(f"env worker {worker} started: pid {pid}" in told for worker, pid in enumerate(pids))
    assert logged(caplog, logging.WARNING) == []


@pytest.mark.parametrize("fault", FAULTS)
def test_a_restart_is_a_warning_that_says_why(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    caplog.set_level(logging.DEBUG)
    envs = make([faulty(fault, Moment.STEP, tmp_path / "broken")], on_failure="restart")
    reset(envs)
    step(envs)
    (told,) = logged(caplog, logging.WARNING)
    assert "step 1" in told
    assert "Restarting env 0; all others go on as they were." in told
    envs.close()
    assert {record.name.partition(".")[0] for record in caplog.records} == {"parallel_envs"}


@pytest.mark.parametrize("fault", [*FAULTS, Fault.OS_EXIT])
def test_what_is_raised_is_not_logged_as_a_warning_too(
    make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture, fault: Fault
) -> None:
    caplog.set_level(logging.INFO, "parallel_envs")
    envs = make([faulty(fault, Moment.STEP, tmp_path / "broken")])
    reset(envs)
    with pytest.raises(error_of(fault)):
        step(envs)
    assert logged(caplog, logging.WARNING) == []
    if fault is Fault.OS_EXIT:
        assert any("exit code 17" in line for line in logged(caplog, logging.INFO))


def test_a_restart_by_hand_is_told_as_asked_for(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    envs = make([ScriptedEnv])
    with caplog.at_level(logging.INFO, "parallel_envs"):
        envs.restart(0)
    assert "Worker 0 (env 0) is restarted on request." in caplog.text


def test_a_record_holds_no_env(make: Make, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    envs = make([faulty(Fault.EXCEPTION, Moment.STEP, tmp_path / "broken")], on_failure="restart", backend="serial")
    reset(envs)
    step(envs)
    envs.close()
    assert {type(part) for record in caplog.records for part in (record.args or ())} <= {int, str}
