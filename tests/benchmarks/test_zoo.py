"""`bench zoo`: every contestant steps the same, and what it took is told."""

from __future__ import annotations

import json
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
    OursTogether,
    PlainLoop,
    SuperSuit,
    ZooPlan,
    make_zoo_workload,
    measure_zoo,
    resolve_zoo,
    zoo_contestants,
)
from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.runners import Runner
from parallel_envs.bench.turns import Pace
from tests.benchmarks.zoo_stage import LeavingAgents

PACE = Pace(seconds=0.02, rounds=2)
LEAVING = EnvChoice("leaving", LeavingAgents)


@dataclass
class AbsentZoo(SuperSuit):
    """A peer whose library nobody has."""

    name = "absent"
    module = "no_such_library_anywhere"
    pip_name = "absent-library"


@pytest.mark.parametrize("kind", [OursTogether, PlainLoop])
def test_a_row_in_which_no_agent_acts_is_no_step(kind: type[Runner]) -> None:
    contestant = kind(make_zoo_workload(LEAVING, num_envs=2))
    contestant.load()
    contestant.open()
    with closing(contestant):
        assert [contestant.step() for _ in range(9)] == [2, 2, 2, 0, 2, 2, 2, 0, 2]
    plan = ZooPlan(env=resolve_zoo("agents:3"), num_envs=2, num_workers=2, pace=PACE, peers=())
    assert OURS_FEW not in zoo_contestants(plan), "where each env has a worker ours is there once"


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
