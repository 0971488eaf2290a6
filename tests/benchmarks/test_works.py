"""`bench eval`, `groups`, `policies` and `rollouts`: what they measure, and what they say where they cannot."""

from __future__ import annotations

import dataclasses
import functools
import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import cli, evaluations, groups, policies
from benchmarks.eval_workloads import EvalWork
from benchmarks.evaluations import EvalPlan, evaluations_report, measure_evaluations
from benchmarks.group_runners import Ours, PlainLoop
from benchmarks.group_workloads import GROUP_WORKS, GroupWork, Waiting, answers
from benchmarks.groups import CALLER, OURS, shipped
from benchmarks.policies import (
    AUTO,
    SEQUENTIAL,
    SHIPPED,
    Empty,
    PolicyPlan,
    PolicyWork,
)
from benchmarks.rollouts import (
    WORKS,
    LockStep,
    Sequential,
    Work,
    unequal_work,
)
from parallel_envs.bench.envs import SpinEnv
from parallel_envs.bench.measure import Pace, spread
from parallel_envs.evaluation import Mission
from parallel_envs.groups import registry
from parallel_envs.groups.episode import IMAGE
from parallel_envs.rollouts import Rollouts, collect

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


def test_what_is_missing_or_fails_is_told(works: dict[str, EvalWork]) -> None:
    works["missing"] = dataclasses.replace(TINY, needs=(("no_such_module", "no-such-package"),))
    works["failing"] = dataclasses.replace(TINY, policy="benchmarks.evaluations:no_such_policy")
    rows = measure_evaluations(EvalPlan(works=("missing", "failing"), jobs=1, rounds=1))
    report = evaluations_report(rows, {}, "title")
    assert "missing needs: pip install 'no-such-package'" in report.notes
    assert any("failing, jobs=0 failed: MeasurementFailed" in note or "no_such_policy" in note for note in report.notes)


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
    asked = ["groups", "--seconds", "0.002", "--rounds", "1", "--workers", "1", "--json", str(path)]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 0, done.output
    rows: list[dict[str, Any]] = json.loads(path.read_text())["rows"]
    assert [row["name"] for row in rows] == [PlainLoop.name, CALLER, OURS, shipped("fork")]
    for row in rows:
        assert row["error"] is None
        assert row["turn"]["median"] > 0
        assert row["to_loop"]["num_samples"] == row["to_caller"]["num_samples"] == 1
        assert (row["early_bytes"] is not None) == (row["name"] == OURS)
    assert rows[2]["early_bytes"] == pytest.approx(rows[2]["late_bytes"], abs=8)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "sokoban-" in name else ()) for name in sorted(GROUP_WORKS)]
)
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
    first, again = (work.actions(np.random.default_rng(3), 4) for _ in range(2))
    assert first == again
    assert {type(one) for turn in first for one in turn} == {str}


PACE = Pace(seconds=0.01, rounds=2)
HERE = PolicyWork(
    what="3 empty", make=lambda _: Empty(), strategies=(SEQUENTIAL, "thread", AUTO, SHIPPED), num_agents=3
)
ROWS = PolicyWork(what="rows", make=lambda _: Empty(), strategies=(SEQUENTIAL, "batch"), num_agents=2, num_rows=4)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "POLICY_WORKS", {"here": HERE, "rows": ROWS})
    monkeypatch.setattr(cli, "POLICY_WORKS", {"here": HERE, "rows": ROWS})


def plan(*works: str) -> PolicyPlan:
    return PolicyPlan(works=works, workers=1, pace=PACE)


SMALL_ROLLOUTS = functools.partial(unequal_work, num_rollouts=5, microseconds=0.0)


@pytest.fixture
def only_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKS, "unequal", SMALL_ROLLOUTS)


def collected(work: Work) -> Rollouts:
    with closing(work.factory()) as env:
        return collect(env, work.make_policy(env.observation_space, env.action_space), 5, tasks=work.tasks)


@pytest.mark.parametrize("collector", [Sequential(SMALL_ROLLOUTS(1)), LockStep(SMALL_ROLLOUTS(2), num_workers=1)])
def test_all_ways_collect_the_same_rollouts(collector: Sequential | LockStep) -> None:
    collector.open()
    with closing(collector):
        assert collector.step() == SMALL_ROLLOUTS(1).num_steps
        found = collector.rollouts()
    lengths = [len(transitions) for transitions in found]
    assert sorted(lengths) == sorted(SMALL_ROLLOUTS(1).tasks)
    actions = {len(one): one.actions.tolist() for one in collected(SMALL_ROLLOUTS(1))}
    assert {len(one): [int(action) for _, action, *_ in one] for one in found} == actions
    assert all(one[-1][3] and not any(over for *_, over, _, _ in one[:-1]) for one in found)


@pytest.mark.usefixtures("only_small")
def test_every_collector_has_a_row_in_table_and_json_with_a_figure_beside_the_plain_loop(tmp_path: Path) -> None:
    file = tmp_path / "rollouts.json"
    asked = ["rollouts", "--work", "unequal", "--num-workers", "1", "--num-envs", "2", "--rounds", "1"]
    done = CliRunner().invoke(cli.app, [*asked, "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "8 workers, 8 envs, a fixed share each" in done.output
    content = json.loads(file.read_text())
    assert content["command"] == "rollouts"
    assert content["settings"] == {"works": ["unequal"], "num_workers": 1, "num_envs": 2, "rounds": 1}
    rows = content["rows"]
    assert [row["work"] for row in rows] == ["unequal"] * 5
    assert [row["name"] for row in rows] == ["collect", "collect", "sequential", "lock-step", "lock-step"]
    assert [row["error"] for row in rows] == [None] * 5
    for row in rows:
        assert row["spread"]["num_samples"] == row["to_sequential"]["num_samples"] == len(row["rates"]) == 1
    assert rows[2]["to_sequential"] == dataclasses.asdict(spread([1.0]))


@pytest.mark.usefixtures("small")
def test_the_command_for_policies_has_a_row_for_every_strategy(tmp_path: Path) -> None:
    file = tmp_path / "policies.json"
    asked = ["policies", "--work", "here", "--workers", "1", "--seconds", "0.01", "--rounds", "2", "--json", str(file)]
    done = CliRunner().invoke(cli.app, asked)
    assert done.exit_code == 0, done.output
    assert "3 empty: auto chose sequential" in done.output
    content = json.loads(file.read_text())
    assert content["settings"] == {"works": ["here"], "workers": 1, "pace": {"seconds": 0.01, "rounds": 2}}
    assert [row["name"] for row in content["rows"]] == [SEQUENTIAL, "thread", AUTO, SHIPPED]
    assert all(row["agent_microseconds"] > 0 and row["to_sequential"] for row in content["rows"])
