"""`bench zoo`: every contestant steps the same, and what it took is told."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks import cli
from benchmarks.experiments import ZooFigures
from benchmarks.zoo import (
    OURS_EACH,
    OURS_FEW,
    ZOO_PEERS,
    ManyAgents,
    OursTogether,
    PlainLoop,
    SuperSuit,
    ZooPlan,
    make_zoo_workload,
    measure_zoo,
    resolve_zoo,
    zoo_contestants,
)
from parallel_envs.bench.envs import EnvChoice, UnknownEnv
from parallel_envs.bench.runners import Runner
from parallel_envs.bench.turns import Pace, python_environment
from tests.benchmarks.zoo_stage import KINDS, LeavingAgents

PACE = Pace(seconds=0.02, rounds=2)
LEAVING = EnvChoice("leaving", LeavingAgents)


@dataclass
class AbsentZoo(SuperSuit):
    """A peer whose library nobody has."""

    name = "absent"
    module = "no_such_library_anywhere"
    pip_name = "absent-library"


def recorded(name: str, length: int, steps: int, folder: Path) -> tuple[int, list[str]]:
    """How many steps a contestant says it made, and what the environments say they were told to do.

    In its own process: what a peer imports and warns of is no part of this test run.
    """
    if KINDS[name](make_zoo_workload(LEAVING, 2)).missing() is not None:
        pytest.skip(f"{name} is not installed")
    record = folder / name.replace(" ", "_")
    command = [sys.executable, "-m", "tests.benchmarks.zoo_stage", name, str(length), "2", str(steps), str(record)]
    done = subprocess.run(command, env=python_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1]), sorted(record.read_text().splitlines())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == OURS_FEW else pytest.mark.slow) for name in KINDS]
)
def test_the_steps_counted_are_the_calls_of_step(name: str, tmp_path: Path) -> None:
    counted, lines = recorded(name, length=3, steps=40, folder=tmp_path)
    assert counted == len(lines) >= 40


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KINDS if name != PlainLoop.name])
def test_every_contestant_gives_each_agent_the_same_actions(name: str, tmp_path: Path) -> None:
    _, lines = recorded(name, length=1000, steps=20, folder=tmp_path)
    _, plain = recorded(PlainLoop.name, length=1000, steps=20, folder=tmp_path)
    assert lines == plain
    assert len(set(lines)) == 20


@pytest.mark.parametrize("kind", [OursTogether, PlainLoop])
def test_a_row_in_which_no_agent_acts_is_no_step(kind: type[Runner]) -> None:
    contestant = kind(make_zoo_workload(LEAVING, num_envs=2))
    contestant.load()
    contestant.open()
    with closing(contestant):
        assert [contestant.step() for _ in range(9)] == [2, 2, 2, 0, 2, 2, 2, 0, 2]
    plan = ZooPlan(env=resolve_zoo("agents:3"), num_envs=2, num_workers=2, pace=PACE, peers=())
    assert OURS_FEW not in zoo_contestants(plan), "where each env has a worker ours is there once"


@pytest.mark.filterwarnings("ignore:The old environment creation API")  # used by what is imported here
def test_the_many_agents_are_an_env_of_pettingzoo() -> None:
    from pettingzoo.test import parallel_api_test

    parallel_api_test(ManyAgents(5), num_cycles=250)


def test_what_cannot_be_measured_is_named_with_what_to_give() -> None:
    with pytest.raises(UnknownEnv, match=r"agents:x.*Give a number, as in agents:64"):
        resolve_zoo("agents:x")
    for name, reason in [
        ("mpe2.no_such_env", "No module named"),
        ("json", "no attribute 'parallel_env'"),
        ("spin:10", "not known beforehand"),
    ]:
        with pytest.raises(UnknownEnv, match=f"{reason}.* Give the path of a PettingZoo module"):
            make_zoo_workload(resolve_zoo(name), 2)


@pytest.mark.slow
def test_every_contestant_has_a_row_and_ours_are_compared_with_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ZOO_PEERS, "absent", AbsentZoo)
    plan = ZooPlan(env=resolve_zoo("agents:3"), num_envs=2, num_workers=1, pace=PACE, peers=("absent",))
    few, each, beneath, plain, absent = measure_zoo(plan)
    assert [row.error for row in (few, each, beneath, plain)] == [None] * 4
    assert (few.settings, each.settings) == ("1 workers", "2 workers")
    assert plain.ours_to_this.keys() == {OURS_FEW, OURS_EACH}
    assert few.ours_to_this.keys() == {OURS_EACH}
    assert (absent.missing, absent.spread, absent.ours_to_this) == ("absent-library", None, {})
    for row in (few, each, beneath, plain):
        assert row.parent_share is not None
        assert 0.0 < row.parent_share.median <= 1.1
    assert each.batching is not None
    assert few.batching is None
    figures = ZooFigures("agents:3", num_envs=2, num_workers=1, peers=()).figures(PACE, lambda text: None)
    assert {"batching", f"{OURS_FEW} / {PlainLoop.name}", f"{OURS_EACH} / {PlainLoop.name}"} < figures.keys()


def test_the_command_writes_table_and_json(tmp_path: Path) -> None:
    file = tmp_path / "zoo.json"
    asked = ["zoo", "--env", "agents:3", "--num-envs", "2", "--num-workers", "1", "--peers", "none"]
    done = CliRunner().invoke(cli.app, [*asked, "--seconds", "0.02", "--rounds", "1", "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "dicts by agent take" in done.output
    content = json.loads(file.read_text())
    assert content["command"] == "zoo"
    assert content["settings"] == {
        "env": "agents:3",
        "num_envs": 2,
        "num_workers": 1,
        "pace": {"seconds": 0.02, "rounds": 1},
        "peers": [],
    }
    assert [len(row["rates"]) for row in content["rows"]] == [1, 1, 1, 1]
