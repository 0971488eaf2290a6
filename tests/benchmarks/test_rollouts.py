from __future__ import annotations

import dataclasses
import functools
import json
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from benchmarks import cli
from benchmarks.experiments import RolloutRatios
from benchmarks.rollouts import (
    NEEDS,
    WORKS,
    Collector,
    LockStep,
    OursCollecting,
    RolloutPlan,
    Sequential,
    Work,
    collectors,
    measure_rollouts,
    unequal_work,
)
from benchmarks.step_costs import OursWithTasks, measure_task_cost
from benchmarks.targets import BARS
from parallel_envs import ParallelEnvManager
from parallel_envs.bench.envs import resolve
from parallel_envs.bench.measure import spread
from parallel_envs.bench.runners import Workload
from parallel_envs.bench.turns import Pace
from parallel_envs.rollouts import Rollouts, collect
from tests.benchmarks.stages import EpisodeEnv

SMALL = functools.partial(unequal_work, num_rollouts=5, microseconds=0.0)


@pytest.fixture
def only_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(WORKS, "unequal", SMALL)


def collected(work: Work) -> Rollouts:
    with closing(work.factory()) as env:
        return collect(env, work.make_policy(env.observation_space, env.action_space), 5, tasks=work.tasks)


def test_a_work_knows_how_many_steps_its_rollouts_have() -> None:
    assert collected(SMALL(1)).num_steps == SMALL(1).num_steps


@pytest.mark.parametrize("collector", [Sequential(SMALL(1)), LockStep(SMALL(2), num_workers=1)])
def test_all_ways_collect_the_same_rollouts(collector: Sequential | LockStep) -> None:
    collector.open()
    with closing(collector):
        assert collector.step() == SMALL(1).num_steps
        found = collector.rollouts()
    lengths = [len(transitions) for transitions in found]
    assert sorted(lengths) == sorted(SMALL(1).tasks)
    actions = {len(one): one.actions.tolist() for one in collected(SMALL(1))}
    assert {len(one): [int(action) for _, action, *_ in one] for one in found} == actions
    assert all(one[-1][3] and not any(over for *_, over, _, _ in one[:-1]) for one in found)


def test_rollouts_are_cut_off_in_every_way() -> None:
    work = dataclasses.replace(SMALL(2), max_steps=10, num_steps=50)
    for collector in (Sequential(work), LockStep(work), OursCollecting(work)):
        collector.open()
        with closing(collector):
            assert collector.step() == 50


def test_a_collector_that_brings_fewer_steps_is_not_measured() -> None:
    lazy = Sequential(dataclasses.replace(SMALL(1), num_steps=7))
    lazy.open()
    with closing(lazy), pytest.raises(RuntimeError, match=f"{SMALL(1).num_steps} steps were collected, .* have 7"):
        lazy.step()


def test_a_work_that_lacks_its_library_is_named_and_nothing_is_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NEEDS, "unequal", (("no_such_module_anywhere", "the-package[extra]"),))
    (row,) = measure_rollouts(RolloutPlan(works=("unequal",)))
    assert (row.missing, row.rates, row.error) == ("the-package[extra]", (), None)


@pytest.mark.usefixtures("only_small")
def test_every_collector_has_a_row_in_table_and_json_with_a_figure_beside_the_plain_loop(tmp_path: Path) -> None:
    file = tmp_path / "rollouts.json"
    asked = ["rollouts", "--work", "unequal", "--num-workers", "1", "--num-envs", "2", "--rounds", "2"]
    done = CliRunner().invoke(cli.app, [*asked, "--json", str(file)])
    assert done.exit_code == 0, done.output
    assert "8 workers, 8 envs, a fixed share each" in done.output
    content = json.loads(file.read_text())
    assert content["command"] == "rollouts"
    assert content["settings"] == {"works": ["unequal"], "num_workers": 1, "num_envs": 2, "rounds": 2}
    rows = content["rows"]
    assert [row["work"] for row in rows] == ["unequal"] * 5
    assert [row["name"] for row in rows] == ["collect", "collect", "sequential", "lock-step", "lock-step"]
    assert [row["error"] for row in rows] == [None] * 5
    for row in rows:
        assert row["spread"]["num_samples"] == row["to_sequential"]["num_samples"] == len(row["rates"]) == 2
    assert rows[2]["to_sequential"] == dataclasses.asdict(spread([1.0, 1.0]))


def test_more_workers_than_environments_are_refused() -> None:
    done = CliRunner().invoke(cli.app, ["rollouts", "--num-workers", "3", "--num-envs", "2"])
    assert done.exit_code == 2
    assert "3 workers cannot share 2 environments" in done.output


def test_every_figure_that_a_bar_names_is_measured() -> None:
    named = [(each.experiment.work, each.figure) for each in BARS if isinstance(each.experiment, RolloutRatios)]
    assert named
    for work, figure in named:
        plan = RolloutPlan()
        assert figure in collectors(work, plan.num_workers, plan.num_envs)


def test_tasks_are_in_use_where_their_cost_is_measured() -> None:
    workload = Workload(factory=functools.partial(EpisodeEnv, 3), action_space=EpisodeEnv.action_space, num_envs=2)
    with closing(OursWithTasks(workload, backend="serial")) as ours:
        ours.open()
        envs = ours._envs
        assert isinstance(envs, ParallelEnvManager)
        assert envs.call("level") == (0, 1)
        infos = envs.step(np.zeros(2, np.int64))[-1]
        assert infos["task_id"].tolist() == [0, 1]


def test_the_cost_of_tasks_is_a_ratio_with_its_spread() -> None:
    ratio = measure_task_cost(resolve("spin:20"), num_envs=2, num_workers=1, pace=Pace(seconds=0.02, rounds=1))
    assert ratio.num_samples == 4
    assert 0.2 < ratio.median < 5.0


def test_a_collector_is_named_and_says_how_it_works() -> None:
    everyone: list[Collector] = list(collectors("unequal", 2, 16).values())
    assert [f"{each.name}: {each.settings}" for each in everyone] == [
        "collect: 2 workers, 16 envs",
        "collect: 8 workers, 8 envs",
        "sequential: one env, no workers",
        "lock-step: 2 workers, 16 envs, a fixed share each",
        "lock-step: 8 workers, 8 envs, a fixed share each",
    ]
