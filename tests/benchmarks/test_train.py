"""`bench train`: what it measures, and what it says of it."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from benchmarks.train import (
    FREE,
    OVERLAP,
    POLLING,
    SYNC,
    BusyAgents,
    TrainPlan,
    Turn,
    judged,
    measure_train,
    rows_of,
    train,
    train_report,
)
from parallel_envs.bench.measure import Series

SMALL = TrainPlan(
    num_agents=2,
    num_envs=2,
    hidden=8,
    rollout_length=8,
    minibatch_size=8,
    num_epochs=1,
    learn_in="thread",
    rollouts=3,
    rounds=1,
)


def turns(sync: float, overlap: float) -> dict[str, Series[Turn]]:
    """One after the other took 6 and 4 seconds."""
    first = Turn(sync, 100, 1.0, collect_seconds=6.0, learn_seconds=4.0)
    return {SYNC: Series([first] * 3), OVERLAP: Series([Turn(overlap, 100, 1.0)] * 3)}


@pytest.mark.parametrize(("seconds", "part", "good"), [(6.0, 1.0, True), (6.81, 0.7975, False), (10.0, 0.0, False)])
def test_what_is_saved_is_a_part_of_what_can_be(seconds: float, part: float, good: bool) -> None:
    sync, overlap = rows_of(turns(10.0, seconds))
    assert sync.bound == overlap.bound == 0.4
    assert overlap.of_bound is not None
    assert overlap.of_bound.median == pytest.approx(part)
    ((row, _, passed),) = judged([sync, overlap])
    assert (row, passed) == (overlap, good)
    (note,) = train_report([sync, overlap], {}, "title").notes
    assert note.startswith("PASS" if good else "FAIL")


def test_fewer_steps_in_the_same_time_are_no_saving() -> None:
    series = turns(10.0, 5.0)
    series[POLLING] = Series([Turn(5.0, 50, 0.2)] * 3)
    row = rows_of(series)[-1]
    assert row.saved is not None
    assert row.saved.median == pytest.approx(0.0)
    assert row.learnt == 0.2


def test_every_way_has_a_row() -> None:
    rows = measure_train(SMALL)
    assert [row.name for row in rows] == [SYNC, OVERLAP, FREE, POLLING]
    assert all(row.error is None and row.steps is not None and row.steps.median > 0 for row in rows)
    assert [row.learnt for row in rows[:3]] == [1.0, 1.0, 1.0]
    assert 0 <= rows[3].learnt <= 1


def test_a_busy_environment_is_busy_for_so_long() -> None:
    import time

    env = BusyAgents(2, 2_000.0)
    env.reset(seed=1)
    began = time.thread_time()
    env.step({agent: [0.0, 0.0] for agent in env.agents})
    assert time.thread_time() - began >= 0.002


def test_what_cannot_be_measured_is_told() -> None:
    app = typer.Typer()
    app.command()(train)
    ran = CliRunner().invoke(app, ["--update-mode", "quick"])
    assert ran.exit_code == 2
    assert "no update mode called" in ran.output
