"""Short soaks: a right manager passes, sabotaged ones do not; and what a soak does around a manager."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import cli
from benchmarks.memory import Holdings
from benchmarks.soak import faults, leg
from benchmarks.soak import run as soak_module
from benchmarks.soak.faults import (
    FloodingProgram,
    evaluate_and_kill,
    fork_and_try,
)
from benchmarks.soak.leg import Crowd
from benchmarks.soak.model import Where
from benchmarks.soak.run import soak
from benchmarks.soak.tally import RSS_BYTES_ALLOWED, Tally, TimedCall
from parallel_envs.testing.scripted import Fault
from parallel_envs.vector import ParallelEnvManager

CROWD = Crowd(num_envs=4, num_workers=2)


@pytest.mark.slow
def test_a_short_soak_finds_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leg, "STEP_SECONDS", 0.25)  # what hangs costs that much time
    monkeypatch.setattr(leg, "TROUBLED_CLOSES", 0.0)
    injected = 0
    for seed in itertools.count():
        tally = soak(Crowd(num_envs=8, num_workers=4), 2.5, seed, faults_per_minute=3000, leg_seconds=1.0)
        assert tally.good, tally.outcome()
        assert tally.steps > 0
        assert tally.survived == tally.num_injected
        injected += tally.num_injected
        if injected >= 20:
            return


def test_ctrl_c_ends_a_soak_with_what_was_done_until_then() -> None:
    def interrupt(tally: Tally) -> None:
        if tally.num_injected:
            raise KeyboardInterrupt

    tally = soak(CROWD, 60.0, 0, faults_per_minute=120, progress=interrupt)
    assert tally.interrupted
    assert tally.good, tally.outcome()


class Swapping(ParallelEnvManager):
    """Mixes up two rows of a step now and then."""

    def step_wait(self, timeout: float | None = None) -> Any:
        observations, rewards, *rest = super().step_wait(timeout)
        if rewards[0] > 100.0:
            rewards = rewards[::-1].copy()
        return observations, rewards, *rest


class Forgetful(ParallelEnvManager):
    """Does not say that episodes were lost."""

    def step_wait(self, timeout: float | None = None) -> Any:
        *rest, infos = super().step_wait(timeout)
        return *rest, {name: value for name, value in infos.items() if name != "worker_restarted"}

    def recv(self, min_envs: int = 1, timeout: float | None = None) -> Any:
        *rest, infos = super().recv(min_envs, timeout)
        return *rest, {name: value for name, value in infos.items() if name != "worker_restarted"}


class Stale(ParallelEnvManager):
    """Returns the observations of the step before, where a worker has been restarted."""

    before: Any = None

    def step_wait(self, timeout: float | None = None) -> Any:
        observations, *rest, infos = super().step_wait(timeout)
        stale, self.before = self.before, observations
        return (stale if "worker_restarted" in infos and stale is not None else observations), *rest, infos


class Raising(ParallelEnvManager):
    """Does not restart."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{**settings, "on_failure": "raise"})

    def close(self, **settings: Any) -> None:
        super().close(**{"timeout": 0.5, **settings})  # what hangs is ended by force all the same


class Slow(ParallelEnvManager):
    """Takes its time to close."""

    def close(self, **settings: Any) -> None:
        if not self.closed:
            time.sleep(0.02)
        super().close(**settings)


@pytest.fixture
def _ends_with_the_first_bad_leg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak_module, "MOST_BAD_LEGS", 1)
    monkeypatch.setattr(leg, "TROUBLED_CLOSES", 0.0)  # each may take seconds


@pytest.mark.usefixtures("_ends_with_the_first_bad_leg")
@pytest.mark.parametrize(
    ("sabotaged", "faults_per_minute", "found", "complaint"),
    [
        (Swapping, 1, "wrong", "What went before"),
        pytest.param(Forgetful, 1200, "wrong", "What went before", marks=pytest.mark.slow),
        pytest.param(Stale, 1200, "wrong", "What went before", marks=pytest.mark.slow),
        (Raising, 1200, "errors", "Traceback"),
        (Slow, 1, "overdue", ""),
    ],
)
def test_what_is_wrong_with_a_real_manager_is_found(
    sabotaged: type[ParallelEnvManager],
    faults_per_minute: int,
    found: str,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leg, "ParallelEnvManager", sabotaged)
    if sabotaged is Slow:
        monkeypatch.setattr(leg, "CLOSE_SECONDS", -0.99)  # with the second of grace: hardly any time
    tally = soak(CROWD, 0.1 if sabotaged is Slow else 60.0, 0, faults_per_minute)
    assert getattr(tally, found) > 0
    assert not tally.good
    assert not complaint or complaint in tally.complaints[0]
    assert sabotaged is not Raising or (tally.errors, tally.legs) == (1, 0)


@pytest.mark.slow
def test_the_command_prints_and_writes_what_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leg, "STEP_SECONDS", 0.25)
    file = tmp_path / "soak.json"
    done = CliRunner().invoke(
        cli.app, ["soak", "--minutes", "0.01", "--num-envs", "2", "--faults-per-minute", "1200", "--json", str(file)]
    )
    assert done.exit_code == 0, done.output
    assert "wrong rows: 0" in done.output
    assert "verdict: PASS" in done.output
    content = json.loads(file.read_text())
    outcome = content["settings"]["outcome"]
    assert content["settings"]["num_workers"] == 1
    assert outcome["good"]
    assert sum(row["all"] for row in content["rows"]) == outcome["injected"] == outcome["survived"]
    assert outcome["injected"] > 0


@pytest.mark.usefixtures("_ends_with_the_first_bad_leg")
def test_the_command_exits_with_1_if_anything_is_wrong(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leg, "ParallelEnvManager", Swapping)
    done = CliRunner().invoke(cli.app, ["soak", "--minutes", "1", "--num-envs", "2", "--faults-per-minute", "1"])
    assert done.exit_code == 1
    assert "verdict: FAIL" in done.output


@pytest.mark.parametrize(
    "killed_after", [0.0, pytest.param(0.03, marks=pytest.mark.slow), pytest.param(0.1, marks=pytest.mark.slow)]
)
def test_scores_are_right_though_a_worker_is_killed(killed_after: float, monkeypatch: pytest.MonkeyPatch) -> None:
    assert evaluate_and_kill(killed_after) == ""
    monkeypatch.setattr(faults, "_reference_scores", lambda: [1.0])
    assert "and [1.0] is right" in evaluate_and_kill(60.0)


def test_what_is_wrong_with_a_flooding_program_or_a_forked_child_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    founding = "print(json.dumps([subprocess.Popen(['sleep', '600']).pid]), flush=True); time.sleep(600)"
    monkeypatch.setattr(faults, "_PROGRAM", f"import json, subprocess, time; {founding}")
    monkeypatch.setattr(faults, "_LEFT_SECONDS", 0.2)
    assert "outlived a killed program" in FloodingProgram(is_killed=True).end()
    monkeypatch.setattr(faults, "_PROGRAM", "print('[]'); print('wrong rows')")
    assert "wrong rows" in FloodingProgram(is_killed=False).end()
    careless: Any = MagicMock()
    assert "recv was not refused in a forked child" in fork_and_try(careless, np.zeros((2, 2), np.int64))


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [True, False])
def test_a_flooding_program_ends_as_it_should(is_killed: bool) -> None:
    assert FloodingProgram(is_killed=is_killed).end() == ""


HELD = Holdings(processes=0, threads=1, descriptors=9, mappings=0, rss_bytes=50_000_000)


@pytest.fixture
def tally() -> Tally:
    """A soak in which two faults were survived and nothing was wrong."""
    tally = Tally(HELD, after=HELD, warm_rss_bytes=HELD.rss_bytes, survived=2)
    tally.injected.update([(Where.STEP, Fault.SIGKILL), (Where.IDLE, Fault.SIGSTOP)])
    return tally


SPOILERS: dict[str, Callable[[Tally], object]] = {
    "a wrong row": lambda tally: setattr(tally, "wrong", 1),
    "a call that raised": lambda tally: setattr(tally, "errors", 1),
    "a call that came too late": lambda tally: tally.time(TimedCall("step", 2.0, 1.9)),
    "a fault that was not survived": lambda tally: tally.injected.update([(Where.STEP, Fault.SLEEP)]),
    "a process": lambda tally: setattr(tally, "after", replace(HELD, processes=1)),
    "a thread": lambda tally: setattr(tally, "after", replace(HELD, threads=2)),
    "a descriptor": lambda tally: setattr(tally, "after", replace(HELD, descriptors=10)),
    "a mapping": lambda tally: setattr(tally, "after", replace(HELD, mappings=1)),
    "memory": lambda tally: setattr(tally, "after", replace(HELD, rss_bytes=HELD.rss_bytes + RSS_BYTES_ALLOWED + 1)),
}


@pytest.mark.parametrize("spoiler", SPOILERS)
def test_anything_wrong_is_not_good(tally: Tally, spoiler: str) -> None:
    assert tally.outcome()["good"]
    SPOILERS[spoiler](tally)
    assert not tally.outcome()["good"]
    tally.interrupted = True  # then faults may be left that no call has answered
    assert tally.good is (spoiler == "a fault that was not survived")
