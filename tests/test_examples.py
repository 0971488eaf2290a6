"""Examples run as their docstrings say; so do the tools of `examples/results`, in small."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete

from parallel_envs.multiagent import MultiAgentEnvManager
from tests.benchmarks.zoo_stage import LeavingAgents

EXAMPLES = Path(__file__).parent.parent / "examples"
ROOM = EXAMPLES / "results"
NUM_ENVS = 2


def output_of(*command: str) -> str:
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=EXAMPLES, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("family", "needs", "num_steps"), [("ant", "mujoco", 400), ("ml1", "metaworld", 400)])
def test_meta_rollouts_are_the_same_on_workers_and_without(family: str, needs: str, num_steps: int) -> None:
    pytest.importorskip(needs)
    shown = output_of("meta_rollouts.py", family, "--num-tasks", "2")
    assert "return of episode 2" in shown
    assert f"{num_steps} steps: " in shown
    assert "the same rollouts: yes" in shown


def test_a_policy_that_remembers_the_goal_does_better_in_the_second_episode() -> None:
    shown = output_of("meta_rollouts.py", "gridnavi")
    assert "the same rollouts: yes" in shown  # on workers and without
    rows = [line.split("│") for line in shown.splitlines() if "to (" in line]
    gains = [float(second) - float(first) for _, _, first, second, _ in rows]
    assert len(gains) == 8
    assert min(gains) >= 0.0  # none where the search happens to lead straight to the goal
    assert sum(gains) > 0.0


def rows_of(shown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]


def test_a_stand_in_for_a_language_model_gets_better_at_the_tasks_of_its_groups() -> None:
    shown = output_of("llm_groups.py")
    rows = rows_of(shown)
    first, last = ([float(cell.split(" / ")[0]) for cell in row[1:]] for row in (rows[0], rows[-1]))
    assert (len(rows), len(last)) == (8, 6)
    assert sum(last) > sum(first) + 1.0
    assert "the same without workers: yes" in shown


@pytest.mark.slow
def test_four_policies_do_the_same_under_every_strategy() -> None:
    for needed in ("torch", "mpe2"):
        pytest.importorskip(needed)
    shown = output_of("agent_wrappers.py", "--rounds", "1")
    rows = rows_of(shown)
    assert [name for name, *_ in rows] == ["sequential", "thread", "process", "batch", "gpu", "auto", "mixed"]
    assert [same for *_, same in rows] == ["yes"] * 7
    assert "auto chose " in shown


class LeavingOneByOne(LeavingAgents):
    """Three agents with nothing much to choose; agent `i` leaves in step `i + 1`, and each step pays 1."""

    def action_space(self, agent: str) -> Any:
        return Discrete(2)


@pytest.fixture
def ppo() -> Iterator[ModuleType]:
    pytest.importorskip("torch")
    spec = importlib.util.spec_from_file_location("shared_ppo_spread", EXAMPLES / "shared_ppo_spread.py")
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@contextmanager
def collector(ppo: ModuleType) -> Iterator[Any]:
    with MultiAgentEnvManager([LeavingOneByOne] * NUM_ENVS, backend="serial") as envs:
        rows = envs.as_vector_env()
        yield ppo.Collector(rows, ppo.Network(rows), seed=1)


def test_random_play_tells_returns_and_speed() -> None:
    pytest.importorskip("mpe2")
    shown = output_of("pettingzoo_random.py", "--num-envs", "2", "--steps", "60").splitlines()
    assert [line.split(":")[0] for line in shown[:3]] == ["agent_0", "agent_1", "agent_2"]
    assert all(line.endswith("in 4 episodes") for line in shown[:3])
    assert shown[3].startswith("116 steps of 3 agents each, ")  # two of the sixty rows only reset


def test_shared_ppo_trains() -> None:
    pytest.importorskip("mpe2")
    pytest.importorskip("torch")
    shown = output_of("shared_ppo_spread.py", "--total-steps", "900", "--num-envs", "4", "--num-steps", "52")
    assert "800 steps   mean return of the last  32 episodes" in shown  # 4 updates of 52 rows, of which 50 are steps


def test_rows_that_do_not_act_do_not_count(ppo: ModuleType) -> None:
    with collector(ppo) as collecting:
        rollout = collecting.collect(9)
    assert collecting.num_steps == 7 * NUM_ENVS  # three steps, a reset, three steps, a reset, one step
    assert list(collecting.returns) == [6.0] * 2 * NUM_ENVS  # the first agent has one step, the last three
    alive, no = rollout.alive[:4, :3].tolist(), False
    assert alive == [[True, True, True], [no, True, True], [no, no, True], [no, no, no]]
    assert rollout.ended[:4, :3].tolist() == [[True, no, no], [no, True, no], [no, no, True], [no, no, no]]


def test_rows_that_do_not_act_have_no_advantage_and_pass_none_on(ppo: ModuleType) -> None:
    import torch

    with collector(ppo) as collecting:
        rollout = collecting.collect(4)
    rollout.values[:] = 0.0
    rollout.values[~rollout.alive] = 1e6
    found = rollout.advantages(torch.full((3 * NUM_ENVS,), 1e6), gamma=1.0, gae_lambda=1.0)
    expected = [[1.0, 2.0, 3.0], [0.0, 1.0, 2.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]
    np.testing.assert_array_equal(found.numpy(), np.tile(expected, NUM_ENVS))


def test_a_truncated_agent_would_have_gone_on(ppo: ModuleType) -> None:
    import torch

    rollout = ppo.Rollout(2, 1, 1)
    rollout.rewards[0, 0] = 1.0
    rollout.values[1, 0] = 10.0  # of the last thing it saw, which lies in the row after its end
    rollout.alive[0, 0] = rollout.ended[0, 0] = True
    found = rollout.advantages(torch.zeros(1), gamma=0.5, gae_lambda=1.0)
    assert found[:, 0].tolist() == [6.0, 0.0]
    rollout.terminated[0, 0] = True
    assert rollout.advantages(torch.zeros(1), gamma=0.5, gae_lambda=1.0)[:, 0].tolist() == [1.0, 0.0]


@pytest.fixture
def train_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(ROOM)
    module = importlib.import_module("train_seeds")
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "NUM_EPISODES", 8)
    return module


@pytest.mark.parametrize(
    ("name", "total_steps"),
    [("penalty_ppo", "40000"), pytest.param("climbing_hysteretic_dqn", "50000", marks=pytest.mark.slow)],
)
def test_a_task_in_small_from_config_to_curve(train_seeds: Any, tmp_path: Path, name: str, total_steps: str) -> None:
    config = tmp_path / f"{name}.yaml"
    config.write_text((ROOM / f"{name}.yaml").read_text(encoding="utf-8").replace(total_steps, "3000"))
    line = train_seeds.summed_up(name, [0, 1], tmp_path / "runs")
    told = list(csv.DictReader((tmp_path / "figures.csv").read_text(encoding="utf-8").splitlines()))
    assert [(row["task"], row["seed"]) for row in told] == [(name, "0"), (name, "1")]
    payoffs = {float(row["deterministic"]) / 25 for row in told}  # always the same actions: one cell of the matrix
    assert payoffs <= {0.0, 2.0, 10.0, 11.0, -30.0, 7.0, 6.0, 5.0}
    assert line.startswith(f"| {train_seeds.TASKS[name].title} | 2 | ")
    assert (tmp_path / f"{name}.csv").read_text(encoding="utf-8").count("\n") == 51
    config.write_text("env: nowhere\ntotal_steps: 3000\n")
    assert train_seeds.summed_up(name, [0, 1], tmp_path / "runs") == line  # nothing is done twice


def test_a_run_goes_on_when_its_config_wants_more(train_seeds: Any, tmp_path: Path) -> None:
    config = (ROOM / "penalty_ppo.yaml").read_text(encoding="utf-8")
    steps = []
    for total in ("800", "1400"):
        (tmp_path / "penalty_ppo.yaml").write_text(config.replace("40000", total), encoding="utf-8")
        steps.append(train_seeds.figures_of("penalty_ppo", 0, tmp_path / "run").steps)
    assert 700 < steps[0] < 1100 < steps[1] < 1700
    lines = [line["steps"] for line in train_seeds.read_metrics(tmp_path / "run")]
    assert lines == sorted(lines)
    assert lines[0] < 500


def test_every_task_has_its_config(train_seeds: Any) -> None:
    for name in train_seeds.TASKS:
        settings = train_seeds.load_settings(ROOM / f"{name}.yaml")
        train_seeds.env_factory(settings.env, settings.env_kwargs)
        train_seeds.algorithm_configs(settings, ["agent", *settings.agents], train_seeds.configs_by_name())
