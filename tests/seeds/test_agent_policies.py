"""The commands that this package promises for evaluating several agents' policies in parallel.

Each test runs the lines that it quotes. They were written for a tool called `cogames`, whose command is `parallel-envs`
here, and for its mission `machina_1`, in whose place a module of that name makes a small mission: a module on Python's
path that has `parallel_env` is a mission.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from parallel_envs.evaluation import EvaluationResult
from tests.cli.test_tool import command

MISSION = """
from tests.evaluation.stages import course_of

def parallel_env(num_agents=2, max_cycles=20):
    return course_of(num_agents, length=max_cycles)
"""


@pytest.fixture
def _mission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    (tmp_path / "machina_1.py").write_text(MISSION, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    yield
    sys.modules.pop("machina_1", None)


pytestmark = pytest.mark.usefixtures("_mission")


def run(line: str, *words: str) -> tuple[str, EvaluationResult]:
    """Run a line of a block, with a file for its results. Return what is printed, and the results."""
    tool, *given = shlex.split(line)
    assert tool == "cogames"
    ran = command(*given, *words, "--output", "results.json")
    assert ran.exit_code == 0, ran.output
    return ran.stdout, EvaluationResult.from_json("results.json")


def returns(result: EvaluationResult) -> list[Any]:
    assert (result.failures, result.missing) == ((), ())
    return [record.returns for record in result.episodes]


def test_agents_episodes_and_both_side_by_side() -> None:
    block = """
# Agent-level parallelization
cogames eval -m machina_1 -p random --cogs 4 --parallel-policy

# Episode-level parallelization
cogames eval -m machina_1 -p random --episodes 10 --jobs 4

# Combined (three-level parallelization)
cogames eval -m machina_1 -p random --cogs 4 --episodes 10 --jobs 4 --parallel-policy
"""
    lines = [line for line in block.strip().splitlines() if line and not line.startswith("#")]
    (printed, agents), (_, episodes), (_, combined) = [run(line) for line in lines]
    names = [f"agent_{number}" for number in range(4)]
    (chosen,) = agents.strategies.values()
    assert list(agents.episodes[0].returns) == list(chosen) == names
    assert "Strategies in machina_1?num_agents=4: " in printed
    assert [(record.mission, record.episode) for record in episodes.episodes] == [("machina_1", n) for n in range(10)]
    assert len(episodes.worker_bytes) == len(combined.worker_bytes) == 4
    _, sequential = run(lines[1].replace("--jobs 4", "--jobs 0"))
    assert returns(episodes) == returns(sequential)
    _, sequential = run(lines[0].removesuffix(" --parallel-policy"))
    assert returns(combined) == returns(agents) == returns(sequential)


def test_some_agents_in_threads_others_in_processes() -> None:
    line = "cogames eval -m machina_1 -p random --cogs 4 --strategy agent_0=process --strategy agent_1=thread"
    _, found = run(line)
    chosen = {"agent_0": "process", "agent_1": "thread", "agent_2": "sequential", "agent_3": "sequential"}
    assert found.strategies == {"machina_1?num_agents=4": chosen}
    _, sequential = run("cogames eval -m machina_1 -p random --cogs 4")
    assert returns(found) == returns(sequential)
