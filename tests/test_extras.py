"""Without libraries of extras, on systems other than Linux, with an older Python: one sentence says what is missing."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from parallel_envs.extras import EXTRA_OF, install_line

ROOT = Path(__file__).parents[1]

BLOCK = """
import sys
sys.modules.update(dict.fromkeys({modules}))
"""
LEARN = 'pip install "parallel-envs[learn]", or in a checkout pip install -e ".[learn]"'


def ran(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """What a process of its own says, in which the code is run."""
    script = tmp_path / "script.py"
    script.write_text(code)
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=110
    )


def told(code: str, tmp_path: Path, *blocked: str) -> str:
    """The text of the error that the code raises, without these libraries."""
    lines = "\n    ".join(code.splitlines())
    ending = "\nexcept ImportError as error:\n    print(type(error).__name__, error)\n"
    done = ran(f"{BLOCK.format(modules=blocked)}\ntry:\n    {lines}{ending}", tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_library_is_of_an_extra_that_there_is() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for module in EXTRA_OF:
        assert EXTRA_OF[module] in extras
        assert f"parallel-envs[{EXTRA_OF[module]}]" in install_line(module)
    for module in ("torch", "safetensors", "tensorboard", "cpprb", "mpe2", "lbforaging", "moviepy", "metaworld"):
        wanted = [re.split(r"[<>=\[]", one)[0] for one in extras[EXTRA_OF[module]]]
        assert module in wanted


# ---- Python -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "blocked", "sentence"),
    [
        (
            "from parallel_envs import IndependentLearners",
            "torch",
            f"MissingExtra parallel_envs.learners.IndependentLearners needs torch, which is not installed: {LEARN}.",
        ),
        (
            "from parallel_envs.learners import PPOConfig",
            "torch",
            f"MissingExtra parallel_envs.learners.PPOConfig needs torch, which is not installed: {LEARN}.",
        ),
        (
            "from parallel_envs.wrappers import TorchPolicy",
            "torch",
            f"MissingExtra parallel_envs.wrappers.TorchPolicy needs torch, which is not installed: {LEARN}.",
        ),
        (
            (
                "from parallel_envs.policies import load_policy\n"
                "load_policy('parallel_envs.learners.trained:TrainedAgent')"
            ),
            "torch",
            (
                "MissingExtra The policy 'parallel_envs.learners.trained:TrainedAgent' needs torch, which is not "
                f"installed: {LEARN}."
            ),
        ),
        (
            "from parallel_envs import ParallelEnvManager\nParallelEnvManager('ale_py:ALE/Pong-v5', num_envs=1)",
            "ale_py",
            (
                "MissingExtra The environment 'ale_py:ALE/Pong-v5' needs ale_py, which is not installed: "
                f"{LEARN.replace('learn', 'envs')}."
            ),
        ),
        (
            "from parallel_envs.rollouts.priorities import CpprbPriorities\nCpprbPriorities(8, 0.6)",
            "cpprb",
            (
                'MissingExtra sampler="cpprb" (the other choice is "tree") needs cpprb, which is not installed: '
                f"{LEARN.replace('learn', 'replay')}."
            ),
        ),
        (
            ("from parallel_envs.multiagent.by_name import env_factory\nenv_factory('mettagrid.builder:arena')()"),
            "mettagrid",
            (
                "MissingExtra The environment 'mettagrid.builder:arena' needs mettagrid, which is not installed: "
                f"{LEARN.replace('learn', 'mettagrid')}."
            ),
        ),
        (
            "from parallel_envs import make_env\nmake_env('metaworld:Meta-World/MT1', 2)",
            "metaworld",
            (
                "MissingExtra The environment 'metaworld:Meta-World/MT1' needs metaworld, which is not installed: "
                f"{LEARN.replace('learn', 'metaworld')}."
            ),
        ),
    ],
)
def test_a_missing_library_is_one_sentence_with_what_installs_it(
    code: str, blocked: str, sentence: str, tmp_path: Path
) -> None:
    assert told(code, tmp_path, blocked) == sentence


def test_a_missing_environment_is_not_told_as_a_missing_function(tmp_path: Path) -> None:
    code = """
from parallel_envs import MultiAgentEnvManager, ParallelEnvsError, evaluate
try:
    MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=1, backend="serial")
except ParallelEnvsError as error:
    print(error)
try:
    evaluate("mpe2.simple_spread_v3", "random")
except ValueError as error:
    print(error)
"""
    done = ran(BLOCK.format(modules=("mpe2",)) + code, tmp_path)
    wanted = LEARN.replace("learn", "envs")
    assert done.returncode == 0, done.stderr
    assert f"The environment 'mpe2.simple_spread_v3' needs mpe2, which is not installed: {wanted}." in done.stdout
    assert f"'mpe2.simple_spread_v3' is unknown. Its package is not installed: {wanted}." in done.stdout
    assert "parallel_env or env" not in done.stdout


def test_an_error_of_a_library_that_is_there_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import no_such_library\n")
    assert told("from parallel_envs import IndependentLearners", tmp_path) == (
        "ModuleNotFoundError No module named 'no_such_library'"
    )


# ---- commands -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "blocked", "sentence"),
    [
        (["bench", "train"], ("torch",), f"This benchmark needs torch, which is not installed: {LEARN}."),
        (["train", "config.yaml"], ("torch",), f"Training needs torch, which is not installed: {LEARN}."),
        (["train", "config.yaml"], ("safetensors",), f"Training needs safetensors, which is not installed: {LEARN}."),
        (
            ["train", "config.yaml", "env=mpe2.simple_spread_v3"],
            ("mpe2",),
            f"Its package is not installed: {LEARN.replace('learn', 'envs')}.",
        ),
        (["train", "config.yaml", "env=ale_py:ALE/Pong-v5"], ("ale_py",), f"{LEARN.replace('learn', 'envs')}."),
        (["eval", "-m", "CartPole-v1", "-p", "run"], ("torch",), f"needs torch, which is not installed: {LEARN}."),
        (
            ["eval", "-m", "mpe2.simple_spread_v3", "-p", "random"],
            ("mpe2",),
            f"Its package is not installed: {LEARN.replace('learn', 'envs')}.",
        ),
        (
            ["eval", "-m", "CartPole-v1", "-p", "random", "--record", "best"],
            ("moviepy",),
            f"Videos need moviepy, which is not installed: {LEARN.replace('learn', 'video')}.",
        ),
        (["tasks", "mpe2.simple_v3"], ("mpe2",), f"Its package is not installed: {LEARN.replace('learn', 'envs')}."),
    ],
)
def test_commands_say_it_in_a_line(words: list[str], blocked: tuple[str, ...], sentence: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("env: CartPole-v1\ntotal_steps: 8\nbackend: serial\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    code = f"from parallel_envs.cli import app\napp({words!r}, prog_name='parallel-envs')\n"
    done = ran(BLOCK.format(modules=blocked) + code, tmp_path)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) < 4


# ---- other systems ------------------------------------------------------------------------------------------------

ELSEWHERE = """
import sys, os, select, signal
import gymnasium, pettingzoo, cloudpickle, pydantic, threadpoolctl, zoneinfo, mpe2  # these may look at the system, too

for module in ("fcntl", "resource", "termios", "pwd", "grp"):
    sys.modules[module] = None
for name in ("pidfd_open", "memfd_create", "sched_getaffinity", "sched_setaffinity", "fork", "setsid", "killpg",
             "O_NOFOLLOW", "O_CLOEXEC", "sched_yield"):
    vars(os).pop(name, None)
for name in ("pidfd_send_signal", "pthread_sigmask", "SIGKILL", "SIGCHLD", "SIGRTMIN", "SIGUSR1", "SIGUSR2"):
    vars(signal).pop(name, None)
for name in ("epoll", "poll"):
    vars(select).pop(name, None)
sys.platform = {platform!r}

import numpy as np
import parallel_envs
from parallel_envs import EnvStateManager, MultiAgentEnvManager, ParallelEnvManager, WorkerStartError, evaluate

for backend in ("serial", "thread"):
    with ParallelEnvManager("CartPole-v1", num_envs=2, backend=backend) as envs:
        envs.reset(seed=1)
        print(backend, envs.step(np.array([0, 1]))[1].tolist())
    with MultiAgentEnvManager("mpe2.simple_spread_v3", num_envs=1, backend=backend) as envs:
        envs.reset(seed=1)
try:
    ParallelEnvManager("CartPole-v1", num_envs=2)
except WorkerStartError as error:
    print(error)
result = evaluate("CartPole-v1", "random", episodes=1)
result.to_json("result.json")
print(result.missions)
bandit = dict(env_type="bandit", max_actions_per_traj=3)
mode = dict(env_groups=1, group_size=2, env_configs=dict(tags=["S"], n_groups=[1]))
config = dict(es_manager=dict(use_multiprocessing=False, train=mode), custom_envs=dict(S=bandit))
with EnvStateManager(config, mode="train") as manager:
    print(len(manager.reset(seed=1)))
"""


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_serial_and_threads_work_on_other_systems(platform: str, tmp_path: Path) -> None:
    """As far as that can be tried on Linux: what those systems lack is taken away before the package is imported."""
    pytest.importorskip("mpe2")
    done = ran(ELSEWHERE.format(platform=platform), tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "serial [1.0, 1.0]",
        "thread [1.0, 1.0]",
        "Worker processes need a system that tells when a process ends (Linux 5.3 or later). Use backend='thread'.",
        "('CartPole-v1',)",
        "2",
    ]


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_agents_learn_on_other_systems(platform: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    setting = ELSEWHERE.format(platform=platform).partition("import numpy as np")[0]
    settings = "env: CartPole-v1\ntotal_steps: 16\nnum_envs: 1\nbackend: serial\nupdate_mode: sequential\n"
    algorithm = "algorithm: {name: ppo, rollout_length: 8, minibatch_size: 8, hidden: [8]}\ntensorboard: false\n"
    (tmp_path / "config.yaml").write_text(settings + algorithm)
    code = "from parallel_envs.cli import app\napp(['train', 'config.yaml', 'folder=run'])\n"
    done = ran("import torch, typer, rich.logging, rich.progress, safetensors\n" + setting + code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "checkpoints").is_dir()


# ---- older Pythons ------------------------------------------------------------------------------------------------


def test_an_older_python_is_told(tmp_path: Path) -> None:
    code = "import sys\nsys.version_info = (3, 10, 14, 'final', 0)\ntry:\n    import parallel_envs\n"
    done = ran(f"{code}except ImportError as error:\n    print(error)\n", tmp_path)
    assert done.stdout == "parallel_envs needs Python 3.11 or later; this is 3.10.14.\n", done.stderr


def test_it_can_read_as_far_as_that() -> None:
    tree = ast.parse((ROOT / "parallel_envs" / "__init__.py").read_text(), feature_version=(3, 10))
    check = next(place for place, node in enumerate(tree.body) if isinstance(node, ast.If))
    before = [node for node in tree.body[:check] if isinstance(node, ast.Import | ast.ImportFrom)]
    names = [alias.name for node in before for alias in node.names]
    assert names == ["annotations", "logging", "sys"]
