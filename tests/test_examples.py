"""Examples run as their docstrings say; so do the tools of `examples/results`, in small."""

from __future__ import annotations

import csv
import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
ROOM = EXAMPLES / "results"


def output_of(*command: str) -> str:
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=EXAMPLES, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("family", "needs"), [("ant", "mujoco"), ("ml1", "metaworld")])
def test_meta_rollouts_are_the_same_on_workers_and_without(family: str, needs: str) -> None:
    pytest.importorskip(needs)
    shown = output_of("meta_rollouts.py", family, "--num-tasks", "2")
    for told in ("return of episode 2", "400 steps: ", "the same rollouts: yes"):
        assert told in shown


@pytest.mark.slow
def test_a_policy_that_remembers_the_goal_does_better_in_the_second_episode() -> None:
    shown = output_of("meta_rollouts.py", "gridnavi")
    assert "the same rollouts: yes" in shown  # on workers and without
    rows = [line.split("│") for line in shown.splitlines() if "to (" in line]
    gains = [float(second) - float(first) for _, _, first, second, _ in rows]
    assert len(gains) == 8
    assert sum(gains) > min(gains) >= 0.0  # none where the search happens to lead straight to the goal


def rows_of(shown: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]


@pytest.mark.slow
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


def test_random_play_tells_returns_and_speed() -> None:
    pytest.importorskip("mpe2")
    shown = output_of("pettingzoo_random.py", "--num-envs", "2", "--steps", "60").splitlines()
    assert [line.split(":")[0] for line in shown[:3]] == ["agent_0", "agent_1", "agent_2"]
    assert all(line.endswith("in 4 episodes") for line in shown[:3])
    assert shown[3].startswith("116 steps of 3 agents each, ")  # two of the sixty rows only reset


@pytest.mark.slow
def test_shared_ppo_trains() -> None:
    pytest.importorskip("mpe2")
    pytest.importorskip("torch")
    shown = output_of("shared_ppo_spread.py", "--total-steps", "900", "--num-envs", "4", "--num-steps", "52")
    assert "800 steps   mean return of the last  32 episodes" in shown  # 4 updates of 52 rows, of which 50 are steps


@pytest.fixture
def train_seeds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    for needed in ("torch", "matplotlib"):
        pytest.importorskip(needed)
    monkeypatch.syspath_prepend(ROOM)
    module = importlib.import_module("train_seeds")
    monkeypatch.setattr(module, "HERE", tmp_path)
    monkeypatch.setattr(module, "NUM_EPISODES", 8)
    return module


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "total_steps"),
    [("penalty_ppo", "40000"), ("climbing_hysteretic_dqn", "50000")],
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


@pytest.mark.parametrize("name", ["simple_spread", "meta/bandits-0"])
def test_the_last_label_of_a_curve_is_inside_of_its_picture(name: str) -> None:
    svg = (ROOM / f"{name}.svg").read_text(encoding="utf-8")
    width = float(svg.partition('viewBox="0 0 ')[2].split()[0])
    labels = re.findall(r'text-anchor: middle[^>]* x="([\d.]+)"[^>]*>([\d,]+)</text>', svg)
    at, text = max(labels, key=lambda label: float(label[0]))
    assert text in ("1,000,000", "1,200,000")
    assert float(at) + 8 * 0.65 * len(text) / 2 <= width  # in letters of eight points


@pytest.mark.slow
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
