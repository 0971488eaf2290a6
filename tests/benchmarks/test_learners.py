"""`bench learners`: what it measures, and what it says of it."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import learners as bench_learners
from benchmarks.learners import (
    BARS,
    LearnerPlan,
    LearnerRow,
    LearnerWork,
    judged,
    learners,
    learners_report,
    made_plans,
    measure_learners,
)
from parallel_envs.bench.measure import Spread
from parallel_envs.bench.turns import Pace

WORK = LearnerWork(num_agents=2, hidden=8, batch=16)


def row(ratio: float, mode: str = "fused", of_best: float | None = None) -> LearnerRow:
    spread = Spread(ratio, ratio, ratio, 3)
    best = None if of_best is None else Spread(of_best, of_best, of_best, 3)
    return LearnerRow(work=str(BARS[0].work), name=mode, updates=spread, to_sequential=spread, to_best=best)


def command(*arguments: str) -> tuple[int, str]:
    app = typer.Typer()
    app.command()(learners)
    ran = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "150"})
    return ran.exit_code, ran.output


def test_every_mode_has_a_row_beside_the_sequential_one() -> None:
    plan = LearnerPlan(works=(WORK,), modes=("sequential", "fused", "auto"), pace=Pace(seconds=0.001, rounds=2))
    rows = measure_learners(plan)
    assert [one.name for one in rows] == ["sequential", "fused", "auto"]
    assert all(one.error is None and one.updates is not None and one.updates.median > 0 for one in rows)
    assert rows[0].to_sequential == Spread(1.0, 1.0, 1.0, 2)
    assert rows[2].to_best is not None
    assert rows[2].choice.startswith("auto: ")


def test_agents_have_experience_of_their_own() -> None:
    plans = made_plans(WORK)
    assert plans[0].picks.shape == plans[1].picks.shape == (8, 16)
    assert (plans[0].arrays["rewards"] != plans[1].arrays["rewards"]).any()


@pytest.mark.parametrize(("ratio", "good"), [(3.01, True), (2.99, False)])
def test_a_bar_is_passed_or_not(ratio: float, good: bool) -> None:
    (verdict,) = judged([row(ratio)])
    assert (verdict.mode, verdict.ratio, verdict.good) == ("fused", ratio, good)
    (note,) = learners_report([row(ratio)], {}, "title").notes
    assert note.startswith("PASS" if good else "FAIL")


@pytest.mark.parametrize(("share", "outcome"), [(0.9, "PASS"), (0.89, "FAIL")])
def test_what_auto_chose_has_a_bar_beside_the_best_of_the_others(share: float, outcome: str) -> None:
    note = f"{outcome}  auto, 8 agents, 64-64, batch 32: {share:.2f} times the best other, bar 0.9"
    assert learners_report([row(1.0, "auto", share)], {}, "title").notes == [note]


def test_a_bar_that_is_missed_is_the_commands_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    for share, expected in ((0.95, 0), (0.5, 1)):
        rows = {"fused": row(3.5), "auto": row(3.5 * share, "auto", share)}
        monkeypatch.setattr(
            bench_learners,
            "measure_learners",
            lambda plan, rows=rows: [rows[mode] for mode in plan.modes if mode in rows],
        )
        code, shown = command("--bars")
        assert (code, "auto, 8 agents" in shown) == (expected, True)


def test_what_was_not_promised_has_no_bar() -> None:
    assert judged([row(0.1, mode="thread")]) == []


def test_the_command_prints_a_table() -> None:
    code, shown = command("--agents", "2", "--hidden", "8", "--batch", "16", "--modes", "fused", "--seconds", "0.001")
    assert code == 0, shown
    assert "2 agents, 8-8, batch 16" in shown
    assert "fused" in shown


@pytest.mark.parametrize("wrong", [("--modes", "quick"), ("--agents", "0"), ("--batch", "many")])
def test_what_cannot_be_measured_is_told(wrong: tuple[str, str]) -> None:
    assert command(*wrong)[0] == 2
