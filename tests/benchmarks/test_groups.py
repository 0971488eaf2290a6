"""`bench groups`: every contestant plays the same, and what it took is told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import cli, groups
from benchmarks.experiments import GroupFigures
from benchmarks.group_runners import Ours, PlainLoop, Player, ShippedPool
from benchmarks.group_workloads import GROUP_WORKS, GroupWork, Waiting, answers, sokoban_turn
from benchmarks.groups import CALLER, OURS, GroupPlan, measure_groups, shipped
from benchmarks.targets import BARS
from parallel_envs.bench.turns import Pace
from parallel_envs.groups import registry
from parallel_envs.groups.episode import IMAGE

SMALL = GroupWork(
    what="4 that wait", env_type="waiting", factory=Waiting, env_config={"seconds": 0.0}, num_groups=2, group_size=2,
    actions=answers,
)  # fmt: skip


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(groups, "GROUP_WORKS", {"small": SMALL})
    monkeypatch.setattr(cli, "GROUP_WORKS", {"small": SMALL})


def test_every_contestant_has_a_row(tmp_path: Path) -> None:
    path = tmp_path / "found.json"
    asked = ["groups", "--seconds", "0.002", "--rounds", "2", "--workers", "1", "--json", str(path)]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    assert [row["name"] for row in rows] == [PlainLoop.name, CALLER, OURS, shipped("fork")]
    for row in rows:
        assert row["error"] is None
        assert row["turn"]["median"] > 0
        assert row["to_loop"]["num_samples"] == row["to_caller"]["num_samples"] == 2
        assert (row["early_bytes"] is not None) == (row["name"] == OURS)
    assert rows[2]["early_bytes"] == pytest.approx(rows[2]["late_bytes"], abs=8)


def test_works_of_no_such_name_are_told() -> None:
    done = CliRunner().invoke(cli.app, ["groups", "--work", "smal"], env={"COLUMNS": "200"})
    assert done.exit_code == 2
    assert "There is no work called 'smal'" in done.output


@pytest.mark.parametrize("name", sorted(GROUP_WORKS))
def test_ours_and_the_loop_see_the_same_on_the_same_seed(name: str) -> None:
    work = GROUP_WORKS[name]
    ours, loop = Ours(work, 1, in_caller=True), PlainLoop(work)
    entries = ours.reset(7)
    loop.reset(7)
    assert len(entries) == len(loop.entries)
    for entry, plain in zip(entries, loop.entries, strict=True):
        state = plain["state"]
        text = (state["text"] or IMAGE) if isinstance(state, dict) else state
        assert text == entry["history"][0]["state"]
    ours.close()


def test_a_pool_that_ships_gives_histories_back() -> None:
    pool = ShippedPool(SMALL, 1)
    try:
        player = Player(pool, SMALL)
        for _ in range(3):
            player.turn()
        assert [len(entry["history"]) for entry in pool.entries] == [4] * 4
        assert pool.entries[0]["history"][0]["reward"] == 1.0
    finally:
        pool.close()


def test_turns_are_the_same_for_whoever_plays_them() -> None:
    for actions in (sokoban_turn, answers):
        first, again = (actions(np.random.default_rng(3), 4) for _ in range(2))
        assert first == again
        assert {type(one) for turn in first for one in turn} == {str}


def test_every_bar_has_its_figure() -> None:
    rows = measure_groups(GroupPlan(works=("small",), workers=1, pace=Pace(seconds=0.001, rounds=1)))
    assert [row.error for row in rows] == [None] * 4
    figures = GroupFigures("small").figures(Pace(seconds=0.001, rounds=1), lambda text: None)
    wanted = {bar.figure for bar in BARS if isinstance(bar.experiment, GroupFigures)}
    assert {figure.replace("forkserver", "fork") for figure in wanted} <= figures.keys()
