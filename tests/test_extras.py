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


def installed_by(extra: str) -> str:
    return f'pip install "parallel-envs[{extra}]", or in a checkout pip install -e ".[{extra}]"'


def ran(code: str, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """What a process of its own says, in which the code is run."""
    script = tmp_path / "script.py"
    script.write_text(code)
    return subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, cwd=tmp_path, check=False, timeout=110
    )


def test_every_library_is_of_an_extra_that_there_is() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for module in EXTRA_OF:
        assert EXTRA_OF[module] in extras
        assert f"parallel-envs[{EXTRA_OF[module]}]" in install_line(module)
    for module in ("torch", "safetensors", "tensorboard", "cpprb", "mpe2", "lbforaging", "moviepy", "metaworld"):
        wanted = [re.split(r"[<>=\[]", one)[0] for one in extras[EXTRA_OF[module]]]
        assert module in wanted


MISSING = [
    ("from parallel_envs import IndependentLearners", "torch", "parallel_envs.learners.IndependentLearners", "learn"),
    ("from parallel_envs.learners import PPOConfig", "torch", "parallel_envs.learners.PPOConfig", "learn"),
    ("from parallel_envs.wrappers import TorchPolicy", "torch", "parallel_envs.wrappers.TorchPolicy", "learn"),
    (
        "from parallel_envs import WrappedMultiAgentPolicy\nWrappedMultiAgentPolicy({'a': print}, strategy='gpu')",
        *("torch", "The strategy 'gpu'", "learn"),
    ),
    (
        "from parallel_envs.policies import load_policy\nload_policy('parallel_envs.learners.trained:TrainedAgent')",
        *("torch", "The policy 'parallel_envs.learners.trained:TrainedAgent'", "learn"),
    ),
    (
        "from parallel_envs import ParallelEnvManager\nParallelEnvManager('ale_py:ALE/Pong-v5', num_envs=1)",
        *("ale_py", "The environment 'ale_py:ALE/Pong-v5'", "envs"),
    ),
    (
        "from parallel_envs.rollouts.replay import CpprbPriorities\nCpprbPriorities(8, 0.6)",
        *("cpprb", 'sampler="cpprb" (the other choice is "tree")', "replay"),
    ),
    (
        "from parallel_envs.multiagent.by_name import env_factory\nenv_factory('mettagrid.builder:arena')()",
        *("mettagrid", "The environment 'mettagrid.builder:arena'", "mettagrid"),
    ),
    (
        "from parallel_envs import make_env\nmake_env('metaworld:Meta-World/MT1', 2)",
        *("metaworld", "The environment 'metaworld:Meta-World/MT1'", "metaworld"),
    ),
    (
        "from parallel_envs.integrations import to_sb3",
        *("stable_baselines3", "parallel_envs.integrations.to_sb3", "sb3"),
    ),
]


def test_a_missing_library_is_one_sentence_with_what_installs_it(tmp_path: Path) -> None:
    code = BLOCK.format(modules=sorted({blocked for _, blocked, *_ in MISSING}))
    for number, (lines, *_) in enumerate(MISSING):
        inside = "\n    ".join(lines.splitlines())
        code += f"try:\n    {inside}\nexcept ImportError as error:\n    print({number}, type(error).__name__, error)\n"
    done = ran(code, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"{number} MissingExtra {what} needs {blocked}, which is not installed: {installed_by(extra)}."
        for number, (_, blocked, what, extra) in enumerate(MISSING)
    ]


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
    wanted = installed_by("envs")
    assert done.returncode == 0, done.stderr
    assert f"The environment 'mpe2.simple_spread_v3' needs mpe2, which is not installed: {wanted}." in done.stdout
    assert f"'mpe2.simple_spread_v3' is unknown. Its package is not installed: {wanted}." in done.stdout
    assert "parallel_env or env" not in done.stdout


def test_an_error_of_a_library_that_is_there_stays_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("import no_such_library\n")
    told = ran("from parallel_envs import IndependentLearners", tmp_path).stderr
    assert told.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_library'"


SPREAD = "mpe2.simple_spread_v3"
SLOW = pytest.mark.slow
COMMANDS = [
    ("eval -m CartPole-v1 -p random --record best", "moviepy", "Videos need moviepy, which is not installed", "video"),
    ("benchmarks iteration", "torch", "This benchmark needs torch, which is not installed", "learn"),
    pytest.param("train config.yaml", "torch", "Training needs torch, which is not installed", "learn", marks=SLOW),
    pytest.param("tasks mpe2.simple_v3", "mpe2", "Its package is not installed", "envs", marks=SLOW),
    pytest.param("eval -m CartPole-v1 -p run", "torch", "needs torch, which is not installed", "learn", marks=SLOW),
    pytest.param("train config.yaml env=ale_py:ALE/Pong-v5", "ale_py", "", "envs", marks=SLOW),
    pytest.param(f"train config.yaml env={SPREAD}", "mpe2", "Its package is not installed", "envs", marks=SLOW),
    pytest.param(f"eval -m {SPREAD} -p random", "mpe2", "Its package is not installed", "envs", marks=SLOW),
    pytest.param("train config.yaml", "safetensors", "Training needs safetensors, which is", "learn", marks=SLOW),
]


@pytest.mark.parametrize(("words", "blocked", "sentence", "extra"), COMMANDS)
def test_commands_say_it_in_a_line(words: str, blocked: str, sentence: str, extra: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("env: CartPole-v1\ntotal_steps: 8\nbackend: serial\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    package, *arguments = words.split() if words.startswith("benchmarks") else ["parallel_envs", *words.split()]
    code = f"sys.path.insert(0, {str(ROOT)!r})\nfrom {package}.cli import app\napp({arguments!r}, prog_name='it')\n"
    done = ran(BLOCK.format(modules=(blocked,)) + code, tmp_path)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert sentence in done.stderr
    assert f": {installed_by(extra)}." in done.stderr
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) < 4


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


@pytest.mark.parametrize("platform", ["darwin", pytest.param("win32", marks=SLOW)])
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


@pytest.mark.slow
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


def test_an_older_python_is_told_and_can_read_as_far_as_that(tmp_path: Path) -> None:
    code = "import sys\nsys.version_info = (3, 10, 14, 'final', 0)\ntry:\n    import parallel_envs\n"
    done = ran(f"{code}except ImportError as error:\n    print(error)\n", tmp_path)
    assert done.stdout == "parallel_envs needs Python 3.11 or later; this is 3.10.14.\n", done.stderr
    tree = ast.parse((ROOT / "parallel_envs" / "__init__.py").read_text(), feature_version=(3, 10))
    check = next(place for place, node in enumerate(tree.body) if isinstance(node, ast.If))
    before = [node for node in tree.body[:check] if isinstance(node, ast.Import | ast.ImportFrom)]
    assert [alias.name for node in before for alias in node.names] == ["annotations", "logging", "sys"]
