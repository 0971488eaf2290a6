"""`bench zoo`: every contestant steps the same, and what it took is told."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import cli
from benchmarks.zoo import (
    OURS_FEW,
    ManyAgents,
    OursTogether,
    PlainLoop,
    ZooPlan,
    make_zoo_workload,
    resolve_zoo,
    zoo_contestants,
)
from parallel_envs.bench.envs import EnvChoice
from parallel_envs.bench.measure import Pace
from parallel_envs.bench.runners import Runner

NUM_AGENTS = 3


class LeavingAgents(ManyAgents):
    """Agent `i` leaves in step `i + 1`."""

    def __init__(self) -> None:
        super().__init__(NUM_AGENTS)

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert actions.keys() == set(self.agents)
        there, self.agents = self.agents, self.agents[1:]
        ends = {agent: agent not in self.agents for agent in there}
        seen = {agent: self._points[:, 0].repeat(2)[:4] for agent in there}
        return seen, dict.fromkeys(there, 1.0), ends, dict.fromkeys(there, False), {agent: {} for agent in there}


PACE = Pace(seconds=0.02, rounds=2)
LEAVING = EnvChoice("leaving", LeavingAgents)


@pytest.mark.parametrize("kind", [OursTogether, PlainLoop])
def test_a_row_in_which_no_agent_acts_is_no_step(kind: type[Runner]) -> None:
    contestant = kind(make_zoo_workload(LEAVING, num_envs=2))
    contestant.load()
    contestant.open()
    with closing(contestant):
        assert [contestant.step() for _ in range(9)] == [2, 2, 2, 0, 2, 2, 2, 0, 2]
    plan = ZooPlan(env=resolve_zoo("agents:3"), num_envs=2, num_workers=2, pace=PACE, peers=())
    assert OURS_FEW not in zoo_contestants(plan), "where each env has a worker ours is there once"


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
