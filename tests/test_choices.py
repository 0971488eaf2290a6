"""The words that arguments may have: one `Literal` for each, which type checkers, checks and tables all read."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode

from parallel_envs import ParallelEnvManager, choices
from parallel_envs.choices import words
from parallel_envs.groups.envs.bandit import ARM_NAMES
from parallel_envs.vector.manager import CommonOptions, VectorOptions
from parallel_envs.wrappers import STRATEGIES

ROOT = Path(__file__).parents[1]

GOOD = """
from parallel_envs import (
    EnvStateManager, IndependentLearners, MultiAgentEnvManager, ParallelEnvManager, WrappedMultiAgentPolicy, evaluate,
    vector_entry_point,
)
from parallel_envs.engine import PoolSettings
from parallel_envs.evaluation import Mission
from parallel_envs.learners import DQNConfig, LoopOptions, PPOConfig, SACConfig
from parallel_envs.wrappers import Rules

envs = MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=2)
ParallelEnvManager("CartPole-v1", num_envs=2, backend="thread")
ParallelEnvManager("CartPole-v1", num_envs=2, context="spawn")
ParallelEnvManager("CartPole-v1", num_envs=2, autoreset_mode="SameStep")
ParallelEnvManager("CartPole-v1", num_envs=2, observation_mode="different")
ParallelEnvManager("CartPole-v1", num_envs=2, on_failure="restart")
ParallelEnvManager("CartPole-v1", num_envs=2, cpu_affinity="auto")
MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=2, turns="sequential")
MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=2, backend="thread")
MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=2, on_failure="restart")
MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=2, num_workers=2)
vector_entry_point("CartPole-v1", context="fork")
PoolSettings(backend="serial")
WrappedMultiAgentPolicy({}, "thread")
WrappedMultiAgentPolicy({}, {"red": "batch"})
Rules(default_action=0, on_error="default")
learners = IndependentLearners(envs, PPOConfig())
IndependentLearners(envs, PPOConfig(), update_mode="thread")
IndependentLearners(envs, PPOConfig(), strategy="sequential")
IndependentLearners(envs, PPOConfig(), on_divergence="raise")
learners.train(100, mode="overlap")
learners.train(100, schedule="slowest")
learners.train(100, learn_in="thread")
LoopOptions(mode="overlap")
PPOConfig(network="gru")
PPOConfig(activation="relu")
PPOConfig(discount=0.9)
DQNConfig(network="cnn")
DQNConfig(sampler="tree")
SACConfig(activation="tanh")
Mission(name="walk", env=dict, turns="simultaneous")
evaluate("CartPole-v1", "random", jobs="auto")
evaluate("CartPole-v1", "random", context="spawn")
evaluate("CartPole-v1", "random", parallel_policy="thread")
EnvStateManager("groups.yaml", mode="val")
""".lstrip()
"""A line for each choice, with a word that there is. (mypy reads it; nothing runs it.)"""

MISSPELT = re.sub(r'(?m)(\w+)("\}?\)|=[\d.]+\))$', r"\1x\2", GOOD)
"""The same with a letter too many in each word."""


def lines_with_errors(folder: Path, **code: str) -> list[tuple[str, int]]:
    """Module and line of each error that mypy finds. Packages of others are taken as they come: this is about ours."""
    config, others = folder / "mypy.ini", ["torch", "safetensors", "pydantic", "rich", "typer", "cloudpickle", "yaml"]
    skipped = "".join(f"[mypy-{name}.*]\nfollow_imports = skip\nignore_missing_imports = True\n" for name in others)
    config.write_text(f"[mypy]\nmypy_path = {ROOT}\nfollow_imports = silent\n{skipped}")
    for name, text in code.items():
        (folder / f"{name}.py").write_text(text)
    options = ["--config-file", str(config), "--cache-dir", str(folder / "cache"), *(f"{name}.py" for name in code)]
    command = [sys.executable, "-m", "mypy", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = re.findall(r"^(\w+)\.py:(\d+): error", done.stdout, re.MULTILINE)
    return sorted({(name, int(line)) for name, line in found})


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_a_type_checker_sees_each_misspelt_word(tmp_path: Path) -> None:
    pytest.importorskip("mypy")
    pairs = zip(GOOD.splitlines(), MISSPELT.splitlines(), strict=True)
    wrong = [number for number, (line, misspelt) in enumerate(pairs, 1) if line != misspelt]
    assert len(wrong) == sum(")" in line and "(" in line for line in GOOD.splitlines()[9:]) - 1  # all but one
    assert lines_with_errors(tmp_path, good=GOOD, bad=MISSPELT) == [("bad", line) for line in wrong]


def test_the_package_says_that_it_is_typed() -> None:
    assert (resources.files("parallel_envs") / "py.typed").is_file()  # `.ci/check_wheel.py` looks into the wheel


def test_each_choice_is_explained() -> None:
    source = inspect.getsource(choices)
    named = re.findall(r"^(\w+) = (?:Literal|\w+$)", source, re.MULTILINE)
    assert re.findall(r"^# .+\.\n(\w+) = ", source, re.MULTILINE) == named


def test_tables_hold_what_the_choices_name() -> None:
    pytest.importorskip("torch")
    from parallel_envs.learners.agent import configs_by_name
    from parallel_envs.learners.loops.learner_thread import SCHEDULES
    from parallel_envs.learners.updates import EITHER, MODES

    assert tuple(STRATEGIES) == words(choices.Strategy)
    assert {"auto", *ARM_NAMES} == set(words(choices.ArmSplit))
    assert {mode.value for mode in AutoresetMode} == set(words(choices.Autoreset))
    assert {*MODES, *EITHER} == {*words(choices.UpdateModeName)}
    assert tuple(SCHEDULES) == words(choices.ScheduleName)
    assert set(configs_by_name()) == set(words(choices.AlgorithmName))


def written(words_of: Any) -> dict[str, str]:
    """The types of a TypedDict's words or of a function's arguments, as they are written."""
    if inspect.isclass(words_of):
        return {name: kind.__forward_arg__ for name, kind in words_of.__annotations__.items()}
    return {name: one.annotation for name, one in inspect.signature(words_of).parameters.items()}


def test_keywords_that_are_passed_on_have_the_types_of_the_ones_that_take_them() -> None:
    pytest.importorskip("torch")
    from parallel_envs.learners.loops.loop import LoopOptions, LoopWords

    taken, own = written(ParallelEnvManager.__init__), {"self", "env_fns", "num_envs", "env_kwargs"}
    assert written(VectorOptions) == {name: kind for name, kind in taken.items() if name not in own}
    assert written(CommonOptions).keys() == written(VectorOptions).keys() - {"observation_mode", "infos_list"}
    assert typing.get_type_hints(LoopWords) == typing.get_type_hints(LoopOptions)
