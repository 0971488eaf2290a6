"""Environments in single files: `./my_env.py:MyEnv`, wherever an environment is named by a text."""

from __future__ import annotations

import json
import pickle
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import Result

from parallel_envs import ParallelEnvManager, evaluate, make_env, make_parallel_env
from parallel_envs.bench import envs as bench_envs
from parallel_envs.env_files import FileFactory, absolute
from parallel_envs.errors import EnvError, UntrustedName
from parallel_envs.evaluation import BadEvaluation, missions_of
from parallel_envs.multiagent import MultiAgentEnvManager
from parallel_envs.multiagent.by_name import env_factory
from parallel_envs.trust import check_env
from tests.cli.test_tool import command

SOURCE = """
from dataclasses import dataclass

import gymnasium
import numpy as np

import beside_it


@dataclass(frozen=True)
class Note:
    text: str


class Corridor(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0.0, 9.0, (1,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length=3):
        self.length = length

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.place += 1
        over = self.place == self.length
        return np.full(1, self.place, np.float32), beside_it.REWARD, over, False, {"note": Note("seen")}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder, with a blank in its name, that holds an environment in a file."""
    found = tmp_path / "my envs"
    found.mkdir()
    (found / "corridor.py").write_text(SOURCE)
    (found / "beside_it.py").write_text("REWARD = 1.0\n")
    (found / "broken.py").write_text("raise LookupError('no licence')\n")
    monkeypatch.chdir(found)
    return found


def told(result: Result) -> str:
    return " ".join(result.output.replace("│", " ").split())


@pytest.mark.parametrize("options", [{"context": "spawn"}, {"context": "forkserver"}, {"backend": "serial"}])
def test_a_manager_takes_it_in_every_kind_of_worker(
    options: dict[str, Any], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ParallelEnvManager("./corridor.py:Corridor", num_envs=2, env_kwargs={"length": 2}, **options) as envs:
        monkeypatch.chdir(tmp_path)  # workers that are started later know the file all the same
        envs.reset(seed=0)
        _, rewards, terminated, _, infos = envs.step(np.zeros(2, np.int64))
        assert rewards.tolist() == [1.0, 1.0]
        assert not terminated.any()
        note = infos["note"][0]  # an object of the file's own class comes back whole
        assert (type(note).__name__, note.text) == ("Note", "seen")
        assert pickle.loads(pickle.dumps(note)) == note
        assert envs.step(np.zeros(2, np.int64))[2].all()


def test_every_interface_takes_it(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    factory = env_factory(f"{folder}/corridor.py:Corridor", {"length": 1})  # the path may be absolute
    with MultiAgentEnvManager([factory] * 2, num_workers=1) as agents_envs:
        agents_envs.reset(seed=0)
        assert agents_envs.possible_agents == ("agent_0",)
    assert factory().reset(seed=0)[0].keys() == {"agent_0"}
    assert make_env("./corridor.py:Corridor", 2, horizon=5, length=2).reset(seed=0)[0].shape[0] >= 1
    with make_parallel_env("corridor.py:Corridor", 2, 2, seed=0, horizon=5, length=2) as envs:
        assert envs.reset()[0].shape[0] == 2
    (folder / "m.yaml").write_text("missions: {short: {env: ./corridor.py:Corridor, kwargs: {length: 1}}}")
    monkeypatch.chdir(tmp_path)
    (mission,) = missions_of(str(folder / "m.yaml"))  # a file of missions names files beside it
    assert mission.env == f"{folder / 'corridor.py'}:Corridor"


def test_eval_resumes_from_another_folder(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = evaluate("./corridor.py:Corridor?length=4", "random", 2, jobs=1)
    assert found.missions == ("corridor.py:Corridor?length=4",)
    assert [record.length for record in found.episodes] == [4, 4]
    file = tmp_path / "r.json"
    words = ("eval", "-m", "./corridor.py:Corridor?length=4", "-p", "random", "-o", str(file))
    assert command(*words, "-e", "2").exit_code == 0
    whole = json.loads(file.read_text())
    part = {**whole, "episodes": whole["episodes"][:1], "missing": [["corridor.py:Corridor?length=4", 1]]}
    file.write_text(json.dumps(part))
    monkeypatch.chdir(tmp_path)
    refused = command("eval", "--resume", str(file))
    assert refused.exit_code == 2  # a results file may come from a stranger
    assert f"--trust {shlex.quote(str(folder / 'corridor.py'))}" in told(refused)
    result = command("eval", "--resume", str(file), "--trust", str(folder / "corridor.py"))
    assert result.exit_code == 0, result.output
    again = json.loads(file.read_text())
    assert [one["returns"] for one in again["episodes"]] == [one["returns"] for one in whole["episodes"]]


def test_a_missing_file_is_told_before_anything_starts_with_the_nearest(folder: Path) -> None:
    for make in (env_factory, FileFactory.of, bench_envs.resolve, lambda name: ParallelEnvManager(name, num_envs=2)):
        with pytest.raises(ValueError, match=r"there is no file .*/coridor\.py\. Did you mean 'corridor\.py'"):
            make("./coridor.py:Corridor")
    with pytest.raises(BadEvaluation, match="there is no file"):
        missions_of("./coridor.py:Corridor")


def test_a_neighbour_of_another_folder_and_a_relative_import_are_refused(tmp_path: Path) -> None:
    for name, reward in (("one", 1), ("other", 100)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "env.py").write_text("import rewards_beside\nmake = lambda: rewards_beside.REWARD\n")
        (tmp_path / name / "rewards_beside.py").write_text(f"REWARD = {reward}\n")
    assert FileFactory.of(f"{tmp_path}/one/env.py:make")() == 1
    with pytest.raises(ImportError, match=r"other/env.py imports 'rewards_beside'.*from .*one/rewards_beside.py"):
        FileFactory.of(f"{tmp_path}/other/env.py:make")()
    for text in ("from . import absolute", "from .helper import REWARD", "def f():\n    from .. import x"):
        (tmp_path / "env.py").write_text(f"{text}\nmake = dict\n")
        with pytest.raises(ImportError, match=r"imports relatively.*is in no package"):
            FileFactory.of(f"{tmp_path}/env.py:make")()


def test_missing_classes_and_errors_are_told(folder: Path) -> None:
    for name, error, text in (
        ("./corridor.py:Coridor", AttributeError, r"corridor\.py defines no 'Coridor'\. Did you mean 'Corridor'"),
        ("./broken.py:Env", ImportError, r"broken\.py raised LookupError when it was imported: no licence"),
    ):
        with pytest.raises(error, match=text):
            env_factory(name)()
        with pytest.raises(EnvError, match=text):
            ParallelEnvManager(name, num_envs=2, num_workers=1)
        result = command("eval", "-m", name, "-p", "random", "-e", "1")
        assert result.exit_code == 2
        assert re.search(text, told(result))


def test_a_strangers_settings_may_name_a_file_only_if_the_user_trusts_it(folder: Path) -> None:
    name = absolute("./corridor.py:Corridor")
    for trust in ((), ("corridor",), ("beside_it.py",)):
        with pytest.raises(UntrustedName, match=r"--trust '.*/my envs/corridor\.py'"):
            check_env(name, {}, "settings.yaml", trust)
    check_env(name, {}, "settings.yaml", ["./corridor.py"])
    check_env(name, {}, "settings.yaml", [str(folder / "corridor.py")])


def test_a_file_without_its_class_is_told_with_the_classes_that_it_has(tmp_path: Path) -> None:
    file = tmp_path / "my env.py"
    file.write_text("raise SystemExit('ran')\nclass Corridor: ...\nclass Maze: ...\n")
    meant = f"'{file}' is a file. Name the class in it, too: '{file}:Corridor' or '{file}:Maze'."
    with pytest.raises(ValueError, match=re.escape(meant)):
        env_factory(str(file))
    done = command("eval", "-m", str(file), "-p", "random")
    assert done.exit_code == 2
    assert done.stderr == f"The mission {meant}\n"
    file.write_text("class Broken(:")
    with pytest.raises(ValueError, match=re.escape(f"'{file}:MyEnv'")):
        env_factory(str(file))
