"""`bench eval`: what it measures, and what it says where it cannot."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from typer.testing import CliRunner

from benchmarks import evaluations
from benchmarks.cli import app
from benchmarks.eval_workloads import EVAL_WORKS, EvalWork, spread_network
from benchmarks.evaluations import PEER, EvalPlan, evaluations_report, measure_evaluations
from benchmarks.targets import BARS
from parallel_envs.bench.envs import SpinEnv
from parallel_envs.bench.measure import Spread
from parallel_envs.evaluation import Mission

TINY = EvalWork(
    what="a little",
    missions=tuple(Mission(name=name, env=SpinEnv, kwargs={"microseconds": 10}) for name in "ab"),
    episodes=2,
    policy="random",
    max_steps=3,
    at_least=0.0001,
)


@pytest.fixture
def works(monkeypatch: pytest.MonkeyPatch) -> dict[str, EvalWork]:
    works: dict[str, EvalWork] = {}
    monkeypatch.setattr(evaluations, "EVAL_WORKS", works)
    return works


def test_whole_evaluations_are_measured_in_turns(works: dict[str, EvalWork]) -> None:
    works["tiny"] = TINY
    without, with_jobs = measure_evaluations(EvalPlan(works=("tiny",), jobs=2, rounds=2))
    assert (without.name, with_jobs.name) == ("jobs=0", "jobs=2")
    assert without.episodes is not None
    assert without.episodes.num_samples == 2
    assert (without.ratio, without.worker_mib) == (None, None)
    assert with_jobs.ratio is not None
    assert with_jobs.worker_mib is not None
    assert 5 < with_jobs.worker_mib < 2000


def test_a_peer_comes_first_and_is_what_ours_is_compared_with(works: dict[str, EvalWork]) -> None:
    played: list[int] = []

    def peer() -> int:
        played.append(4)
        return 4

    works["tiny"] = dataclasses.replace(TINY, peer=peer)
    rows = measure_evaluations(EvalPlan(works=("tiny",), jobs=1, rounds=2))
    assert [row.name for row in rows] == [PEER, "jobs=0", "jobs=1"]
    assert [row.ratio is None for row in rows] == [True, False, False]
    assert len(played) == 3, "once to warm up, and once a round"


def test_what_is_missing_or_fails_is_told(works: dict[str, EvalWork]) -> None:
    works["missing"] = dataclasses.replace(TINY, needs=(("no_such_module", "no-such-package"),))
    works["failing"] = dataclasses.replace(TINY, policy="benchmarks.evaluations:no_such_policy")
    rows = measure_evaluations(EvalPlan(works=("missing", "failing"), jobs=1, rounds=1))
    report = evaluations_report(rows, {}, "title")
    assert "missing needs: pip install 'no-such-package'" in report.notes
    assert any("failing, jobs=0 failed: MeasurementFailed" in note or "no_such_policy" in note for note in report.notes)


def test_the_verdict_stands_under_the_table() -> None:
    spread = Spread(2.0, 1.0, 3.0, 5)
    row = evaluations.EvalRow(work="w", name="jobs=2", what="x", episodes=spread, ratio=spread, at_least=1.5)
    for bar, outcome in ((1.5, "PASS"), (2.5, "FAIL")):
        notes = evaluations_report([dataclasses.replace(row, at_least=bar)], {}, "title").notes
        assert notes[-1] == f"{outcome}  w, jobs=2: 2.00 times the first, bar {bar:g}"


def test_every_work_has_a_promise() -> None:
    promised = {bar.experiment.work for bar in BARS if hasattr(bar.experiment, "work")}
    assert {*EVAL_WORKS} <= promised
    assert {name: work.at_least for name, work in EVAL_WORKS.items()} == {
        "spread": 1.8,
        "unequal": 1.7,
        "short": 1.4,
        "mettagrid": 1.7,
    }


def test_an_unknown_work_is_told() -> None:
    ran = CliRunner().invoke(app, ["eval", "--works", "long"])
    assert ran.exit_code == 2
    assert "There is no work called 'long'" in ran.output.replace("\n", " ").replace("│", "")


def test_the_networks_act() -> None:
    pytest.importorskip("torch")
    from parallel_envs.evaluation.missions import EnvMaker

    env: Any = EnvMaker(EVAL_WORKS["spread"].missions[0]).make()
    seen, _ = env.reset(seed=0)
    policy = spread_network(env.observation_space("agent_0"), env.action_space("agent_0"))
    assert env.action_space("agent_0").contains(policy.step(seen["agent_0"]))
