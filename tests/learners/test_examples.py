"""The examples of learners run as their docstrings say, in short."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
import yaml

from parallel_envs.learners.meta import load_settings
from parallel_envs.learners.meta.agent import AGENT_ARCHS, read_algorithm, read_memory
from parallel_envs.meta.making import find_family
from tests.test_examples import output_of


@pytest.mark.slow
def test_mixed_algorithms_trains_every_agent() -> None:
    shown = output_of("mixed_algorithms.py", "--total-steps", "1000").splitlines()
    assert [line.split()[0] for line in shown[:5]] == ["200", "400", "600", "800", "1,000"]
    told = [line.partition(" updates")[0] for line in shown[5:]]
    assert told == ["thermostat: ppo, 6", "fan: sac, 106", "guard: dqn, 53"]


@pytest.mark.slow
def test_independent_ppo_trains() -> None:
    pytest.importorskip("mpe2")
    shown = output_of("independent_ppo.py", "--total-steps", "800", "--num-envs", "4", "--update-mode", "sequential")
    assert "together" in shown
    assert shown.splitlines()[-1] == "sequential"


ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "examples" / "results" / "meta"
CONFIGS = sorted(path.name for path in RESULTS.glob("*.yaml"))


@pytest.mark.parametrize("name", CONFIGS)
def test_committed_settings_can_be_run(name: str) -> None:
    assert "bandits.yaml" in CONFIGS
    settings = load_settings(RESULTS / name)
    arch = AGENT_ARCHS(settings.policy.arch)
    read_algorithm(settings.policy.algorithm, arch)
    read_memory(settings.policy.memory.model_dump(), arch)
    if "Ant" not in settings.env.env_name:
        find_family(settings.env.env_name, settings.env.env_kwargs)


@pytest.mark.slow
def test_the_example_trains_goes_on_and_its_curve_is_drawn(tmp_path: Path) -> None:
    small = yaml.safe_load((RESULTS / "bandits.yaml").read_text(encoding="utf-8"))
    small["env"] |= {"num_eval_tasks": 5, "num_envs": 4}
    small["train"] |= {"num_iters": 3, "num_rollouts_per_iter": 8}
    small["eval"] = {"interval": 1}
    small["policy"]["algorithm"] |= {"minibatch_size": 40, "num_epochs": 1}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small), encoding="utf-8")
    run = tmp_path / "bandits-7"
    program = ROOT / "examples" / "meta_learning.py"

    def printed_by(*command: str | Path) -> str:
        ran = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=False)
        assert (ran.returncode, ran.stderr) == (0, "")
        return ran.stdout

    shown = printed_by(program, tmp_path / "small.yaml", run, "--seed", "7")
    assert shown.startswith(f"{run}: 240 steps")
    result = json.loads((run / "result.json").read_text(encoding="utf-8"))
    assert (result["steps"], len(result["by_episode"]), result["rollouts"]) == (240, 10, 5)
    assert printed_by(program, "--resume", run).splitlines()[1] == shown.splitlines()[1]
    printed_by(RESULTS / "curves.py", run, "--into", tmp_path)
    rows = list(csv.DictReader((tmp_path / "bandits-7.csv").read_text(encoding="utf-8").splitlines()))
    assert [row["steps"] for row in rows] == ["80", "160", "240"]
    assert float(rows[-1]["episode_10"]) == pytest.approx(result["by_episode"][9], rel=1e-3)
    picture = ET.parse(tmp_path / "bandits-7.svg").getroot()  # written just now
    lines = [path.get("style", "") for path in picture.iter("{http://www.w3.org/2000/svg}path")]
    assert len({style for style in lines if "stroke-width: 2;" in style}) == 10  # a colour for each episode
