from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from benchmarks.experiments import Experiment, Figures, StepRatios
from benchmarks.syscalls import StraceMissing
from benchmarks.targets import BARS, Bar, about, judge
from parallel_envs.bench.envs import resolve
from parallel_envs.bench.measure import MeasurementFailed, Tell
from parallel_envs.bench.turns import Pace

PACE = Pace(seconds=0.01, rounds=1)


@dataclass(frozen=True)
class Staged(Experiment):
    """An experiment with a known outcome, which says that it was run."""

    outcome: Any

    def figures(self, pace: Pace, tell: Tell) -> Figures:
        tell("run")
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return {"speed": self.outcome}


def bar(outcome: Any, limit: float = 2.0, **given: Any) -> Bar:
    settings = {"work": "work", "figure": "speed", "unit": "x", "sense": "at least", "limit": limit}
    return Bar(experiment=Staged(outcome), **{**settings, **given})


@pytest.mark.parametrize(
    ("sense", "value", "outcome"),
    [
        ("at least", 2.0, "PASS"),
        ("at least", 1.99, "FAIL"),
        ("at most", 2.0, "PASS"),
        ("at most", 2.01, "FAIL"),
    ],
)
def test_a_bar_is_reached_at_its_limit(sense: str, value: float, outcome: str) -> None:
    (verdict,) = judge([bar(value, sense=sense)], PACE)
    assert (verdict.outcome, verdict.value) == (outcome, value)


def test_bars_of_one_experiment_share_its_run() -> None:
    told: list[str] = []
    verdicts = judge([bar(3.0, limit=2.0), bar(3.0, limit=4.0)], PACE, told.append)
    assert [verdict.outcome for verdict in verdicts] == ["PASS", "FAIL"]
    assert told == ["work: run"]


def test_verdicts_come_as_soon_as_they_are_there() -> None:
    told: list[str] = []
    verdicts = judge([bar(3.0, work="one"), bar(4.0, work="two")], PACE, told.append)
    assert next(verdicts).value == 3.0
    assert told == ["one: run"]
    assert next(verdicts).value == 4.0


def test_bars_are_chosen_by_what_they_are_about() -> None:
    bars = [bar(3.0, work="Ant-v5, 8 envs", unit="x Gymnasium"), bar(3.0, work="Sokoban", unit="x the loop")]
    assert about(bars, "sokoban") == (bars[1],)
    assert about(bars, "gymnasium") == (bars[0],)
    assert about(bars, "") == tuple(bars)
    assert about(bars, "Sokobahn") == ()


def test_a_bar_whose_env_is_not_installed_is_skipped_with_the_reason() -> None:
    told: list[str] = []
    lacking = bar(3.0, needs=(("no_such_module_anywhere", "the-package[extra]"),))
    (verdict,) = judge([lacking], PACE, told.append)
    assert (verdict.outcome, verdict.value) == ("SKIP", None)
    assert verdict.note == "not installed: pip install 'the-package[extra]'"
    assert told == []


def test_a_measurement_that_failed_is_a_bar_missed_with_its_text() -> None:
    (verdict,) = judge([bar(MeasurementFailed("a worker died"))], PACE)
    assert (verdict.outcome, verdict.note) == ("FAIL", "a worker died")


def test_a_figure_that_did_not_come_is_a_bar_missed() -> None:
    (verdict,) = judge([bar(3.0, figure="another")], PACE)
    assert (verdict.outcome, verdict.note) == ("FAIL", "no figure for another")


def test_without_strace_the_calls_are_skipped() -> None:
    (verdict,) = judge([bar(StraceMissing("apt-get install strace"))], PACE)
    assert (verdict.outcome, verdict.note) == ("SKIP", "apt-get install strace")


def test_every_env_that_a_bar_names_can_be_resolved() -> None:
    names = {each.experiment.env for each in BARS if isinstance(each.experiment, StepRatios)}
    assert {resolve(name).name for name in names} == names
