"""Short soaks: a right manager passes, sabotaged ones do not; and what a soak does around a manager."""

from __future__ import annotations

import itertools
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import cli
from benchmarks.soak import faults, leg
from benchmarks.soak import run as soak_module
from benchmarks.soak.env import SoakEnv
from benchmarks.soak.faults import FloodingProgram, KeeperStop, evaluate_and_kill, fork_and_try
from benchmarks.soak.leg import Crowd
from benchmarks.soak.run import Hung, soak, watch
from benchmarks.soak.tally import Tally
from parallel_envs.engine import supervisor_pid
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
        infos.pop("worker_restarted", None)
        return *rest, infos

    def recv(self, min_envs: int = 1, timeout: float | None = None) -> Any:
        *rest, infos = super().recv(min_envs, timeout)
        infos.pop("worker_restarted", None)
        return *rest, infos


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
        (Forgetful, 1200, "wrong", "What went before"),
        (Raising, 1200, "errors", "Traceback"),
        (Slow, 1, "overdue", ""),
        pytest.param(Stale, 1200, "wrong", "What went before", marks=pytest.mark.slow),
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


def test_a_block_that_gives_no_sign_of_life_is_ended_and_no_other() -> None:
    with watch(3600.0, look_every=0.01) as beat:
        beat()
    started = time.monotonic()
    with pytest.raises(Hung), watch(0.1, look_every=0.01):
        time.sleep(60.0)
    assert time.monotonic() - started < 30.0


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
def test_the_command_exits_with_1_if_anything_is_wrong_and_with_2_if_it_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leg, "ParallelEnvManager", Swapping)
    done = CliRunner().invoke(cli.app, ["soak", "--minutes", "1", "--num-envs", "2", "--faults-per-minute", "1"])
    assert done.exit_code == 1
    assert "verdict: FAIL" in done.output
    done = CliRunner().invoke(cli.app, ["soak", "--num-envs", "2", "--num-workers", "3"])
    assert done.exit_code == 2
    assert "3 workers cannot share 2 environments" in done.output


ACTIONS = np.zeros((2, 2), np.int64)


def make_manager() -> ParallelEnvManager:
    return ParallelEnvManager([partial(SoakEnv, env, "array") for env in range(2)])


def test_a_forked_child_is_refused_every_call_and_harms_nothing() -> None:
    with make_manager() as envs:
        envs.reset(seed=0)
        envs.step_async(ACTIONS)
        assert fork_and_try(envs, ACTIONS) == ""
        assert envs.step_wait()[0][:, 3].tolist() == [1, 1]


class Unguarded:
    """A manager that answers whatever process asks it, and one call of which never returns."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **settings: time.sleep(3600.0) if name == "restart" else None


def test_a_manager_that_serves_a_forked_child_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "FORK_SECONDS", 1.0)
    unguarded: Any = Unguarded()
    assert fork_and_try(unguarded, ACTIONS) == "the forked child hung"
    monkeypatch.setattr(Unguarded, "restart", lambda self: None, raising=False)
    assert "recv was not refused in a forked child" in fork_and_try(unguarded, ACTIONS)


def test_the_keeper_stands_still_and_goes_on() -> None:
    with make_manager() as envs:
        envs.reset(seed=0)
        stop = KeeperStop()
        assert state_of(supervisor_pid()) == "T"
        envs.step(ACTIONS)
        stop.end()
        until = time.monotonic() + 30.0
        while state_of(supervisor_pid()) == "T" and time.monotonic() < until:
            time.sleep(0.01)
        assert state_of(supervisor_pid()) != "T"


def state_of(pid: int | None) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(
    "killed_after", [0.0, pytest.param(0.03, marks=pytest.mark.slow), pytest.param(0.1, marks=pytest.mark.slow)]
)
def test_an_evaluation_whose_worker_is_killed_has_the_right_scores(
    killed_after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert evaluate_and_kill(killed_after) == ""
    monkeypatch.setattr(faults, "_reference_scores", lambda: [1.0])
    assert "and [1.0] is right" in evaluate_and_kill(60.0)


@pytest.mark.slow
@pytest.mark.parametrize("is_killed", [True, False])
def test_a_flooding_program_ends_as_it_should(is_killed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    assert FloodingProgram(is_killed=is_killed).end() == ""
    monkeypatch.setattr(faults, "_PROGRAM", "print('[]'); print('wrong rows')")
    assert "wrong rows" in FloodingProgram(is_killed=False).end()


def test_processes_that_outlive_a_killed_program_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [
        "child = subprocess.Popen(['sleep', '600'])",
        "print(json.dumps([child.pid]), flush=True)",
        "time.sleep(600)",
    ]
    monkeypatch.setattr(faults, "_PROGRAM", "; ".join(["import json, subprocess, time", *lines]))
    monkeypatch.setattr(faults, "_LEFT_SECONDS", 0.5)
    assert "outlived a killed program" in FloodingProgram(is_killed=True).end()
