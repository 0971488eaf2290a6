from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import cli, policies
from benchmarks.experiments import PolicyFigures
from benchmarks.policies import (
    AUTO,
    POLICY_WORKS,
    SEQUENTIAL,
    SHIPPED,
    Empty,
    PolicyPlan,
    PolicyWork,
    Turner,
    measure_policies,
    measure_work,
)
from benchmarks.targets import BARS
from parallel_envs.bench.measure import Series, Slice
from parallel_envs.bench.turns import Pace

PACE = Pace(seconds=0.01, rounds=2)
HERE = PolicyWork(what="3 empty", make=lambda _: Empty(), strategies=(SEQUENTIAL, "thread", AUTO), num_agents=3)
ROWS = PolicyWork(what="rows", make=lambda _: Empty(), strategies=(SEQUENTIAL, "batch"), num_agents=2, num_rows=4)
EVERYBODY = PolicyWork(
    what="everybody", make=lambda _: Empty(), strategies=(SEQUENTIAL, "process", SHIPPED), num_agents=2
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "POLICY_WORKS", {"here": HERE, "rows": ROWS})
    monkeypatch.setattr(cli, "POLICY_WORKS", {"here": HERE, "rows": ROWS})


def plan(*works: str) -> PolicyPlan:
    return PolicyPlan(works=works, workers=1, pace=PACE)


@pytest.mark.usefixtures("small")
def test_every_strategy_has_a_row_with_a_figure_beside_the_sequential_one() -> None:
    rows = measure_policies(plan("here", "rows"))
    assert [(row.work, row.name) for row in rows] == [
        ("3 empty", SEQUENTIAL), ("3 empty", "thread"), ("3 empty", AUTO), ("rows", SEQUENTIAL), ("rows", "batch"),
    ]  # fmt: skip
    for row in rows:
        assert row.error is None
        assert row.turn is not None
        assert row.agent_microseconds == pytest.approx(row.turn.median / row.num_agents * 1e6)
        assert row.to_sequential is not None
        assert (row.to_best is not None) == (row.name == AUTO) == bool(row.choice)
    assert "sequential" in rows[2].choice


def test_a_pool_that_is_shipped_the_policies_is_measured_beside() -> None:
    rows = {row.name: row for row in measure_work(EVERYBODY, plan())}
    assert [row.error for row in rows.values()] == [None] * 3
    assert rows[SHIPPED].to_best is None


class Counting(Turner):
    """Counts its turns, and breaks after some."""

    def __init__(self, until: int = 1 << 60) -> None:
        self.turns, self.until, self.closed = 0, until, False

    def turn(self) -> int:
        self.turns += 1
        if self.turns > self.until:
            raise ValueError("no more")
        return 1

    def close(self) -> None:
        self.closed = True


def test_a_strategy_that_breaks_is_told_of_and_all_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Counting] = []
    broken: Iterator[int] = iter([1 << 60, 20])

    def open_one(*_: Any) -> Counting:
        opened.append(Counting(next(broken)))
        return opened[-1]

    monkeypatch.setattr(policies, "Strategy", open_one)
    work = PolicyWork(what="two", make=lambda _: Empty(), strategies=(SEQUENTIAL, "thread"))
    good, bad = measure_work(work, plan())
    assert (good.error, bad.error) == (None, "ValueError: no more")
    assert all(one.closed for one in opened)


def test_auto_is_compared_with_the_best_of_ours_that_is_not_auto() -> None:
    series: Any = {
        name: Series([Slice(rate, 1.0)] * 3)
        for name, rate in {SEQUENTIAL: 10, "thread": 40, AUTO: 30, SHIPPED: 90}.items()
    }
    rows = {row.name: row for row in policies._rows(HERE, series, {})}
    best = rows[AUTO].to_best
    assert best is not None
    assert best.median == 0.75
    assert rows["thread"].to_best is None
    assert rows[SHIPPED].to_sequential.median == 9.0  # type: ignore[union-attr]  # it has figures


def test_a_work_whose_library_is_not_here_says_what_to_install() -> None:
    work = PolicyWork(what="w", make=Empty, strategies=(SEQUENTIAL,), needs=(("no_such_module", "the-package"),))  # type: ignore[arg-type]  # never made
    (row,) = measure_work(work, plan())
    assert (row.missing, row.turn, row.agent_microseconds) == ("the-package", None, None)


def test_what_every_work_gives_can_be_asked() -> None:
    for work in POLICY_WORKS.values():
        seen, alive = work.turn()
        assert list(seen) == work.agents
        assert len(seen) == work.num_agents
        assert (alive is None) == (work.num_rows is None)
        if all(find_spec(module) for module, _ in work.needs):
            assert callable(work.make(0).step)


@pytest.mark.usefixtures("small")
def test_the_command_writes_table_and_json(tmp_path: Path) -> None:
    file = tmp_path / "policies.json"
    asked = ["policies", "--work", "here", "--workers", "1", "--seconds", "0.01", "--rounds", "2", "--json", str(file)]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 0, done.output
    assert "3 empty: auto chose sequential" in done.output
    content = json.loads(file.read_text())
    assert content["command"] == "policies"
    assert content["settings"] == {"works": ["here"], "workers": 1, "pace": {"seconds": 0.01, "rounds": 2}}
    assert [row["name"] for row in content["rows"]] == [SEQUENTIAL, "thread", AUTO]
    assert all(row["agent_microseconds"] > 0 for row in content["rows"])


def test_an_unknown_work_ends_the_command_with_2() -> None:
    done = CliRunner().invoke(cli.app, ["policies", "--work", "python,nonsense"])
    assert done.exit_code == 2
    assert "There is no work called" in done.output


@pytest.mark.usefixtures("small")
def test_the_figures_of_a_work_are_by_strategy() -> None:
    figures = PolicyFigures("here").figures(PACE, lambda text: None)
    assert figures[SEQUENTIAL] == 1.0
    assert set(figures) == {
        SEQUENTIAL, "thread", AUTO, f"{SEQUENTIAL}, us", "thread, us", f"{AUTO}, us", f"{AUTO} / best",
    }  # fmt: skip


def test_every_row_has_its_bars() -> None:
    bars = [bar for bar in BARS if isinstance(bar.experiment, PolicyFigures)]
    for name, work in POLICY_WORKS.items():
        own = {bar.figure: bar for bar in bars if bar.experiment == PolicyFigures(name)}
        assert {AUTO, f"{AUTO} / best"} < set(own)
        assert len(own) == 3
        for figure, bar in own.items():
            assert figure.partition(",")[0].partition(" /")[0] in work.strategies
            assert bar.needs == work.needs
            assert (bar.sense == "at most") == (figure == "process, us")
