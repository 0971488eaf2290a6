"""Files that somebody else may have written run no code that the user has not allowed."""

from __future__ import annotations

import importlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from gymnasium.spaces import Discrete

from parallel_envs import evaluate
from parallel_envs.errors import UntrustedName
from parallel_envs.evaluation import candidates_of
from parallel_envs.policies import PolicySpec, load_policy
from parallel_envs.trust import OUR_ENVS, OUR_POLICIES, TUPLE_AGENTS, check_env, trusted_modules
from tests.cli.test_tool import command

STRANGER = """
from pathlib import Path
from subprocess import Popen

Path({marker!r}).touch()

import gymnasium


class Policy:
    def step(self, observation):
        return 0

    def load(self, folder):
        pass


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), dict()

    def step(self, action):
        return self.observation_space.sample(), 0.0, True, False, dict()


def parallel_env():
    return Env()
"""


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there as soon as the module `stranger` or a command of its files has run."""
    marker = tmp_path / "it-ran"
    (tmp_path / "stranger").mkdir()
    (tmp_path / "stranger" / "__init__.py").write_text(STRANGER.format(marker=str(marker)))
    (tmp_path / "stranger" / "deeper.py").write_text("from stranger import *\n")
    monkeypatch.syspath_prepend(tmp_path)
    return marker


@pytest.fixture(autouse=True)
def _forgotten() -> Any:
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "stranger"]:
        del sys.modules[name]


def folder_with(tmp_path: Path, path: str, **kwargs: Any) -> str:
    folder = tmp_path / "policy"
    folder.mkdir(exist_ok=True)
    (folder / "policy.json").write_text(json.dumps({"class": path, "kwargs": kwargs}))
    return str(folder)


def attacks(marker: Path) -> list[tuple[str, dict[str, Any]]]:
    touch = ["touch", str(marker)]
    return [
        ("subprocess:Popen", {"args": touch}),
        ("os:system", {"command": " ".join(touch)}),
        ("stranger:Policy", {}),
        ("stranger.deeper:Policy", {}),
        ("parallel_envs.policies:load_policy", {"spec": "subprocess:Popen", "agent": 0, "args": touch}),
        ("parallel_envs.policies.specs:load_policy", {"spec": "stranger:Policy"}),
        ("parallel_envs.multiagent.by_name:FactoryByName", {"name": "stranger:Policy"}),
        ("parallel_envs.learners.train:begin", {"config": "settings.yaml"}),
    ]


@pytest.mark.parametrize("number", range(8))
def test_a_policy_folder_runs_nothing_that_is_not_trusted(number: int, tmp_path: Path, marker: Path) -> None:
    path, kwargs = attacks(marker)[number]
    folder = folder_with(tmp_path, path, **kwargs)
    module = path.partition(":")[0]
    told = rf"{folder}/policy\.json asks for the policy '{path}'(?s:.*)--trust {module}"
    for ask in (PolicySpec.parse, load_policy, candidates_of, lambda one: evaluate("CartPole-v1", one, episodes=1)):
        for spec in (folder, f"class={folder},proportion=2"):
            with pytest.raises(UntrustedName, match=told):
                ask(spec)
    assert not marker.exists()
    assert module not in sys.modules or not module.startswith("stranger")


def test_a_trusted_module_and_those_within_it_may_be_named(tmp_path: Path, marker: Path) -> None:
    for path in ("stranger:Policy", "stranger.deeper:Policy"):
        folder = folder_with(tmp_path, path)
        assert PolicySpec.parse(folder, trust=["stranger"]).class_path == path
        with pytest.raises(UntrustedName):
            PolicySpec.parse(folder, trust=["strange"])
    assert marker.exists()


def test_imports_of_a_trusted_module_are_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    folder = folder_with(tmp_path, "importing:save", file=str(tmp_path / "w.npy"), arr=[1])
    for imported in (
        "from subprocess import Popen as save",
        "from numpy import save",
        "from random import seed as save",
    ):
        (tmp_path / "importing.py").write_text(imported)
        with pytest.raises(UntrustedName, match=r"run code of '(subprocess'.*--trust subprocess|numpy|random)"):
            PolicySpec.parse(folder, trust=["importing"])
        sys.modules.pop("importing")
        importlib.invalidate_caches()
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)


def test_names_that_the_user_gives_are_not_checked(marker: Path) -> None:
    assert load_policy("stranger:Policy").step(None) == 0
    assert marker.exists()


def test_policies_of_this_package_may_be_named(tmp_path: Path) -> None:
    for path in sorted(OUR_POLICIES):
        assert PolicySpec.parse(folder_with(tmp_path, path)).class_path == path
    with pytest.raises(TypeError, match="has no method load"):
        load_policy(folder_with(tmp_path, "parallel_envs.policies:RandomAgent"), action_space=Discrete(2))


def test_a_damaged_policy_file_is_told(tmp_path: Path) -> None:
    for content in ("[]", "{", "", "null", '{"class": 3}', '{"class": "a:b", "kwargs": 3}', "[" * 100_000, "\xff"):
        (tmp_path / "policy.json").write_bytes(content.encode("latin-1"))
        with pytest.raises(ValueError, match=r"policy\.json is not a policy's file"):
            PolicySpec.parse(str(tmp_path))


def test_eval_says_which_option_allows_it(tmp_path: Path, marker: Path) -> None:
    words = ("eval", "-m", "CartPole-v1", "-p", folder_with(tmp_path, "stranger:Policy"), "-e", "1")
    done = command(*words)
    assert done.exit_code == 2
    assert "--trust stranger" in done.stderr
    assert "Traceback" not in done.stderr
    assert not marker.exists()
    assert command(*words, "--trust", "stranger").exit_code == 0
    assert marker.exists()


def test_trust_is_a_list_of_modules() -> None:
    for trust in ("stranger", 3, None):
        with pytest.raises(TypeError, match="is not a list of modules"):
            trusted_modules(trust)


@pytest.mark.parametrize("word", ["my-env", "../my env/corridor.py:Corridor"])
def test_what_is_no_module_is_told_in_a_line(word: str) -> None:
    pytest.importorskip("torch")
    for words in (("eval", "-m", "CartPole-v1", "-p", "random"), ("eval", "--resume", "x"), ("train", "--resume", "x")):
        done = command(*words, "--trust", word)
        assert done.exit_code == 2, done.output
        (line,) = done.stderr.splitlines()
        assert f"The trusted module {word!r} is not a module's name." in line
        assert ("Files are trusted as a whole: '../my env/corridor.py'." in line) == (".py:" in word)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("subprocess:Popen", {"args": ["true"]}),
    ("stranger:Env", {}),
    ("stranger", {}),  # as a PettingZoo module
    ("stranger.deeper", {}),  # to look for it would import `stranger` already
    ("stranger:Env-v0", {}),  # as a Gymnasium id
    ("GymV26Environment-v0", {"env_id": "stranger:Env-v0"}),
    ("gymnasium:GymV21Environment-v0", {"env_id": "stranger:Env-v0"}),
    ("GymV26Environment", {"env_id": "stranger:Env-v0"}),  # Gymnasium takes the newest version
    ("parallel_envs.testing.tuple_agents:tuple_agents", {"env": "gymnasium:GymV26Environment"}),
    *((name, {"env": "stranger:Env-v0"}) for name in sorted(TUPLE_AGENTS)),
    ("parallel_envs.policies:load_policy", {"spec": "stranger:Policy"}),
    ("stranger:mpe2/simple_spread-v3", {}),  # as a PettingZoo id
    ("parallel_envs.__main__", {}),
    ("pettingzoo.utils", {}),
]


def test_a_file_cannot_name_any_environment(tmp_path: Path, marker: Path) -> None:
    for name, kwargs in REFUSED:
        with pytest.raises(UntrustedName, match="--trust "):
            check_env(name, kwargs, tmp_path / "settings.yaml")
        assert not marker.exists(), name


def test_environments_of_known_families_may_be_named() -> None:
    gymnasiums = ("CartPole-v1", "CartPole", "ale_py:ALE/Pong-v5", "ALE/Pong-v5")
    pettingzoos = ("mpe2.simple_spread_v3", "pettingzoo.classic.tictactoe_v3", "mpe2/simple_spread-v3")
    unknown = ("CartPol-v1", "stranger/../x", "", "a b")  # which is said where it is made
    for name in (*sorted(OUR_ENVS), *gymnasiums, *pettingzoos, "sisl/pursuit-v5", *unknown):
        check_env(name, {}, "settings.yaml")


FAKES = [("metaworld.py", "metaworld:Meta-World/MT1"), ("metaworld/evil_v1.py", "metaworld.evil_v1")]


@pytest.mark.parametrize(("file", "name"), FAKES)
def test_a_family_is_the_installed_one(file: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text("raise SystemExit('ran')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    with pytest.raises(UntrustedName, match="--trust metaworld"):
        check_env(name, {}, "settings.yaml")


PPO = {"name": "ppo", "rollout_length": 8, "minibatch_size": 8, "num_epochs": 1, "hidden": [8]}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of CartPole that was trained for 32 steps."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("runs")
    settings = {"env": "CartPole-v1", "num_envs": 1, "total_steps": 32, "backend": "serial", "algorithm": PPO}
    settings |= {"update_mode": "sequential", "tensorboard": False}
    (folder / "config.yaml").write_text(yaml.safe_dump(settings))
    done = command("train", str(folder / "config.yaml"), f"folder={folder / 'run'}")
    assert done.exit_code == 0, done.output
    return folder / "run"


def edited(run: Path, tmp_path: Path, **changes: Any) -> Path:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    settings = yaml.safe_load((folder / "settings.yaml").read_text())
    (folder / "settings.yaml").write_text(yaml.safe_dump({**settings, **changes}))
    return folder


@pytest.mark.parametrize(("name", "kwargs"), [REFUSED[0], REFUSED[5]])
def test_an_edited_run_is_refused(name: str, kwargs: Any, run: Path, tmp_path: Path, marker: Path) -> None:
    folder = edited(run, tmp_path, env=name, env_kwargs=kwargs)
    done = command("train", "--resume", str(folder), "total_steps=64")
    assert done.exit_code == 2
    assert f"{folder}/settings.yaml asks for the environment {name!r}" in done.stderr
    assert "--trust " in done.stderr
    assert "Traceback" not in done.stderr
    assert not marker.exists()


def test_a_run_whose_environment_the_user_vouches_for_goes_on(run: Path, tmp_path: Path, marker: Path) -> None:
    same = edited(run, tmp_path / "same")
    assert command("train", "--resume", str(same), "total_steps=64").exit_code == 0  # of a known environment
    folder = edited(run, tmp_path, env="stranger:Env")
    for more in (["--trust", "stranger"], ["env=stranger:Env"], [str(folder / "settings.yaml")]):
        done = command("train", "--resume", str(folder), "total_steps=64", *more)
        assert done.exit_code == 2, done.output  # the network is of other observations: it was made, and does not fit
        assert "does not fit" in done.stderr
        assert marker.exists()
        marker.unlink()
        sys.modules.pop("stranger")


def test_arguments_that_only_the_file_has_and_settings_of_a_meta_learner_name_no_environment(
    run: Path, tmp_path: Path, marker: Path
) -> None:
    tuples = "parallel_envs.testing.tuple_agents:tuple_agents"
    folder = edited(run, tmp_path, env=tuples, env_kwargs={"env": "stranger:Env-v0"})
    done = command("train", "--resume", str(folder), "total_steps=64", f"env={tuples}")
    assert done.exit_code == 2
    assert "asks for the environment 'stranger:Env-v0'" in done.stderr
    from parallel_envs.learners.meta import Learner

    env = {"env_name": "stranger:Env", "max_rollouts_per_task": 1, "num_train_tasks": 1, "num_eval_tasks": 1}
    (tmp_path / "settings.yaml").write_text(yaml.safe_dump({"env": env}))
    with pytest.raises(UntrustedName, match="--trust stranger"):
        Learner.resume(tmp_path)
    assert not marker.exists()


class Touches:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_is_unpickled_from_a_file(run: Path, tmp_path: Path) -> None:
    import numpy as np

    from parallel_envs.evaluation.recordings import read_episode
    from parallel_envs.learners.checkpoint import BadCheckpoint, load_agent
    from parallel_envs.rollouts.replay import read_archive
    from parallel_envs.settings import content_of

    marker = tmp_path / "unpickled"
    bad = tmp_path / "bad.npz"
    header = np.array([Touches(marker)], dtype=object)
    np.savez(bad, allow_pickle=True, **{"header.json": header, "array": header})
    for read in (read_archive, read_episode):
        with pytest.raises(ValueError, match=r"bad\.npz"):
            read(bad)
    np.save(tmp_path / "bad.npy", header, allow_pickle=True)
    with pytest.raises(ValueError, match=r"bad\.npy"):
        read_archive(tmp_path / "bad.npy")
    text = tmp_path / "bad.yaml"
    text.write_text(f"a: !!python/object/apply:pathlib.Path.touch [!!python/object/apply:pathlib.Path ['{marker}']]\n")
    with pytest.raises(ValueError, match="is not YAML"):
        content_of(text, ValueError)

    folder = edited(run, tmp_path)
    agent, *_ = folder.glob("checkpoints/*/agent_0")
    shutil.copy(bad, agent / "arrays.safetensors")
    with pytest.raises(BadCheckpoint):
        load_agent(agent)
    assert not marker.exists()
