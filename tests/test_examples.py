"""Examples run as their docstrings say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


def output_of(*command: str) -> str:
    ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=EXAMPLES, check=False)
    assert (ran.returncode, ran.stderr) == (0, "")
    return ran.stdout


@pytest.mark.parametrize(
    ("family", "needs", "num_steps"), [("gridnavi", "numpy", 120), ("ant", "mujoco", 400), ("ml1", "metaworld", 400)]
)
def test_meta_rollouts_are_the_same_on_workers_and_without(family: str, needs: str, num_steps: int) -> None:
    pytest.importorskip(needs)
    shown = output_of("meta_rollouts.py", family, "--num-tasks", "2")
    assert "return of episode 2" in shown
    assert f"{num_steps} steps: " in shown
    assert "the same rollouts: yes" in shown


def test_who_remembers_the_goal_does_better_in_the_second_episode() -> None:
    rows = [line.split("│") for line in output_of("meta_rollouts.py", "gridnavi").splitlines() if "to (" in line]
    gains = [float(second) - float(first) for _, _, first, second, _ in rows]
    assert len(gains) == 8
    assert min(gains) >= 0.0  # none where the search happens to lead straight to the goal
    assert sum(gains) > 0.0


def test_a_stand_in_for_a_language_model_gets_better_at_the_tasks_of_its_groups() -> None:
    shown = output_of("llm_groups.py")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    first, last = ([float(cell.split(" / ")[0]) for cell in row[1:]] for row in (rows[0], rows[-1]))
    assert len(rows) == 8
    assert len(last) == 6
    assert sum(last) > sum(first) + 1.0
    assert "the same without workers: yes" in shown


def test_four_policies_do_the_same_under_every_strategy() -> None:
    for needed in ("torch", "mpe2"):
        pytest.importorskip(needed)
    shown = output_of("agent_wrappers.py", "--rounds", "1")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in shown.splitlines() if line.startswith("│")]
    assert [name for name, *_ in rows] == ["sequential", "thread", "process", "batch", "gpu", "auto", "mixed"]
    assert [same for *_, same in rows] == ["yes"] * 7
    assert "auto chose " in shown
