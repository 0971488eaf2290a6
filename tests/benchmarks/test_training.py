"""`bench iteration`, `learners`, `meta` and `train`: what they measure, and what they say of it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks.cli import app
from benchmarks.iterations import IS_AT_LEAST, PLAIN, IterationRow, iterations_report
from benchmarks.learners import BARS as LEARNER_BARS
from benchmarks.learners import LearnerRow, LearnerWork, learners_report, made_plans
from benchmarks.learners import judged as judged_learners
from benchmarks.meta import SEQUENTIAL as META_SEQUENTIAL
from benchmarks.meta import MetaPlan, MetaRow, measure_meta, meta_report
from benchmarks.train import FREE, OVERLAP, POLLING, SYNC, TrainPlan, measure_train
from parallel_envs.bench.measure import Pace, Quartiles

pytest.importorskip("mpe2")


LEARNER_WORK = LearnerWork(num_agents=2, hidden=8, batch=16)


def same(value: float) -> Quartiles:
    return Quartiles(value, value, value, 3)


def learner_row(ratio: float, mode: str = "fused", of_best: float | None = None) -> LearnerRow:
    best = None if of_best is None else same(of_best)
    work = str(LEARNER_BARS[0].work)
    return LearnerRow(work=work, name=mode, updates=same(ratio), to_sequential=same(ratio), to_best=best)


@pytest.mark.slow
def test_the_command_prints_a_table_of_agents_with_experience_of_their_own() -> None:
    words = "learners --agents 2 --hidden 8 --batch 16 --modes fused --seconds 0.001"
    done = CliRunner().invoke(app, words.split(), env={"COLUMNS": "150"})
    assert done.exit_code == 0, done.output
    assert "2 agents, 8-8, batch 16" in done.output
    assert "fused" in done.output
    plans = made_plans(LEARNER_WORK)
    assert plans[0].picks.shape == plans[1].picks.shape == (8, 16)
    assert (plans[0].arrays["rewards"] != plans[1].arrays["rewards"]).any()


def iteration_report(mode: str, ratio: float) -> Any:
    rows = IterationRow(name=PLAIN, steps=same(1.0)), IterationRow(name=mode, steps=same(1.0), to_plain=same(ratio))
    return iterations_report(rows, {}, "title")


@pytest.mark.parametrize(
    ("report", "bar"),
    [
        (partial(iteration_report, "fused"), IS_AT_LEAST),
        (partial(iteration_report, OVERLAP), IS_AT_LEAST),
        (lambda ratio: learners_report([learner_row(ratio)], {}, "title"), 3.0),
        (lambda share: learners_report([learner_row(1.0, "auto", share)], {}, "title"), 0.9),
        (lambda ratio: meta_report((meta_row(META_SEQUENTIAL, 1.0), meta_row("8 workers", ratio)), {}, "title"), 1.5),
    ],
    ids=["iteration, fused", "iteration, overlap", "learners", "learners, auto", "meta"],
)
def test_a_bar_is_passed_or_not(report: Callable[[float], Any], bar: float) -> None:
    for ratio, outcome in ((bar + 0.005, "PASS"), (bar - 0.005, "FAIL")):
        (note,) = report(ratio).notes
        assert note.startswith(outcome)
    assert judged_learners([learner_row(0.1, mode="thread")]) == [], "what was not promised has no bar"


def meta_row(name: str, ratio: float) -> MetaRow:
    return MetaRow(name=name, steps=same(ratio), to_sequential=same(ratio), learning=0.25)


def test_both_paths_collect_and_learn() -> None:
    pace = Pace(seconds=0.001, rounds=2)
    rows = measure_meta(MetaPlan(env="GridNavi-v0", workers=(2,), num_rollouts=4, horizon=5, pace=pace))
    assert [one.name for one in rows] == [META_SEQUENTIAL, "2 workers"]
    assert all(one.steps.median > 0 and 0 < one.learning < 1 for one in rows)
    assert rows[0].to_sequential == Quartiles(1.0, 1.0, 1.0, 2)


@pytest.mark.slow
def test_every_way_has_a_row() -> None:
    sizes: Any = {
        "num_agents": 2,
        "num_envs": 2,
        "hidden": 8,
        "rollout_length": 8,
        "minibatch_size": 8,
        "num_epochs": 1,
    }
    rows = measure_train(TrainPlan(**sizes, learn_in="thread", rollouts=3, rounds=1))
    assert [row.name for row in rows] == [SYNC, OVERLAP, FREE, POLLING]
    assert all(row.error is None and row.steps is not None and row.steps.median > 0 for row in rows)
    assert [row.learnt for row in rows[:3]] == [1.0, 1.0, 1.0]
    assert 0 <= rows[3].learnt <= 1
