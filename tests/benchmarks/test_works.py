"""`python -m benchmarks eval`, `groups`, `policies`, `rollouts` and `zoo`: every runner does the same work, has a row
in table and JSON, and what cannot be measured is told.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Mapping
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
from benchmarks.policies import AUTO, SEQUENTIAL, SHIPPED, Empty, PolicyWork
from benchmarks.rollouts import WORKS, LockStep, Sequential, unequal_work
from benchmarks.zoo import (
    OURS_EACH,
    OURS_FEW,
    ManyAgents,
    OursTogether,
    ZooPlan,
    make_zoo_workload,
    resolve_zoo,
    zoo_contestants,
)
from benchmarks.zoo import PlainLoop as PlainZooLoop
from parallel_envs.bench.envs import EnvChoice, SpinEnv
from parallel_envs.bench.measure import Pace
from parallel_envs.bench.runners import Runner
from parallel_envs.evaluation import Mission
from parallel_envs.groups import registry
from parallel_envs.groups.episode import IMAGE
from parallel_envs.rollouts import collect

TINY = EvalWork(
    what="a little",
    missions=tuple(Mission(name=name, env=SpinEnv, kwargs={"microseconds": 10}) for name in "ab"),
    episodes=2,
    policy="random",
    max_steps=3,
    at_least=0.0001,
)
GROUPS = GroupWork(
    what="4 that wait", env_type="waiting", factory=Waiting, env_config={"seconds": 0.0}, num_groups=2, group_size=2,
    actions=answers,
)  # fmt: skip
POLICIES = PolicyWork(
    what="3 empty", make=lambda _: Empty(), strategies=(SEQUENTIAL, "thread", AUTO, SHIPPED), num_agents=3
)
ROLLOUTS = functools.partial(unequal_work, num_rollouts=5, microseconds=0.0)


@pytest.fixture(autouse=True)
def _small_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setitem(WORKS, "unequal", ROLLOUTS)
    for module in (groups, policies, cli):
        for name, works in (("GROUP_WORKS", {"small": GROUPS}), ("POLICY_WORKS", {"here": POLICIES})):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, works)


QUICK = "--seconds 0.002 --rounds 1"
COMMANDS: dict[str, tuple[list[str], str, list[str]]] = {
    # the names of the rows, a part of the output, the ratios that each row has
    f"groups --workers 1 {QUICK}": ([PlainLoop.name, CALLER, OURS, shipped("fork")], "", ["to_loop", "to_caller"]),
    "rollouts --work unequal --num-workers 1 --num-envs 2 --rounds 1": (
        ["collect", "collect", "sequential", "lock-step", "lock-step"],
        "8 workers, 8 envs, a fixed share each",
        ["to_sequential"],
    ),
    f"policies --work here --workers 1 {QUICK}": (
        [SEQUENTIAL, "thread", AUTO, SHIPPED],
        "3 empty: auto chose sequential",
        ["to_sequential"],
    ),
    f"zoo --env agents:3 --num-envs 2 --num-workers 1 --peers none {QUICK}": (
        [OURS_FEW, OURS_EACH, "parallel_envs, agents not told apart", PlainZooLoop.name],
        "dicts by agent take",
        [],
    ),
}


@pytest.mark.parametrize(
    "words",
    [
        pytest.param(one, marks=pytest.mark.slow) if one.startswith(("rollouts", "zoo", "groups")) else one
        for one in COMMANDS
    ],
)
def test_every_runner_has_a_row_in_table_and_json(words: str, tmp_path: Path) -> None:
    names, part, ratios = COMMANDS[words]
    done = CliRunner().invoke(cli.app, [*words.split(), "--json", str(tmp_path / "found.json")])
    assert done.exit_code == 0, done.output
    assert part in done.output
    content = json.loads((tmp_path / "found.json").read_text())
    assert content["command"] == words.split()[0]
    assert content["settings"].get("rounds", content["settings"].get("pace", {}).get("rounds")) == 1
    assert [row["name"] for row in content["rows"]] == names
    for row in content["rows"]:
        assert row["error"] is None
        assert all(row[ratio]["num_samples"] == 1 for ratio in ratios)
        if "early_bytes" in row:
            assert (row["early_bytes"] is not None) == (row["name"] == OURS)
            assert row["name"] != OURS or row["early_bytes"] == pytest.approx(row["late_bytes"], abs=8)


def test_what_is_missing_or_fails_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = dataclasses.replace(TINY, needs=(("no_such_module", "no-such-package"),))
    failing = dataclasses.replace(TINY, policy="benchmarks.evaluations:no_such_policy")
    monkeypatch.setattr(evaluations, "EVAL_WORKS", {"missing": missing, "failing": failing})
    rows = measure_evaluations(EvalPlan(works=("missing", "failing"), jobs=1, rounds=1))
    report = evaluations_report(rows, {}, "title")
    assert "missing needs: pip install 'no-such-package'" in report.notes
    assert any("failing, jobs=0 failed: MeasurementFailed" in note or "no_such_policy" in note for note in report.notes)


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


@pytest.mark.parametrize("collector", [Sequential(ROLLOUTS(1)), LockStep(ROLLOUTS(2), num_workers=1)])
def test_all_ways_collect_the_same_rollouts(collector: Sequential | LockStep) -> None:
    work = ROLLOUTS(1)
    collector.open()
    with closing(collector):
        assert collector.step() == work.num_steps
        found = collector.rollouts()
    with closing(work.factory()) as env:
        expected = collect(env, work.make_policy(env.observation_space, env.action_space), 5, tasks=work.tasks)
    assert sorted(len(transitions) for transitions in found) == sorted(work.tasks)
    actions = {len(one): one.actions.tolist() for one in expected}
    assert {len(one): [int(action) for _, action, *_ in one] for one in found} == actions
    assert all(one[-1][3] and not any(over for *_, over, _, _ in one[:-1]) for one in found)


class LeavingAgents(ManyAgents):
    """Agent `i` of three leaves in step `i + 1`."""

    def __init__(self) -> None:
        super().__init__(3)

    def step(self, actions: Mapping[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        assert actions.keys() == set(self.agents)
        there, self.agents = self.agents, self.agents[1:]
        ends = {agent: agent not in self.agents for agent in there}
        seen = {agent: self._points[:, 0].repeat(2)[:4] for agent in there}
        return seen, dict.fromkeys(there, 1.0), ends, dict.fromkeys(there, False), {agent: {} for agent in there}


@pytest.mark.parametrize("kind", [OursTogether, PlainZooLoop])
def test_a_row_in_which_no_agent_acts_is_no_step(kind: type[Runner]) -> None:
    contestant = kind(make_zoo_workload(EnvChoice("leaving", LeavingAgents), num_envs=2))
    contestant.load()
    contestant.open()
    with closing(contestant):
        assert [contestant.step() for _ in range(9)] == [2, 2, 2, 0, 2, 2, 2, 0, 2]
    pace = Pace(seconds=0.02, rounds=2)
    plan = ZooPlan(env=resolve_zoo("agents:3"), num_envs=2, num_workers=2, pace=pace, peers=())
    assert OURS_FEW not in zoo_contestants(plan), "where each env has a worker ours is there once"
