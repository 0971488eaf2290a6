"""`bench meta`: what it measures, and what it says of it."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.meta import SEQUENTIAL, MetaPlan, MetaRow, judged, measure_meta, meta, meta_report
from parallel_envs.bench.measure import Spread
from parallel_envs.bench.turns import Pace


def row(name: str, ratio: float) -> MetaRow:
    spread = Spread(ratio, ratio, ratio, 3)
    return MetaRow(name=name, steps=spread, to_sequential=spread, learning=0.25)


def test_both_paths_collect_and_learn() -> None:
    pace = Pace(seconds=0.001, rounds=2)
    rows = measure_meta(MetaPlan(env="GridNavi-v0", workers=(2,), num_rollouts=4, horizon=5, pace=pace))
    assert [one.name for one in rows] == [SEQUENTIAL, "2 workers"]
    assert all(one.steps.median > 0 and 0 < one.learning < 1 for one in rows)
    assert rows[0].to_sequential == Spread(1.0, 1.0, 1.0, 2)


@pytest.mark.parametrize(("ratio", "good"), [(1.51, True), (1.49, False)])
def test_the_bar_is_passed_or_not(ratio: float, good: bool) -> None:
    rows = (row(SEQUENTIAL, 1.0), row("8 workers", ratio))
    assert judged(rows) == [("8 workers", ratio, good)]
    (note,) = meta_report(rows, {}, "title").notes
    assert note.startswith("PASS" if good else "FAIL")


def test_numbers_of_workers_are_checked() -> None:
    app = typer.Typer()
    app.command()(meta)
    ran = CliRunner().invoke(app, ["--workers", "1"], env={"COLUMNS": "150"})
    assert ran.exit_code == 2
    assert "holds no numbers from 2 up" in ran.output
