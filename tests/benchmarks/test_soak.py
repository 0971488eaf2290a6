"""Short soaks: a right manager passes, sabotaged ones do not."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import cli
from benchmarks.soak import leg
from benchmarks.soak import run as soak_module
from benchmarks.soak.leg import Crowd
from benchmarks.soak.run import Hung, soak, watch
from benchmarks.soak.tally import Tally
from parallel_envs.vector import ParallelEnvManager

CROWD = Crowd(num_envs=4, num_workers=2)


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
@pytest.mark.parametrize(("sabotaged", "faults_per_minute"), [(Swapping, 1), (Forgetful, 1200), (Stale, 1200)])
def test_wrong_rows_of_a_real_manager_are_found(
    sabotaged: type[ParallelEnvManager], faults_per_minute: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leg, "ParallelEnvManager", sabotaged)
    tally = soak(CROWD, 60.0, 0, faults_per_minute)
    assert tally.wrong > 0
    assert not tally.good
    assert "What went before" in tally.complaints[0]


@pytest.mark.usefixtures("_ends_with_the_first_bad_leg")
def test_a_manager_that_raises_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leg, "ParallelEnvManager", Raising)
    tally = soak(CROWD, 60.0, 0, faults_per_minute=1200)
    assert (tally.errors, tally.legs) == (1, 0)
    assert "Traceback" in tally.complaints[0]


def test_a_call_over_its_deadline_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leg, "ParallelEnvManager", Slow)
    monkeypatch.setattr(leg, "CLOSE_SECONDS", -0.99)  # with the second of grace: hardly any time
    monkeypatch.setattr(leg, "TROUBLED_CLOSES", 0.0)
    tally = soak(CROWD, 0.1, 0, faults_per_minute=1)
    assert tally.overdue > 0
    assert not tally.good


def test_a_block_that_gives_no_sign_of_life_is_ended() -> None:
    started = time.monotonic()
    with pytest.raises(Hung), watch(0.1, look_every=0.01):
        time.sleep(60.0)
    assert time.monotonic() - started < 30.0


def test_a_block_that_gives_signs_of_life_is_left_alone() -> None:
    with watch(3600.0, look_every=0.01) as beat:
        beat()


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
def test_the_command_exits_with_1_if_anything_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leg, "ParallelEnvManager", Swapping)
    done = CliRunner().invoke(cli.app, ["soak", "--minutes", "1", "--num-envs", "2", "--faults-per-minute", "1"])
    assert done.exit_code == 1
    assert "verdict: FAIL" in done.output


def test_more_workers_than_envs_are_refused_in_plain_words() -> None:
    done = CliRunner().invoke(cli.app, ["soak", "--num-envs", "2", "--num-workers", "3"])
    assert done.exit_code == 2
    assert "3 workers cannot share 2 environments" in done.output
